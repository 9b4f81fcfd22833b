"""Lines that are valid JSON but no records, and lines that are too long for memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from reflectrl.core import Choice, InvalidInput, WorkFailed, Written
from reflectrl.core.jsonl import MAX_LINE_BYTES, MAX_NESTING, append_jsonl, decode, read_jsonl, write_jsonl


@dataclass(frozen=True)
class Record:
    value: float
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Nested:
    choice: Choice
    inner: tuple[Record, ...] = ()
    name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    named: tuple[tuple[str, Record], ...] = ()


def read(path: Path, line: str | bytes, kind: type = Record) -> list[Any]:
    path.write_bytes((line if isinstance(line, bytes) else line.encode()) + b"\n")
    return [decode(kind, value, where) for where, value in read_jsonl(path)]


WRITTEN = {"text": "", "ids": [1], "logprobs": [], "action_start": 0, "legal": True}
CHOICE = {"index": 0, "probabilities": [], "written": WRITTEN}
DEEP = "[" * MAX_NESTING + "]" * MAX_NESTING


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '"' + "x" * MAX_LINE_BYTES + '"',
        '{"value": 1, "options": {"a": "\\ud800"}}',
        b'{"value": 1, "options": {"a": "\xff"}}',
        '{"value": NaN, "options": {}}',
        '{"value": 1e999, "options": {}}',
        "",
        "{cut",
        f'{{"value": {"9" * 400}, "options": {{}}}}',
        f'{{"value": 1, "options": {{"a": {DEEP}}}}}',
    ],
    ids=lambda line: repr(line[:40]),
)
def test_a_bad_line_is_refused_in_one_sentence(tmp_path, line):
    with pytest.raises(InvalidInput, match="line 1") as caught:
        read(tmp_path / "records.jsonl", line)
    assert len(str(caught.value)) < 500
    assert str(tmp_path / "records.jsonl") in str(caught.value)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"choice": {**CHOICE, "index": "1"}}, r"choice\.index is '1'.*int"),
        ({"choice": {**CHOICE, "written": {**WRITTEN, "ids": [1, 2.5]}}}, r"choice\.written\.ids\[1\] is 2\.5.*int"),
        ({"choice": {**CHOICE, "written": {"ids": []}}}, r"choice\.written .*'text'"),
        ({"choice": {"index": 0}}, "choice .*'probabilities'"),
        ({"inner": [{"value": 1.0, "options": {}}, {"value": 1.0}]}, r"inner\[1\] .*'options'"),
        ({"named": [["a", {"value": 1.0, "options": {}, "x": 0}]]}, r"named\[0\]\[1\] .*'x'.*value, options"),
    ],
)
def test_the_sentence_names_the_field_what_it_holds_and_what_was_expected(tmp_path, change, facts):
    good = {"choice": CHOICE, "inner": [], "name": None, "extra": {}, "named": []}
    assert read(tmp_path / "records.jsonl", json.dumps(good), Nested) == [
        Nested(Choice(0, (), Written("", (1,), (), 0)))
    ]
    with pytest.raises(InvalidInput, match=f"line 1.*{facts}"):
        read(tmp_path / "records.jsonl", json.dumps(good | change), Nested)


def test_what_was_written_comes_back_equal(tmp_path):
    path = tmp_path / "records.jsonl"
    records = [
        Nested(Choice(1, (0.1 + 0.2, -0.0)), (Record(5e-324, {"ä\u2028": [None, True, {}]}),), "a"),
        Nested(Choice(0, (), Written("a", (10**30,), (-0.5,), 0)), extra=MappingProxyType({"n": 1})),
    ]
    write_jsonl(path, records[:1])
    append_jsonl(path, records[1:])
    assert [decode(Nested, value, where) for where, value in read_jsonl(path)] == records
    write_jsonl(path, [Record(np.float64(0.5), {"a": (1, 2)})])
    assert path.read_bytes() == b'{"value": 0.5, "options": {"a": [1, 2]}}\n'
    halves = f'{{"value": 2, "options": {{"a": "\\ud83d\\ude95", "b": {DEEP[1:-1]}}}}}'  # of one character
    assert read(path, halves) == [Record(2.0, {"a": "\U0001f695", "b": json.loads(DEEP[1:-1])})]


@pytest.mark.parametrize(
    "odd", ["\ud800", float("nan"), b"a", object(), np.float32(1), 10**5000], ids=lambda odd: type(odd).__name__
)
def test_what_json_cannot_hold_is_refused_before_the_file_is_touched(tmp_path, odd):
    path = tmp_path / "records.jsonl"
    write_jsonl(path, [Record(1.0, {})])
    before = path.read_bytes()
    for write in (write_jsonl, append_jsonl):
        with pytest.raises(WorkFailed):
            write(path, [Record(3.0, {}), Record(2.0, {"a": odd})])
    assert path.read_bytes() == before
