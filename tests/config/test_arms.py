"""Arms: variants of a recipe in its own file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from command_line import reflectrl, refused

from reflectrl.config import arm_names, load_recipe, recipe_description, recipe_names, recipe_text
from reflectrl.core import InvalidInput

MINE = """
extends: number_line/nano
name: mine
seed: 3
arms:
  short:
    # a remark
    description: Few samples
    data: {samples: 10}
    rlft.lessons.0.iterations: 2
  shorter: {extends: short, data.samples: 5}
  tenth: {rlft.advantage.kind: gae}
  taxi: {extends: dangerous_taxi/nano}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MINE, encoding="utf-8")
    return path


def test_an_arm_changes_the_recipe_another_arm_or_another_recipe(mine: Path) -> None:
    assert arm_names(mine) == ["short", "shorter", "tenth", "taxi"]
    whole, short, shorter = (load_recipe(mine, arm=arm) for arm in (None, "short", "shorter"))
    assert (whole.name, short.name, shorter.name) == ("mine", "mine_short", "mine_shorter")
    assert (whole.seed, short.seed, shorter.seed) == (3, 3, 3)
    assert (short.data.samples, shorter.data.samples) == (10, 5)
    assert short.rlft is not None
    assert shorter.rlft is not None
    assert short.rlft.lessons[0].iterations == shorter.rlft.lessons[0].iterations == 2
    assert load_recipe(mine, ["data.samples=7"], arm="short").data.samples == 7, "overrides come last"
    tenth = load_recipe(mine, arm="tenth").rlft
    assert tenth is not None
    assert tenth.value is not None
    taxi = load_recipe(mine, arm="taxi")
    assert (taxi.env.name, taxi.name) == ("dangerous_taxi", "mine_taxi")


@pytest.mark.parametrize(
    ("text", "arm", "said"),
    [
        (MINE, "shrt", "no arm 'shrt'; did you mean 'short'"),
        ("extends: number_line/nano\nname: x\narms: [short]\n", None, "expected a mapping of names to changes"),
        (
            "extends: number_line/nano\nname: x\narms: {a b: {seed: 1}}\n",
            None,
            "expected a mapping of names to changes",
        ),
        ("extends: number_line/nano\nname: x\narms: {a: {sed: 1}}\n", "a", "sed: unknown key"),
        ("extends: number_line/nano\nname: x\narms: {a: {extends: b}, b: {extends: a}}\n", "a", "extends itself"),
        (
            "extends: number_line/nano\nname: x\narms: {a: {rlft.gamma.x: 1}}\n",
            "a",
            "rlft.gamma is 0.9, which has no part 'x'",
        ),
    ],
)
def test_arms_that_cannot_be_are_refused(text: str, arm: str | None, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=said):
        load_recipe(tmp_path / "x.yaml", arm=arm)


def test_an_arm_needs_a_file_and_the_name_of_one() -> None:
    with pytest.raises(InvalidInput, match="name its file, number_line/nano"):
        load_recipe("number_line/nano_ema", arm="value")
    with pytest.raises(InvalidInput, match="not a file"):
        load_recipe({"name": "x"}, arm="value")


def test_a_shipped_arm_is_also_a_recipe(tmp_path: Path) -> None:
    assert {"dangerous_taxi/nano", "dangerous_taxi/nano_no_reflection"} <= {*recipe_names()}
    named, chosen = (
        load_recipe("dangerous_taxi/nano_no_reflection"),
        load_recipe("dangerous_taxi/nano", arm="no_reflection"),
    )
    assert named == chosen
    for name in recipe_names()[::9]:
        (tmp_path / "copy.yaml").write_text(recipe_text(name), encoding="utf-8")
        assert load_recipe(tmp_path / "copy.yaml") == load_recipe(name), name


def test_a_description_is_found_without_loading_the_recipe() -> None:
    assert [name for name in recipe_names() if recipe_description(name) != load_recipe(name).description] == []


def test_the_commands_take_arms(mine: Path, tmp_path: Path) -> None:
    shown = yaml.safe_load(reflectrl("recipes", "show", mine, "--arm", "short").out)
    assert shown["data"]["samples"] == 10
    given = ("run", "--recipe", mine, "--runs", tmp_path / "runs")
    assert "leave one out" in refused(*given, "--arm", "short", "--arms", "all")
    assert "no arm 'long'" in refused(*given, "--arms", "long")
    assert "without --recipe" in refused("run", "--runs", tmp_path / "runs", "--arms", "all")
    done = reflectrl("gen-data", "--recipe", mine, "--arm", "shorter", "--runs", tmp_path / "runs")
    assert done.code == 0, done.err
    assert (tmp_path / "runs" / "mine_shorter").is_dir()
