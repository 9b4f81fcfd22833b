"""Lines that JSON allows and no record holds, and lines that no memory should."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.jsonl import DEEPEST, LONGEST, decode, read_jsonl, write_jsonl


@dataclass(frozen=True)
class Record:
    value: float
    options: Mapping[str, Any]


def read(path: Path, line: str) -> list[Record]:
    path.write_text(f"{line}\n", encoding="utf-8")
    return [decode(Record, value, where) for where, value in read_jsonl(path)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[" * 100_000, r"line 1 is not JSON \(it nests too deep\); remove the line"),
        ('"' + "x" * LONGEST + '"', r"line 1 is not JSON \(it is longer than 33,554,432 characters\)"),
        ("9" * 5000, r"line 1 is not JSON \(Exceeds the limit"),
        ('{"value": 1, "options": {"a": "\\ud800"}}', r"line 1 is not JSON \(it holds half of a character\)"),
        ('\ufeff{"value": 1, "options": {}}', "line 1 is not JSON"),
        ('{"value": NaN, "options": {}}', "line 1, value is nan; expected a number that is finite"),
        ('{"value": 1e999, "options": {}}', "line 1, value is inf; expected a number that is finite"),
        (f'{{"value": {"9" * 400}, "options": {{}}}}', "line 1, value is 999.*; expected a number that is finite"),
        (
            f'{{"value": 1, "options": {{"a": {"[" * DEEPEST}{"]" * DEEPEST}}}}}',
            "line 1, options is .*; expected at most 50 lists and objects inside each other",
        ),
    ],
)
def test_lines_that_no_record_is_written_as_are_refused(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        read(tmp_path / "records.jsonl", line)
    assert len(str(caught.value)) < 500


def test_a_whole_character_may_be_written_in_halves_and_options_nest_up_to_the_limit(tmp_path: Path) -> None:
    deep = "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1)
    line = f'{{"value": 2, "options": {{"a": "\\ud83d\\ude95", "b": {deep}}}}}'
    assert read(tmp_path / "records.jsonl", line) == [Record(2.0, {"a": "\U0001f695", "b": json.loads(deep)})]


def test_half_of_a_character_is_refused_before_the_file_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_jsonl(path, [Record(1.0, {})])
    with pytest.raises(WorkFailed, match="a value that JSON cannot hold"):
        write_jsonl(path, [Record(2.0, {"a": "\ud800"})])
    assert len(list(read_jsonl(path))) == 1
