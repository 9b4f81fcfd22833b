"""``PlainText``: prompts and completions as tokens, in training as at play."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from reflectrl.models.tokenizer import are_added
from reflectrl.prompts.format import ACTION_CUE


class PlainText:
    """Tokenizes prompts and completions so that no text can pass for a special token.

    Observations, actions and reflections may hold ``</s>`` or ``<|3|>``: files that an agent reads do. Only the labels
    at the beginnings of a menu's lines, which are our own, are single tokens; any other text has the tokens that it
    has without special ones.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {number for number, token in added.items() if token.special}
        self._special = special - {getattr(tokenizer, "unk_token_id", None)}
        self._around = list(tokenizer("")["input_ids"])

    def prompt(self, text: str, labels: Sequence[str] = ()) -> list[int]:
        """Return the token ids of a prompt that ends in a menu with ``labels``, with those that open every text."""
        if not are_added(labels):
            return self._plain(text)
        lines = text.split("\n")[-len(labels) - 2 : -2]  # the last two: the cue, and nothing
        start = len(text) - len("\n".join([*lines, ACTION_CUE]))
        if not all(map(str.startswith, lines, labels)):  # rows of another layout
            return self._plain(text)
        return self._plain(text[:start]) + self._menu(text[start:], lines, labels)

    def completion(self, text: str) -> list[int]:
        """Return the token ids of a text that follows a prompt."""
        return self._plain(text, add_special_tokens=False)

    def _menu(self, text: str, lines: Sequence[str], labels: Sequence[str]) -> list[int]:
        ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        ours = [self._tokenizer.convert_tokens_to_ids(label) for label in labels]
        if [number for number in ids if number in self._special] == ours:
            return ids
        # an action holds a special token
        rest = [line.removeprefix(label) + "\n" for line, label in zip(lines, labels, strict=True)]
        rest[-1] += ACTION_CUE
        return [number for label, part in zip(ours, rest, strict=True) for number in (label, *self.completion(part))]

    def _plain(self, text: str, **options: Any) -> list[int]:
        ids = list(self._tokenizer(text, split_special_tokens=True, **options)["input_ids"])
        if self._special.isdisjoint(ids[len(self._around) :] if ids[: len(self._around)] == self._around else ids):
            return ids
        # the vocabularies of unigram models hold special tokens as words, too: those are spelled
        read = self._tokenizer(text, split_special_tokens=True, return_special_tokens_mask=True, **options)
        spelled = (
            self._spelled(number) if number in self._special and not around else [number]
            for number, around in zip(ids, read["special_tokens_mask"], strict=True)
        )
        return [*itertools.chain.from_iterable(spelled)]

    def _spelled(self, number: int) -> list[int]:
        letters: list[int] = self._tokenizer.convert_tokens_to_ids([*self._tokenizer.convert_ids_to_tokens(number)])
        return letters
