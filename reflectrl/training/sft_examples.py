"""Rows of supervised fine-tuning in tokens: checked, counted, and never cut or dropped without a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from transformers import PreTrainedTokenizerBase

from reflectrl.core import InvalidInput
from reflectrl.models.plain_text import PlainText
from reflectrl.prompts import Menu, Prompt

Player = Literal["reflector", "policy", "both"]


class SFTRow(Protocol):
    """What a row must have, see ``reflectrl.data_gen.rows.Row``."""

    @property
    def prompt(self) -> str:
        """What the player reads."""

    @property
    def completion(self) -> str:
        """What it should answer."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The menu's labels, one of which is the completion; empty in a reflector's row."""


@dataclass(frozen=True)
class ReflectionExample:
    """A reflector's row."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    """The reflection and the end-of-text token, without which it would never stop; the only part with a loss."""

    @property
    def length(self) -> int:
        """In tokens."""
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True)
class ActionExample:
    """A policy's row: exactly one position has a loss, and no end-of-text token follows."""

    prompt: Prompt
    target: int
    """Position of the completion in the menu."""
    length: int
    """In tokens; the label is read off the prompt's last token and takes no room."""


Example = ReflectionExample | ActionExample


def encode_rows(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[SFTRow],
    *,
    player: Player,
    labels: Sequence[str],
    max_length: int,
    drop_long_rows: bool,
) -> list[Example]:
    """Rows as examples of at most ``max_length`` tokens.

    Raises:
        InvalidInput: rows of another player, of other labels, or too long; or no rows at all.

    """
    examples: list[Example] = []
    plain = PlainText(tokenizer)
    for number, row in enumerate(rows):
        _check(number, row, player, labels)
        examples.append(_encode(plain, tokenizer.eos_token_id, row))
    lengths = [example.length for example in examples if example.length > max_length]
    if lengths and not drop_long_rows:
        raise InvalidInput(
            f"{len(lengths)} of {len(rows)} {player} rows are longer than model.max_length={max_length} tokens, the "
            f"longest has {max(lengths)}: lower prompt.history, raise model.max_length, or leave them out with "
            "sft.drop_long_rows=true."
        )
    if len(lengths) == len(rows):
        raise InvalidInput(
            f"no rows are left to train the {player} on ({len(rows)} given, {len(lengths)} too long); run gen-data "
            "with more data.samples or raise model.max_length."
        )
    return [example for example in examples if example.length <= max_length]


def _encode(plain: PlainText, end_of_text: int, row: SFTRow) -> Example:
    # prompt and completion apart, as at play, where the completion is generated
    prompt = tuple(plain.prompt(row.prompt, row.labels))
    if row.labels:
        text = Prompt("", (), row.prompt, Menu(row.labels, row.labels))
        return ActionExample(text, row.labels.index(row.completion), len(prompt))
    return ReflectionExample(prompt, (*plain.completion(row.completion), end_of_text))


def _check(number: int, row: SFTRow, player: Player, labels: Sequence[str]) -> None:
    if player != "both" and bool(row.labels) != (player == "policy"):
        kind = "policy" if row.labels else "reflector"
        raise InvalidInput(
            f"row {number} of those to train the {player} is a {kind}'s; expected the rows of sft/{player}.jsonl."
        )
    if tuple(row.labels) != tuple(labels)[: len(row.labels)]:
        raise InvalidInput(
            f"row {number} has the labels {list(row.labels)} but the recipe's are {list(labels)}; run gen-data "
            "again with this prompt.labels."
        )
    if row.labels and row.completion not in row.labels:
        raise InvalidInput(
            f"row {number} has the completion {row.completion!r}, which is none of its labels {list(row.labels)}; run "
            "gen-data again."
        )
