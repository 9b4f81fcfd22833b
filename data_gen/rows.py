"""SFT rows: samples as the prompts and completions on which the two players are fine-tuned.

The text comes from ``PromptFormat`` alone, the same that writes the prompts of rollouts and evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import decode, encode, read_jsonl, write_jsonl
from reflectrl.data_gen.samples import Sample
from reflectrl.prompts import Menu, PromptFormat, labels


@dataclass(frozen=True)
class Row:
    """One example of supervised fine-tuning."""

    prompt: str
    completion: str
    task: str
    """Its id."""
    step: int
    """Actions played before."""
    negative: bool
    labels: tuple[str, ...] = ()
    """The menu's labels, one of which is the completion; empty in the reflector's rows."""


def reflector_row(sample: Sample, layout: PromptFormat) -> Row:
    """State in, reflection out."""
    prompt = layout.reflector(sample.observation, sample.past)
    completion = layout.reflection_completion(sample.reflection)
    return Row(prompt.text, completion, sample.task.id, len(sample.past), sample.negative)


def policy_row(sample: Sample, layout: PromptFormat, *, reflection: bool) -> Row:
    """State, menu and, unless it is left out for the ablation, reflection in; one label out."""
    menu = Menu(labels(layout.labels, len(sample.menu)), sample.menu)
    prompt = layout.policy(sample.observation, sample.past, sample.reflection if reflection else None, menu)
    label = menu.labels[menu.actions.index(sample.action)]
    return Row(prompt.text, label, sample.task.id, len(sample.past), sample.negative, menu.labels)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows, all or none, as ``datasets.load_dataset("json")`` reads them."""
    write_jsonl(path, (_bare(row) for row in rows))


def _bare(row: Row) -> dict[str, object]:
    """A row as an object; a reflector's has no labels."""
    return {name: value for name, value in encode(row).items() if name != "labels" or value}


def read_rows(path: Path) -> list[Row]:
    """Read a file of rows.

    Raises:
        InvalidInput: no rows, a missing or mistyped field, or a completion that is no label; names file and line.

    """
    rows = [_read(value, where) for where, value in read_jsonl(path)]
    if not rows:
        raise InvalidInput(f"{path} has no rows; run gen-data with more data.samples.")
    return rows


def _read(value: object, where: str) -> Row:
    row = decode(Row, {"labels": [], **value} if isinstance(value, dict) else value, where)
    if row.labels and row.completion not in row.labels:
        raise InvalidInput(f"{where} completes with {row.completion!r}; expected one of its labels {row.labels}.")
    return row
