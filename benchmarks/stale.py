"""Find stale published tables: those whose code has changed since the commit that they name.

    python benchmarks/stale.py    # or `make stale`; exits with 1 if a table is stale or names no commit

A table is in a Markdown page between ``<!-- NAME -->`` and ``<!-- end -->``; ``TABLES`` has the paths that determine
its numbers. Comments, docstrings and line breaks change no number, so Python and YAML are compared without them.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from arms import ENVIRONMENTS, Arm
from studies import GPU_STUDIES, STUDIES

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "benchmarks/*.md", "docs/*.md")
SHOWN_FILES = 3
"""Maximum number of changed files that are named for a table."""

_ENGINE = ("reflectrl/engine", "reflectrl/models")
_TRAINING = (*_ENGINE, "reflectrl/training", "reflectrl/rollout", "reflectrl/players", "reflectrl/prompts")


def _learning(arms: Sequence[Arm]) -> tuple[str, ...]:
    """Return the paths that determine what arms of one environment learn."""
    recipes: dict[str, dict[str, Any]] = {}
    for arm in arms:
        recipes |= _recipe_files(arm.recipe)
    (env,) = {each["env"]["name"] for each in recipes.values() if "name" in each.get("env", {})}
    adapted = (
        ["reflectrl/models/adapters.py"] if any("lora" in each.get("model", {}) for each in recipes.values()) else []
    )
    return (*_TRAINING, *adapted, "reflectrl/config/rlft.py", "data_gen", f"envs/{env}", *recipes)


def _recipe_files(recipe: str) -> dict[str, dict[str, Any]]:
    """Return the files of a shipped recipe and of the recipes that it extends, with their parsed content."""
    file = f"recipes/{recipe}.yaml"
    said = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    return {file: said, **(_recipe_files(said["extends"]) if "extends" in said else {})}


def _scripts(*names: str) -> tuple[str, ...]:
    return tuple(f"benchmarks/{name}.py" for name in names)


_PLAYED = {
    "thoughts": ("reflectrl/models/thinking.py", "reflectrl/prompts/answers.py"),
    "memory": ("reflectrl/memory", "reflectrl/pipeline/evaluate.py"),
    "raters": (
        *("reflectrl/raters", "reflectrl/endpoint", "reflectrl/players/remote.py"),
        *_scripts("scripted_rater"),
    ),
}
"""Paths of the players that the tables of ``STUDIES`` measure, besides those of training."""
UNTIMED = (
    "reflectrl/engine/reuse.py",
    "reflectrl/models/adapters.py",
    "reflectrl/models/load.py",
    "reflectrl/models/packages.py",
    "reflectrl/models/shallow.py",
    "reflectrl/models/thinking.py",
)
"""Modules of the engine's rooms that its benchmarks do not call while they measure: a check of models that are loaded,
their adapters, how they are downloaded and loaded, and policies that write. A test checks this."""
_TIMED = tuple(
    file.relative_to(ROOT).as_posix()
    for room in _ENGINE
    for file in sorted((ROOT / room).glob("*.py"))
    if file.relative_to(ROOT).as_posix() not in UNTIMED
)
_ENGINE_SECTIONS = (
    "nano",
    "whole",
    "gpt2",
    "smollm2",
    "frozen",
    "work",
    "memory",
    "horizon",
    "cache",
    "score",
    "kernels",
)
TABLES: Mapping[str, tuple[str, ...]] = {
    **{f"learning_{env}": _learning((about.reflecting, about.silent)) for env, about in ENVIRONMENTS.items()},
    **{f"ablations_{env}": _learning((about.reflecting, *about.ablations)) for env, about in ENVIRONMENTS.items()},
    **{name: (*_learning(study.arms), *_PLAYED.get(name.partition("_")[0], ())) for name, study in STUDIES.items()},
    "learning_short": (),
    "pretrained_short": (),
    "reflections": ("reflectrl/report/reflector.py", *_scripts("reflections")),
    "learner": _learning((ENVIRONMENTS["taxi"].reflecting, ENVIRONMENTS["taxi"].silent)),
    "auto_explore walkers": ("envs/auto_explore", *_scripts("walkers")),
    "explorer": ("envs/auto_explore", "recipes/smollm2/explorer.yaml", *_scripts("explorer", "walkers")),
    "alfworld_engine": ("envs/alfworld", *_scripts("alfworld_engine")),
    **dict.fromkeys(
        (f"engine_{section}" for section in _ENGINE_SECTIONS),
        (*_TIMED, *_scripts("engine", "engine_prompts", "engine_sides", "plain", "timing")),
    ),
    **dict.fromkeys(
        ("machine", "gpt2_xl", "smollm2", "mistral_7b", "syncs"),  # of benchmarks/gpu.md
        (*_ENGINE, *_scripts("gpu", "engine_prompts", "engine_sides", "plain")),
    ),
    "tests": (*_ENGINE, "tests/test_devices.py"),  # of benchmarks/gpu.md
    **{  # of benchmarks/gpu.md
        f"gpu {name}": _learning(study.arms)
        for name, study in (STUDIES | GPU_STUDIES).items()
        if name.startswith("pretrained_") and name != "pretrained_number_line"
    },
    "pretrained_steps": (
        *_TIMED,
        "recipes/smollm2",
        *_scripts("pretrained_steps", "engine_prompts", "engine_sides", "timing"),
    ),
    "estimate": (
        *_ENGINE,
        "reflectrl/pipeline/costs.py",
        "reflectrl/pipeline/estimate.py",
        *_scripts("estimate", "engine_prompts"),
    ),
    "remote_reflector": (
        *("reflectrl/endpoint", "reflectrl/players", "reflectrl/players/remote.py", "reflectrl/rollout"),
        *_scripts("remote_reflector"),
    ),
    "serve": (*_ENGINE, "reflectrl/serving", *_scripts("serve")),
    "report": ("reflectrl/report", *_scripts("report")),
    "retrieval": (
        *(f"reflectrl/memory/{name}.py" for name in ("column", "embedders", "retriever")),
        *_scripts("retrieval"),
    ),
    "shop players": ("envs/shop", "envs/auto_explore/bm25.py"),
    "robots players": ("envs/robots",),
    "faulty_calls": ("reflectrl/endpoint", *_scripts("faulty_calls")),
    "kills": (
        *("reflectrl/pipeline", "reflectrl/training", "reflectrl/endpoint", "reflectrl/core"),
        *_scripts("kills", "scripted_teacher"),
    ),
    "mutated_recipes": ("reflectrl/config", *_scripts("mutated_recipes", "mutations")),
    "soak_taxi": (*_TRAINING, "envs/dangerous_taxi", *_scripts("soak")),
    "soak_alfworld": ("reflectrl/workers", "reflectrl/rollout", "envs/alfworld", *_scripts("soak")),
    "paper": (),
}
"""Files, folders and git patterns that determine each published table; none if its numbers come from elsewhere."""

MADE_FROM: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("learning_short", "reflections"), tuple(f"learning_{env}" for env in ENVIRONMENTS)),
    "pretrained_short": tuple(name for name in STUDIES if name.startswith("pretrained_")),
}
"""Tables that are made from the runs of other tables, and are stale if one of those is."""

UNUSED = (
    "data_gen/estimate.py",
    *(f"reflectrl/models/adapters.py::{name}" for name in ("add_lora", "check_layers", "_token_indices", "load_lora")),
    "reflectrl/models/thinking.py",
    "reflectrl/players/remote.py",
    "reflectrl/prompts/answers.py",
    *(f"reflectrl/prompts/chat.py::{name}" for name in ("read_correction", "_object_in")),
    "reflectrl/prompts/spoilers.py",
    "reflectrl/prompts/teacher.py",
    "reflectrl/training/trackers.py::transcript",
)
"""Modules, and functions of modules (``MODULE::NAME``), in the paths of the learning tables that their recipes never
call: for adapters, chat models, writing policies and trackers.

Those recipes have the expert as the teacher and local players, and their policy answers with a label. A test runs all
stages of one and checks this; tables of other players name these modules. ``prompts/discretion.py`` is not among them,
because an expert's reflections are searched for secrets too."""

_MARKED = re.compile(r"^<!-- (?!end)([\w ]+) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
COMMIT = re.compile(r"commit ([0-9a-f]{7,40})(?: \(same bytes at ([0-9a-f]{7,40})\))?")
"""Pattern of the commit that a table was made at, and of the last one confirmed to compute the same."""
_NUMBER = re.compile(r"[*+-]*\d")


@dataclass(frozen=True)
class Table:
    """A published table, or a fault of one."""

    page: str
    name: str
    commits: tuple[str, ...] = ()
    """Commits that it was made at, or the last that compute the same; empty if the table has a fault."""
    fault: str = ""


def tables(root: Path, declared: Mapping[str, Sequence[str]] = TABLES) -> Iterator[Table]:
    """Yield the tables of the pages under ``root`` with their faults; whether they are stale is not checked."""
    for page in sorted(path for pattern in PAGES for path in root.glob(pattern)):
        name, text = page.relative_to(root).as_posix(), page.read_text(encoding="utf-8")
        for mark, content in _MARKED.findall(text):
            commits = tuple(dict.fromkeys(same or made for made, same in COMMIT.findall(content)))
            dirty = [commit for commit in commits if f"{commit}-dirty" in content]
            if mark not in declared:
                fault = "add the paths that decide what it says to TABLES in benchmarks/stale.py"
            elif not commits and declared[mark] and "|" in content:
                fault = "name the commit that it was made at, such as 'at commit 1a2b3c4'"
            elif dirty:
                fault = f"it was made at {dirty[0]} with uncommitted changes; make it again from a clean checkout"
            else:
                fault = ""
            yield Table(name, mark, () if fault else commits, fault)
        for head in _tables_of_numbers(_MARKED.sub("", text)):
            yield Table(name, head, fault="it holds numbers outside of marks; write <!-- NAME --> and <!-- end -->")


def verdict(root: Path, table: Table, paths: Sequence[str]) -> str:
    """Return the fault of a table, or what has changed since it was made; empty if neither."""
    for commit in table.commits:
        if _git(root, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
            return f"this repository lacks commit {commit}; correct it, or fetch the whole history"
        if paths and (changed := _changed(root, commit, paths)):
            others = f" and {len(changed) - SHOWN_FILES} other files" if len(changed) > SHOWN_FILES else ""
            return f"stale: since {commit}, {', '.join(changed[:SHOWN_FILES])}{others} changed"
    return table.fault


def faults(
    root: Path,
    declared: Mapping[str, Sequence[str]] = TABLES,
    made_from: Mapping[str, Sequence[str]] = MADE_FROM,
) -> dict[Table, str]:
    """Return the faults of the stale and faulty tables of the pages under ``root``."""
    verdicts = {table: verdict(root, table, declared.get(table.name, ())) for table in tables(root, declared)}
    wrong = {table.name for table, why in verdicts.items() if why}
    for table, why in verdicts.items():
        if not why and (sources := [name for name in made_from.get(table.name, ()) if name in wrong]):
            verdicts[table] = f"stale: it is made from {', '.join(sources)}"
    return {table: why for table, why in verdicts.items() if why}


def _changed(root: Path, commit: str, paths: Sequence[str]) -> list[str]:
    """Return the files among ``paths`` whose meaning has changed since ``commit``."""
    unused = [path.partition("::") for path in UNUSED if path.partition("::")[0] not in paths]
    without = [f":(exclude){file}" for file, _, function in unused if not function]
    listed = _git(root, "diff", "--name-only", "--no-renames", commit, "--", *paths, *without).stdout.splitlines()
    skipped = {file: frozenset(function for path, _, function in unused if path == file) for file in listed}
    present = {file: (root / file).read_text(encoding="utf-8") for file in listed if (root / file).is_file()}
    now = {file: _meaning(file, text, skipped[file]) for file, text in present.items()}
    return [file for file in listed if now.get(file) != _meaning_then(root, commit, file, skipped[file])]


@cache
def _meaning_then(root: Path, commit: str, file: str, skipped: frozenset[str]) -> str | None:
    shown = _git(root, "show", f"{commit}:{file}")
    return None if shown.returncode else _meaning(file, shown.stdout, skipped)


@cache
def _meaning(file: str, text: str, skipped: frozenset[str] = frozenset()) -> str:
    """Return ``text`` without what cannot change a result: comments, layout, descriptions and ``skipped`` functions."""
    if file.endswith(".yaml"):
        said = yaml.safe_load(text)
        if isinstance(said, dict):
            said.pop("description", None)
        return repr(said)
    if not file.endswith(".py"):
        return text
    tree = ast.parse(text)
    tree.body[:] = [each for each in tree.body if getattr(each, "name", "") not in skipped]
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            strings = [each for each in body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
            body[:] = [each for each in body if each not in strings]
    return ast.dump(tree)


def _tables_of_numbers(text: str) -> Iterator[str]:
    """Yield the heads of tables of numbers: most cells, except the first of each row, begin with a number."""
    for block in re.findall(r"(?:^\|.*\n)+", f"{text}\n", re.MULTILINE):
        head, *rows = block.splitlines()
        cells = [cell.strip() for row in rows[1:] for cell in row.strip("| ").split(" | ")[1:]]
        if cells and sum(bool(_NUMBER.match(cell)) for cell in cells) > len(cells) / 2:
            yield f"the table '{head}'"


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)


def main() -> int:
    """Print the stale and faulty tables."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="stale.py"
    ).parse_args()
    if _git(ROOT, "rev-parse", "--git-dir").returncode:
        print("this folder is no git repository, by whose history tables are judged; use a clone", file=sys.stderr)
        return 1
    found = faults(ROOT)
    for table, why in found.items():
        print(f"{table.page}, {table.name}: {why}")
    print(f"{len(found)} tables to make again" if found else "every published table is of the code as it is")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
