from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from reflectrl.core import InvalidInput, Observation, Task
from reflectrl.data_gen.rows import Row, policy_row, read_rows, reflector_row, write_rows
from reflectrl.data_gen.samples import Sample
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
REFLECTOR = Row("Past: wait\nA hall.\nReflection:", " Good.", "a", 1, negative=True)
POLICY = Row("Past: wait\nA hall.\nReflection: Good.\nA. go west\nB. go east\nAction:\n", "B", "a", 1, True, ("A", "B"))


def test_a_sample_becomes_a_row_for_each_player() -> None:
    assert reflector_row(SAMPLE, LAYOUT) == REFLECTOR
    assert policy_row(SAMPLE, LAYOUT, reflection=True) == POLICY
    assert (
        policy_row(SAMPLE, LAYOUT, reflection=False).prompt == "Past: wait\nA hall.\nA. go west\nB. go east\nAction:\n"
    )


@pytest.mark.parametrize("row", [REFLECTOR, POLICY])
def test_rows_are_read_as_written(tmp_path: Path, row: Row) -> None:
    write_rows(tmp_path / "rows.jsonl", [row, row])
    assert read_rows(tmp_path / "rows.jsonl") == [row, row]


def test_datasets_loads_the_rows(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [POLICY, POLICY])
    loaded = datasets.load_dataset(
        "json", data_files=str(tmp_path / "rows.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded[1] == {
        "prompt": POLICY.prompt,
        "completion": "B",
        "task": "a",
        "step": 1,
        "negative": True,
        "labels": ["A", "B"],
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": None}, "line 2, prompt is None; .*str"),
        ({"step": 1.5}, "line 2, step is 1.5; .*int"),
        ({"labels": "AB"}, "line 2, labels is 'AB'"),
        ({"completion": "C"}, "line 2 completes with 'C'; expected one of its labels"),
        ({"colour": "red"}, "line 2 has the unknown field 'colour'"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, object], sentence: str) -> None:
    file = tmp_path / "rows.jsonl"
    write_rows(file, [POLICY, POLICY])
    good = file.read_text(encoding="utf-8").splitlines()
    file.write_text(f"{good[0]}\n{json.dumps({**json.loads(good[1]), **change})}\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=sentence):
        read_rows(file)


def test_a_row_that_lacks_a_field_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "completion": "b"}\n', encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"rows.jsonl, line 1 lacks field 'task'"):
        read_rows(file)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(InvalidInput, match="has no rows"):
        read_rows(tmp_path / "rows.jsonl")
