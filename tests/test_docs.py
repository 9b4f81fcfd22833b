"""Commands and Python code in docs/ and the README work, names on pages exist, and numbers are the measured ones."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import pytest
import typer.main
import yaml
from faulty import restored_registry
from test_rooms import MAY_IMPORT
from torch.distributed.run import parse_args as torchrun

from reflectrl.cli.app import app
from reflectrl.config import arm_names, check_recipe, load_recipe, recipe_names
from reflectrl.config.schema import Recipe
from reflectrl.core import registry
from reflectrl.core.origin import VERSION
from reflectrl.core.settings import sections_of, settings_fields
from reflectrl.pipeline.claims import plan_claims, read_claims

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks" / "results").glob("*.md")}
WITH_README = TEXT + README
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILES = re.compile(r"\.(py|md|jsonl?|yaml|html|safetensors|jinja)$")


@pytest.fixture(autouse=True)
def _restored_environments():
    """Forget the environments that the pages register."""
    with restored_registry():
        yield


def commands() -> list[str]:
    """Return the lines of code blocks that run reflectrl, directly or by torchrun."""
    indented = [line for line in FENCE.sub("", WITH_README).splitlines() if line.startswith("    ")]
    fenced = "\n".join(FENCE.findall(WITH_README)).replace("\\\n", " ").splitlines()
    return [line.strip() for line in indented + fenced if re.match(r"\s*(reflectrl|torchrun)\s", line)]


def keys() -> list[str]:
    """Return the dotted names in backticks that are neither files nor modules, without a value after them."""
    names = re.findall(r"`([a-z_]+(?:\.[a-z0-9_]+)+)(?:=[^`]*)?`", FENCE.sub("", TEXT))
    return sorted({name for name in names if not FILES.search(name) and not name.startswith("reflectrl.")})


def in_schema(key: str) -> bool:
    kinds: list[type] = [Recipe]
    for name in key.split("."):
        found = [settings_fields(each)[name] for each in kinds if name in settings_fields(each)]
        if not found:
            return False
        kinds = [section for field in found for section in sections_of(field.annotation)]
    return True


def test_there_is_something_to_check() -> None:
    assert PAGES
    assert len(commands()) > 5
    assert len(keys()) > 10
    wrong = ("rlft.episode", "rflt.episodes", "rlft.episodes.more", "players.endpoint.modell")
    assert [key for key in wrong if in_schema(key)] == []


@pytest.mark.slow
@pytest.mark.parametrize("line", commands())
def test_a_command_parses(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "torchrun":
        given = torchrun(words[1:])
        assert given.module
        words = [given.training_script, *given.training_script_args]
    assert words.pop(0) == "reflectrl"
    command: Any = typer.main.get_command(app)
    while names := getattr(command, "commands", None):
        command = names[words.pop(0)]
    params = command.make_context("reflectrl", words).params
    if "env" in params and "overrides" in params:
        load_recipe({"name": "shown", "budget": {}, "env": {"name": params["env"]}}, params["overrides"] or ())
    elif "overrides" in params:
        name = params["recipe"] if "recipe" in params else params["name"]
        check_recipe(load_recipe(name, params["overrides"] or ()))


def test_keys_modules_recipes_and_scripts_on_the_pages_are_there() -> None:
    assert [key for key in keys() if not in_schema(key)] == []
    for name in re.findall(r"`(reflectrl(?:\.\w+)+)`", FENCE.sub("", TEXT)):
        resolve_name(name)
    named = {*re.findall(r"`(?!builtin/)([a-z_]+/[a-z_0-9]+)`", WITH_README)}
    assert sorted(named - {*recipe_names()}) == []
    benchmarks = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    scripts = re.findall(r"python (benchmarks/\w+\.py)", WITH_README + benchmarks)
    assert len(scripts) > 15
    assert [path for path in scripts if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("page", ["pictures", "rlft", "stages"])
def test_a_recipe_on_a_page_is_one_with_all_its_arms(page: str, tmp_path: Path) -> None:
    for text in YAML.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")):
        env = "" if "env:" in text else "env: {name: number_line}\n"
        whole = text if "extends: " in text else f"name: shown\n{env}{text}"
        (tmp_path / "shown.yaml").write_text(whole, encoding="utf-8")
        for arm in (None, *arm_names(tmp_path / "shown.yaml")):
            check_recipe(load_recipe(tmp_path / "shown.yaml", arm=arm))


def test_the_environment_of_the_page_is_one_of_gymnasium() -> None:
    [block] = PYTHON.findall((ROOT / "docs" / "environments.md").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    exec(compile(block, "environments.md", "exec"), names)
    assert names["info"]["actions"]
    assert names["reward"] < 0


def test_the_claim_of_the_page_can_be_tried(tmp_path: Path) -> None:
    [text] = YAML.findall((ROOT / "docs" / "tools.md").read_text(encoding="utf-8"))
    (tmp_path / "claims.yaml").write_text(text, encoding="utf-8")
    claims = read_claims(tmp_path / "claims.yaml")
    assert [*claims] == ["negatives"]
    assert len(plan_claims(claims, tmp_path)) == 2, "a pair of arms for each recipe"


def test_the_player_of_the_page_speaks_before_each_act(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "seats.md").read_text(encoding="utf-8")
    module, program = PYTHON.findall(text)
    names: dict[str, Any] = {}
    exec(compile(module + program, "seats.md", "exec"), names)
    turns = names["played"].turns
    assert len(turns) > 1
    assert [turn.said["tally"].text for turn in turns[:2]] == ["", f"{turns[0].decision.action} 1x"]
    printed = capsys.readouterr().out.splitlines()
    assert f"Tally: {printed[0]}" in printed
    [recipe] = YAML.findall(text)
    (tmp_path / "counted.yaml").write_text(recipe)
    (tmp_path / "counting.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    check_recipe(load_recipe(tmp_path / "counted.yaml"))


def test_the_memory_of_the_page_shows_what_the_first_trial_has_left(capsys: pytest.CaptureFixture[str]) -> None:
    [block] = PYTHON.findall((ROOT / "docs" / "memory.md").read_text(encoding="utf-8"))
    exec(compile(block, "memory.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.match(r"10 kept, (\d+) of \1 questions answered\n", printed)
    assert re.search(r"^Memory: Done before: .*> (add|subtract) one", printed, re.MULTILINE)


def test_the_rater_of_the_page_rates_what_was_played(capsys: pytest.CaptureFixture[str]) -> None:
    [block] = PYTHON.findall((ROOT / "docs" / "raters.md").read_text(encoding="utf-8"))
    exec(compile(block, "raters.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.match(
        r"\{'env': \S+, 'rater': [03]\.0\} Rating: [03] of 0 to 3, very (bad|good)\.\n\(\(\d+, \d+\), ", printed
    )


@pytest.mark.slow
def test_the_page_from_python_runs_from_an_environment_to_an_evaluated_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    registry._TARGETS.pop("corridor", None)  # another test may have imported it
    page = ModuleType("corridor_page")
    monkeypatch.setitem(sys.modules, page.__name__, page)  # as a script is the module __main__
    blocks = PYTHON.findall((ROOT / "docs" / "python.md").read_text(encoding="utf-8"))
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, "python.md", "exec"), vars(page))
    printed = capsys.readouterr().out
    assert re.search(r"^\[([\d.]+(, )?){4}\]$", printed, re.MULTILINE)
    assert "rlft sampled" in printed
    assert (tmp_path / "runs" / "corridor" / "policy").is_dir()


def test_the_errors_of_the_page_are_those_that_the_library_raises():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(shown) > 5
    said = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "reflectrl").rglob("*.py"))
    assert [words for words in shown if words not in said] == []


# ---- the README ------------------------------------------------------------------------------------------------------


def run(words: str) -> str:
    """Run the code block that contains ``words``, and return it."""
    (block,) = [block for block in PYTHON.findall(WITH_README) if words in block]
    exec(compile(block, "a page", "exec"), {})
    return block


def test_the_environment_of_the_readme_holds_its_promises_in_forty_lines():
    (block,) = PYTHON.findall(README)
    assert block == run("check_env(Vault())")
    assert len([line for line in block.splitlines() if line.strip()]) <= 40


def test_the_sandbox_shows_what_the_page_says(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    block = run("with Sandbox(")
    head, changes = capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)
    assert head.strip() == "\n".join((ROOT / "recipes/auto_explore/nano.yaml").read_text().splitlines()[:3])
    assert f"# {changes};" in block
    assert not (ROOT / "recipes/auto_explore/notes.md").exists()


def test_results_and_pages_that_show_measurements_name_their_release():
    assert set(RESULTS) == {"learning", "siblings", "engine"}
    reliability = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert [
        name for name, text in {**RESULTS, "reliability": reliability}.items() if "elease 0.1 (8e96faed)" not in text
    ] == []


def test_pages_are_short():
    assert len((ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").splitlines()) <= 45
    assert sum(len(text.split()) for text in RESULTS.values()) <= 6000
    assert len(TEXT.split()) <= 17_000


def test_the_readme_fits_in_130_lines_and_its_first_screen_in_120_words():
    assert len(README.splitlines()) <= 130
    screen, _, table = README.partition("<!-- learning_short -->")
    assert len(screen.split()) <= 120
    assert len(re.findall("^    make ", screen, re.MULTILINE)) == len(re.findall(r"!\[.*\.png\)", screen)) == 1
    [safe] = re.findall(r"\| `safe/nano` \| .*", table)
    assert [number for number in re.findall(r"\d+(?= %)", screen) if not re.search(rf"\b{number}\b", safe)] == []


def test_pages_for_contributors_are_short_and_name_what_exists():
    pages = {
        name: (ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "SECURITY.md", "CITATION.cff")
    }
    assert max(len(text.splitlines()) for text in pages.values()) <= 60
    guide = pages["CONTRIBUTING.md"]
    paths = re.findall(r"`((?:reflectrl|envs|tests|benchmarks)/[\w/.]*)`", guide)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    drawing = FENCE.search(guide)
    assert drawing is not None
    assert [
        room for room in MAY_IMPORT if room != "recipes" and not re.search(rf"(^|   ){room}\b", drawing[1], re.M)
    ] == []
    citation = yaml.safe_load(pages["CITATION.cff"])
    assert VERSION.startswith(citation["version"])
    assert citation["preferred-citation"]["title"] in (ROOT / "docs" / "citation.md").read_text(encoding="utf-8")


def test_the_make_targets_of_the_readme_exist():
    given = re.findall(r"^    make (\w+)", README, flags=re.MULTILINE)
    assert given == ["demo"]
    named = {*given, *re.findall(r"`make ([\w-]+)", README)}
    assert named <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
