from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import datasets
import pytest

from reflectrl.core import InvalidInput, Observation, Task
from reflectrl.core.jsonl import encode
from reflectrl.data_gen.rows import (
    Sample,
    policy_row,
    read_rows,
    reflector_row,
    with_misread_states,
    with_unreliable_reflections,
    write_rows,
)
from reflectrl.prompts import PromptFormat

SAMPLE = Sample(
    task=Task("a"),
    seed=1,
    past=("wait",),
    observation=Observation("A hall.", ("go east", "go west")),
    menu=("go west", "go east"),
    reflection="Good.",
    action="go east",
    negative=True,
)
LAYOUT = PromptFormat(labels="letters")
REFLECTOR = reflector_row(SAMPLE, LAYOUT, {})
POLICY = policy_row(SAMPLE, LAYOUT, {"reflector": SAMPLE.reflection})
MENU = LAYOUT.menu_of(SAMPLE.observation)


def test_a_sample_becomes_a_row_for_each_player() -> None:
    assert (REFLECTOR.player, REFLECTOR.prompt.text) == ("reflector", "Past: wait\nA hall.\nReflection:")
    assert (REFLECTOR.completion, REFLECTOR.task, REFLECTOR.step, REFLECTOR.negative) == (" Good.", "a", 1, True)
    menu = "A. go west\nB. go east\nAction:\n"
    assert POLICY.prompt.text == f"Past: wait\nA hall.\nReflection: Good.\n{menu}"
    assert (POLICY.player, POLICY.completion) == ("policy", "B")
    assert policy_row(SAMPLE, LAYOUT, {}).prompt.text == f"Past: wait\nA hall.\n{menu}"
    listed = replace(SAMPLE, observation=replace(SAMPLE.observation, common=("go up", "go east")))
    row = policy_row(listed, replace(LAYOUT, menu="first"), {})
    assert row.prompt.text == "A. go up\nB. go east\nPast: wait\nA hall.\nC. go west\nNot now: A\nAction:\n"
    assert row.completion == "B"


def test_the_thought_to_learn_is_the_reflection() -> None:
    thinks = replace(LAYOUT, action_mode="thought_choice")
    assert policy_row(SAMPLE, thinks, {}).thought == " Good."
    beside_a_reflector = policy_row(SAMPLE, thinks, {"reflector": SAMPLE.reflection})
    assert (beside_a_reflector.thought, beside_a_reflector.prompt.said) == (" Good.", "Reflection: Good.\n")


def test_some_reflections_are_blanked_and_as_many_are_another_samples() -> None:
    samples = [replace(SAMPLE, reflection=f"Number {number}.") for number in range(1000)]
    assert with_unreliable_reflections(samples, 0.0, random.Random(0)) == samples
    found = with_unreliable_reflections(samples, 0.4, random.Random(0))
    assert [replace(sample, reflection="") for sample in found] == [replace(SAMPLE, reflection="")] * 1000
    kinds = Counter(
        "own" if after == before else "other" if after.reflection else "blank"
        for before, after in zip(samples, found, strict=True)
    )
    assert kinds["blank"] == pytest.approx(200, abs=60)
    assert kinds["other"] == pytest.approx(200, abs=60)


def test_a_misread_state_has_thought_and_action_of_another_if_that_action_is_in_its_menu() -> None:
    west = replace(SAMPLE, reflection="I see W.", action="go west")
    fly = replace(SAMPLE, reflection="I see F.", action="fly", menu=("fly",))
    samples = [SAMPLE, west, fly] * 400
    assert with_misread_states(samples, 0.0, random.Random(0)) == samples
    found = with_misread_states(samples, 0.6, random.Random(0))
    assert [each.observation for each in found] == [each.observation for each in samples]
    assert found[2::3] == samples[2::3]  # its menu has no other sample's action
    own = sum(after == before for before, after in zip(samples[::3], found[::3], strict=True))
    assert own == pytest.approx(400 * (0.4 + 0.6 * 2 / 3), abs=50)  # another third of the draws cannot be done here
    assert {(each.reflection, each.action) for each in found[::3]} == {
        (each.reflection, each.action) for each in (SAMPLE, west)
    }


def test_rows_are_read_as_written_by_the_library_and_by_datasets(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [REFLECTOR, POLICY])
    assert read_rows(tmp_path / "rows.jsonl") == [REFLECTOR, POLICY]
    write_rows(tmp_path / "rows.jsonl", [POLICY, POLICY])
    loaded = datasets.load_dataset(
        "json", data_files=str(tmp_path / "rows.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert (loaded[1]["player"], loaded[1]["completion"], loaded[1]["step"]) == ("policy", "B", 1)
    assert loaded[1]["prompt"]["history"] == ["Past: wait\n"]
    menu = {"labels": ["A", "B"], "actions": ["go west", "go east"], "common": [], "common_labels": []}
    assert loaded[1]["prompt"]["menu"] == menu


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"player": "referee"}, "line 2, player is 'referee'"),
        ({"player": "reflector"}, "line 2 .*reflector"),
        ({"completion": "C"}, "line 2 .*'C'"),
        ({"prompt": {**encode(POLICY.prompt), "menu": encode(replace(MENU, labels=("A",)))}}, "line 2 .*labels"),
        ({"colour": "red"}, "line 2 .*'colour'"),
        (None, "rows.jsonl"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, object] | None, fact: str) -> None:
    file = tmp_path / "rows.jsonl"
    write_rows(file, [POLICY, POLICY])
    good = file.read_text(encoding="utf-8").splitlines()
    bad = "" if change is None else f"{good[0]}\n{json.dumps({**json.loads(good[1]), **change})}\n"
    file.write_text(bad, encoding="utf-8")
    with pytest.raises(InvalidInput, match=fact):
        read_rows(file)
