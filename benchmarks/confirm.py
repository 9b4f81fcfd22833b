"""Check whether tables of learning still hold: short runs at an earlier commit and at this one, compared byte by byte.

    python benchmarks/confirm.py taxi line          # the tables of these environments; a minute or two per arm
    python benchmarks/confirm.py taxi --runs DIR    # keep the short runs in DIR

The same recipe and seed give the same bytes on one machine. If each arm of a table, trained for a few steps, has the
same weights, metrics and evaluation at both commits, the changes between them did not change what it computes, and the
table is marked "at commit A (same bytes at B)". Otherwise it stays stale and must be made again. The earlier commit is
the last one that confirmed the table, or else the one it was made at. A short run goes through all stages with one
seed; minutes, which no run repeats exactly, remain those of the commit that the table was made at.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from arms import ENVIRONMENTS, HERE, ONE_THREAD, Arm, commit, content, publish
from learner import SHIPPED
from stale import COMMIT, ROOT
from studies import STUDIES

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput, ReflectRLError
from reflectrl.core.jsonl import read_jsonl
from reflectrl.core.layout import COMPUTE, METRICS, RESULTS
from reflectrl.models.load import BUILTIN
from reflectrl.pipeline.console import Reporter

SHORT = ("data.samples=400", "sft.reflector.steps=20", "sft.policy.steps=20", "eval.episodes=32", "seed=0")
SHORTER = ("sft.reflector.steps=5", "sft.policy.steps=5", "eval.episodes=4", "rlft.episodes=4")
"""Further changes for pretrained models, whose steps take a second each."""
ITERATIONS = 3
"""Iterations of each curriculum stage in a short run."""


def arms_of(env: str) -> dict[str, tuple[Path, tuple[Arm, ...]]]:
    """Return the page and the arms of each table of an environment or study, by the table's name."""
    if env in STUDIES:
        return {env: (HERE / "README.md", STUDIES[env].arms)}
    about = ENVIRONMENTS[env]
    main, page = (about.silent, about.reflecting), HERE / "README.md"
    tables = {f"learning_{env}": (page, main), f"ablations_{env}": (page, (about.reflecting, *about.ablations))}
    if env == "taxi":
        tables["learner"] = (HERE / "learner.md", (*main, SHIPPED))
    return tables


def overrides(arm: Arm) -> list[str]:
    """Return the changes to an arm's recipe that shorten a run to about a minute."""
    recipe = load_recipe(arm.recipe, arm.overrides)
    stages = range(len(recipe.rlft.stages)) if recipe.rlft else ()
    pretrained = recipe.model.name != BUILTIN
    short = [*SHORT, *(SHORTER if pretrained else ()), *(f"rlft.stages.{at}.iterations={ITERATIONS}" for at in stages)]
    if recipe.rlft and recipe.rlft.validation:
        short += ["rlft.validation.every=2", *(["rlft.validation.episodes=4"] if pretrained else [])]
    return [*arm.overrides, *short]


def precisions(run: Path) -> list[str]:
    """Return the changes to a recipe that name the precisions which a run chose by a trial, whose outcome scatters."""
    chosen = json.loads((run / COMPUTE).read_text(encoding="utf-8")) if (run / COMPUTE).exists() else {}
    sections = {"policy": "model", "reflector": "reflector_model"}
    tried = {role: each["compute"] for role, each in chosen.items() if each["speedup"] is not None}
    return [f"{sections[role]}.compute={compute}" for role, compute in tried.items()]


def train(code: Path, folder: Path, arm: Arm, further: Sequence[str] = ()) -> None:
    """Train a short run of an arm, with ``further`` changes to its recipe, with the code of a checkout.

    Raises:
        InvalidInput: the run failed.

    """
    words = ["--recipe", arm.recipe, "--runs", str(folder.parent), "--run", folder.name, *overrides(arm), *further]
    done = subprocess.run(
        [sys.executable, "-m", "reflectrl", "run", *words],
        cwd=code,  # Python looks for modules here first
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": str(code)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise InvalidInput(f"a short run of {arm.recipe} in {code} ended with code {done.returncode}: {last[0]}")


def differences(before: Path, after: Path) -> list[str]:
    """Return the files of a run that differ in a second run; columns that only one of them has are ignored."""
    weights = [path.relative_to(before) for path in sorted(before.glob("*/*.safetensors"))]
    changed = [str(path) for path in weights if (before / path).read_bytes() != (after / path).read_bytes()]
    for name in (METRICS, RESULTS):
        rows, others = ([row for _, row in read_jsonl(run / name)] for run in (before, after))
        if len(rows) != len(others) or any(_differ(*pair) for pair in zip(rows, others, strict=True)):
            changed.append(name)
    return changed


def _differ(one: object, other: object) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return any(_differ(one[key], other[key]) for key in one.keys() & other.keys())
    return one != other


@contextmanager
def checkout(earlier: str) -> Iterator[Path]:
    """Check out a commit in a temporary folder, deleted afterwards, with the runs that recipes begin with."""
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, earlier)
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(code), earlier], check=True)
        (code / "runs").symlink_to(ROOT / "runs")
        try:
            yield code
        finally:
            subprocess.run([*git, "remove", "--force", str(code)], check=True)


def confirm(earlier: str, arms: Sequence[Arm], runs: Path, reporter: Reporter) -> bool:
    """Return whether short runs of arms give the same bytes at a commit and now; existing short runs are reused."""
    same: list[bool] = []
    with checkout(earlier) as before:
        for arm in arms:
            if not (before / "recipes" / f"{arm.recipe}.yaml").exists():
                continue  # an arm that came later has no run at this commit
            folders = [runs / at / f"{arm.recipe}-{arm.name}" for at in (earlier, commit())]
            chosen: list[str] = []
            for code, folder in zip((before, ROOT), folders, strict=True):
                if not (folder / RESULTS).exists():
                    train(code, folder, arm, chosen)
                chosen = precisions(folder)
            changed = differences(*folders)
            same.append(not changed)
            found = f"other {', '.join(changed)}" if changed else "the same bytes"
            reporter.line(f"{arm.recipe}, {arm.title}: {found}")
    return bool(same) and all(same)


def main() -> int:
    """Confirm the tables of some environments and studies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="+", choices=[*ENVIRONMENTS, *STUDIES], metavar="ENV")
    parser.add_argument("--runs", type=Path, help="folder of the short runs; by default one that is deleted")
    given = parser.parse_args()
    reporter, wrong = Reporter(), 0
    if commit().endswith("-dirty"):
        reporter.line("error: files differ from the commit that a table would name; commit them first")
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        runs = given.runs or Path(temporary)
        for env in given.envs:
            for name, (page, arms) in arms_of(env).items():
                text = content(page, name)
                parts = COMMIT.findall(text)  # a table may have runs of several commits
                for earlier in dict.fromkeys(confirmed or made_at for made_at, confirmed in parts):
                    if earlier == commit():
                        continue
                    try:
                        same = confirm(earlier, arms, runs, reporter)
                    except ReflectRLError as error:
                        reporter.line(f"error: {error}")
                        return error.exit_code
                    wrong += not same
                    if same:
                        for made_at in (made_at for made_at, confirmed in parts if (confirmed or made_at) == earlier):
                            pattern = rf"commit {made_at}( \(same bytes at \w+\))?"
                            text = re.sub(pattern, f"commit {made_at} (same bytes at {commit()})", text)
                        publish(page, name, text)
                    reporter.line(f"{name} against {earlier}: {'confirmed' if same else 'stale, make it again'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
