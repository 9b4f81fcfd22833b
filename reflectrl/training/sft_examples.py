"""Rows of supervised fine-tuning in tokens: checked, and cut exactly as the same prompts are cut at play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from transformers import PreTrainedTokenizerBase

from reflectrl.core import InvalidInput
from reflectrl.models.encode import PromptEncoder
from reflectrl.models.plain_text import PlainText
from reflectrl.prompts import Prompt

Player = Literal["reflector", "policy", "both"]


class SFTRow(Protocol):
    """The fields of a row that training reads; ``reflectrl.data_gen.rows.Row`` has them."""

    @property
    def player(self) -> Literal["reflector", "policy"]:
        """Player that is trained on the row."""

    @property
    def prompt(self) -> Prompt:
        """Prompt in parts; a policy's has a menu."""

    @property
    def completion(self) -> str:
        """Text that the player should answer; in a policy's row, a label of the menu."""


@dataclass(frozen=True)
class ReflectionExample:
    """A reflector's row."""

    prompt: tuple[int, ...]
    """Token ids of the prompt, cut to leave room for a reflection."""
    completion: tuple[int, ...]
    """The reflection and the end-of-text token, without which it would never stop; the only part with a loss."""


@dataclass(frozen=True)
class ActionExample:
    """A policy's row: exactly one position has a loss, and no end-of-text token follows."""

    prompt: Prompt
    """Prompt, which the encoder cuts to the model's length as it does at play."""
    target: int
    """Position of the completion among the legal actions."""


Example = ReflectionExample | ActionExample


def encode_rows(
    tokenizer: PreTrainedTokenizerBase,
    encoder: PromptEncoder,
    rows: Sequence[SFTRow],
    *,
    player: Player,
    labels: Sequence[str],
    max_new_tokens: int,
    drop_long_rows: bool,
) -> list[Example]:
    """Encode rows; prompts that are too long lose the parts that they would lose at play.

    Args:
        tokenizer: tokenizer of the player.
        encoder: encoder of the player's prompts, with the model's maximum length.
        rows: rows to encode.
        player: player that is trained, or "both".
        labels: all menu labels of the recipe.
        max_new_tokens: length of a reflection at play, in tokens, for which a reflector's prompt leaves room.
        drop_long_rows: leave out rows that do not fit even when cut, instead of refusing them.

    Raises:
        InvalidInput: rows of another player, of other labels, or that do not fit; or no rows at all.

    """
    examples: list[Example] = []
    too_long: list[InvalidInput] = []
    plain = PlainText(tokenizer)
    for number, row in enumerate(rows):
        _check(number, row, player, labels)
        try:
            if row.player == "policy":
                encoder.tokens(row.prompt)
                examples.append(ActionExample(row.prompt, labels_of(row.prompt).index(row.completion)))
            else:
                completion = (*plain.completion(row.completion), tokenizer.eos_token_id)
                prompt = encoder.tokens(row.prompt, reserve=max(max_new_tokens, len(completion)))
                examples.append(ReflectionExample(prompt, completion))
        except InvalidInput as error:
            too_long.append(error)
    if too_long and not drop_long_rows:
        raise InvalidInput(
            f"{len(too_long)} of {len(rows)} {player} rows do not fit model.max_length={encoder.max_length}, the first "
            f"of them because {too_long[0]} Raise model.max_length, or leave them out with sft.drop_long_rows=true."
        )
    if not examples:
        raise InvalidInput(
            f"no rows are left to train the {player} on ({len(rows)} given, {len(too_long)} too long); run gen-data "
            "with more data.samples or raise model.max_length."
        )
    return examples


def labels_of(prompt: Prompt) -> tuple[str, ...]:
    """Return the labels of a prompt's legal actions; empty for a reflector's."""
    return prompt.menu.labels if prompt.menu else ()


def _check(number: int, row: SFTRow, player: Player, labels: Sequence[str]) -> None:
    if player not in ("both", row.player):
        raise InvalidInput(
            f"row {number} of those to train the {player} is a row of the {row.player}; expected the rows of "
            f"sft/{player}.jsonl."
        )
    given = row.prompt.menu.all_labels if row.prompt.menu else ()
    if given != tuple(labels)[: len(given)]:
        raise InvalidInput(
            f"row {number} has the labels {list(given)} but the recipe's are {list(labels)}; run gen-data again with "
            "this prompt.labels."
        )
    if row.player == "policy" and row.completion not in (legal := labels_of(row.prompt)):
        raise InvalidInput(
            f"row {number} has the completion {row.completion!r}, which is none of its labels {list(legal)}; run "
            "gen-data again."
        )
