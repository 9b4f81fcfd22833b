"""``PlainText``: tokenizes prompts and completions, in the same way in training and at play."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from reflectrl.models.pictures import Pictures
from reflectrl.models.tokenizer import are_added
from reflectrl.prompts import Prompt
from reflectrl.prompts.menu import Lines, text_of
from reflectrl.prompts.prompt import unreadable


class PlainText:
    """Tokenizes prompts and completions so that no text is read as a special token.

    Observations, actions and reflections may contain ``</s>`` or ``<|3|>``, for example from files that an agent reads.
    Only the labels that a menu shows, which are our own, become single tokens; all other text is tokenized without
    special tokens. Pictures come first, as ``pictures`` reads them.
    """

    def __init__(self, tokenizer: Any, pictures: Pictures | None = None) -> None:
        self._tokenizer = tokenizer
        self._pictures = pictures
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {number for number, token in added.items() if token.special}
        self._special = special - {getattr(tokenizer, "unk_token_id", None)}
        self._around = list(tokenizer("")["input_ids"])

    def prompt(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt, with the special tokens that begin every text."""
        return self.prompts([prompt])[0]

    def prompts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Return the token ids of each prompt; the tokenizer is called once, or twice where there are labels.

        Raises:
            InvalidInput: a prompt with pictures, for a model that reads text.

        """
        parts = [_parted(prompt) for prompt in prompts]
        heads = self._plain([head for head, _ in parts])
        tails = iter(self._labelled([lines for _, lines in parts if lines]))
        words = [head + next(tails) if lines else head for head, (_, lines) in zip(heads, parts, strict=True)]
        return [self._with_images(prompt, ids) for prompt, ids in zip(prompts, words, strict=True)]

    def _with_images(self, prompt: Prompt, ids: list[int]) -> list[int]:
        """Insert the tokens of a prompt's pictures, if any, after the special tokens that begin every text."""
        if not prompt.images:
            return ids
        if self._pictures is None:
            raise unreadable()
        opening = len(self._around) if ids[: len(self._around)] == self._around else 0
        shown = itertools.chain.from_iterable(map(self._pictures.tokens, prompt.images))
        return [*ids[:opening], *shown, *ids[opening:]]

    def text(self, text: str) -> list[int]:
        """Return the token ids of a text without labels, with the special tokens that begin every text."""
        return self._plain([text])[0]

    def completion(self, text: str) -> list[int]:
        """Return the token ids of a text that follows a prompt."""
        return self._plain([text], add_special_tokens=False)[0]

    def _labelled(self, parts: Sequence[Lines]) -> list[list[int]]:
        read = self._read([text_of(lines) for lines in parts], add_special_tokens=False)
        return [self._only_labels(ids, lines) for ids, lines in zip(read, parts, strict=True)]

    def _only_labels(self, ids: list[int], lines: Lines) -> list[int]:
        ours = [self._tokenizer.convert_tokens_to_ids(label) for label, _ in lines if label]
        if [number for number in ids if number in self._special] == ours:
            return ids
        # a text holds a special token
        after: list[str] = []
        for label, text in lines:
            after.append(text if label else after.pop() + text)
        return [number for label, text in zip(ours, after, strict=True) for number in (label, *self.completion(text))]

    def _plain(self, texts: Sequence[str], **options: Any) -> list[list[int]]:
        read = self._read(texts, split_special_tokens=True, **options)
        return [self._without_special(text, ids, **options) for text, ids in zip(texts, read, strict=True)]

    def _read(self, texts: Sequence[str], **options: Any) -> list[list[int]]:
        return [list(ids) for ids in self._tokenizer([*texts], **options)["input_ids"]] if texts else []

    def _without_special(self, text: str, ids: list[int], **options: Any) -> list[int]:
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


def _parted(prompt: Prompt) -> tuple[str, Lines]:
    """Split a prompt into its text up to the first label that is a single token, and the lines from there on."""
    lines = prompt.lines if prompt.menu and are_added(prompt.menu.all_labels) else ()
    first = next((number for number, (label, _) in enumerate(lines) if label), None)
    return (prompt.text, ()) if first is None else (text_of(lines[:first]), lines[first:])
