"""Every command that the README shows exists, with a recipe that exists and overrides that the schema takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from reflectrl.cli.app import app
from reflectrl.config import check_recipe, load_recipe, recipe_text

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8") if (ROOT / "README.md").exists() else ""
FENCE = re.compile(r"^```(?:bash|sh|shell|console|text)?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def lines(program: str) -> list[str]:
    """The lines of the README's code blocks, indented or fenced, that run ``program``."""
    indented = [line for line in FENCE.sub("", README).splitlines() if line.startswith("    ")]
    fenced = "\n".join(FENCE.findall(README)).replace("\\\n", " ").splitlines()
    found = [line.strip().removeprefix("$ ") for line in indented + fenced]
    return [line for line in found if re.match(rf"(\S*/)?{program}\s", line)]


def test_the_readme_begins_with_the_demo_and_the_tests_and_its_make_targets_exist() -> None:
    given = [shlex.split(line, comments=True)[1:] for line in lines("make")]
    assert given[:2] == [["demo"], ["test"]]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {word for words in given for word in words if "=" not in word} <= targets
    assert lines("reflectrl")


@pytest.mark.parametrize("line", lines("reflectrl"))
def test_a_readme_command_parses(line: str) -> None:
    command, words = typer.main.get_command(app), shlex.split(line, comments=True)[1:]
    while (commands := getattr(command, "commands", None)) and words[0] not in ("--help", "--version"):
        assert words[0] in commands, f"{words[0]!r} is no command"
        command = commands[words.pop(0)]
    if words[:1] in (["--help"], ["--version"]):
        return
    given = command.make_context("reflectrl", words).params
    recipe = given.get("recipe") or given.get("name", "")
    if "overrides" in given and not recipe.endswith(".yaml"):  # a reader's own file is not here
        check_recipe(load_recipe(recipe, given["overrides"] or ()))
    elif command.name == "cp":
        recipe_text(given["name"])
