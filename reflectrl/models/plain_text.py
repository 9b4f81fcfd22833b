"""``PlainText``: prompts and completions as tokens, in training as at play."""

from __future__ import annotations

import itertools
from typing import Any

from reflectrl.models.tokenizer import are_added
from reflectrl.prompts import Prompt
from reflectrl.prompts.menu import Lines, text_of


class PlainText:
    """Tokenizes prompts and completions so that no text can pass for a special token.

    Observations, actions and reflections may hold ``</s>`` or ``<|3|>``: files that an agent reads do. Only the labels
    that a menu shows, which are our own, are single tokens; any other text has the tokens that it has without special
    ones.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {number for number, token in added.items() if token.special}
        self._special = special - {getattr(tokenizer, "unk_token_id", None)}
        self._around = list(tokenizer("")["input_ids"])

    def prompt(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt, with those that open every text."""
        lines = prompt.lines if prompt.menu and are_added(prompt.menu.all_labels) else ()
        first = next((number for number, (label, _) in enumerate(lines) if label), None)
        if first is None:
            return self.text(prompt.text)
        return self.text(text_of(lines[:first])) + self._labelled(lines[first:])

    def text(self, text: str) -> list[int]:
        """Return the token ids of a text without labels, with those that open every text."""
        return self._plain(text)

    def completion(self, text: str) -> list[int]:
        """Return the token ids of a text that follows a prompt."""
        return self._plain(text, add_special_tokens=False)

    def _labelled(self, lines: Lines) -> list[int]:
        ids = list(self._tokenizer(text_of(lines), add_special_tokens=False)["input_ids"])
        ours = [self._tokenizer.convert_tokens_to_ids(label) for label, _ in lines if label]
        if [number for number in ids if number in self._special] == ours:
            return ids
        # a text holds a special token
        after: list[str] = []
        for label, text in lines:
            after.append(text if label else after.pop() + text)
        return [number for label, text in zip(ours, after, strict=True) for number in (label, *self.completion(text))]

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
