"""The token ids of prompts, and what a saved player read of them; nothing here loads torch, which takes seconds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from reflectrl.core import InvalidInput
from reflectrl.core.text import first_line
from reflectrl.lm.chat import Turn, saved_turn, turn_of
from reflectrl.lm.safe_files import check_folder
from reflectrl.lm.tokenizer import are_added
from reflectrl.prompts import Prompt
from reflectrl.prompts.format import AFTER_THOUGHT, ActionMode
from reflectrl.prompts.menu import Lines, text_of
from reflectrl.prompts.prompt import unreadable

if TYPE_CHECKING:
    from reflectrl.lm.pictures import Pictures


class PlainText:
    """Tokenizes prompts and completions so that no text is read as a special token.

    Observations, actions and reflections may contain ``</s>`` or ``<|3|>``, for example from files that an agent reads.
    Only the labels that a menu shows, which are our own, become single tokens; all other text is tokenized without
    special tokens. Pictures come first, as ``pictures`` reads them. If the tokenizer has a chat template, a prompt is
    the user's turn, without spaces at its end, and what is answered begins the assistant's; the template is not run if
    what it puts around a prompt is given as ``turn``.

    Raises:
        InvalidInput: the chat template cannot be used.
    """

    def __init__(self, tokenizer: Any, pictures: Pictures | None = None, turn: Turn | None = None) -> None:
        self._tokenizer = tokenizer
        self._pictures = pictures
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {number for number, token in added.items() if token.special}
        self._special = special - {getattr(tokenizer, "unk_token_id", None)}
        self._around = list(tokenizer("")["input_ids"])
        turn = turn or turn_of(tokenizer)
        self._turn = None if turn is None else (self._marks(turn.before), self._marks(turn.after))
        self._bare = {} if turn is None else {"add_special_tokens": False}  # the template has those

    def prompt(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt, with the special tokens that begin every text."""
        return self.prompts([prompt])[0]

    def prompts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Return the token ids of each prompt; the tokenizer is called once, or twice where there are labels.

        Raises:
            InvalidInput: a prompt with pictures, for a model that reads text.
        """
        parts = [_parted(prompt) if self._turn is None else _trimmed(*_parted(prompt)) for prompt in prompts]
        heads = self._plain([head for head, _ in parts], **self._bare)
        tails = iter(self._labelled([lines for _, lines in parts if lines]))
        words = [head + next(tails) if lines else head for head, (_, lines) in zip(heads, parts, strict=True)]
        return [self._framed(prompt, ids) for prompt, ids in zip(prompts, words, strict=True)]

    def _framed(self, prompt: Prompt, ids: list[int]) -> list[int]:
        """Insert the tokens of a prompt's pictures, if any, before its text, and put the user's turn around both."""
        opening = len(self._around) if self._turn is None and ids[: len(self._around)] == self._around else 0
        before, after = self._turn or (ids[:opening], [])
        shown: Iterable[int] = ()
        if prompt.images:
            if self._pictures is None:
                raise unreadable()
            shown = itertools.chain.from_iterable(map(self._pictures.tokens, prompt.images))
        return [*before, *shown, *ids[opening:], *after]

    def fitted(self, prompt: Prompt, limit: int) -> Prompt:
        """Return a prompt, cut to have at most ``limit`` tokens; see ``Prompt.fit``, which raises where it cannot."""
        return prompt.fit(lambda shorter: len(self.prompt(shorter)), limit)

    def text(self, text: str) -> list[int]:
        """Return the token ids of a text without labels, with the special tokens that begin every text."""
        return self._plain([text])[0]

    def completion(self, text: str) -> list[int]:
        """Return the token ids of a text that follows others."""
        return self._plain([text], add_special_tokens=False)[0]

    def answer(self, text: str) -> list[int]:
        """Return the token ids of a text that follows a prompt; the assistant's turn does not begin with a space."""
        return self.completion(text if self._turn is None else text.lstrip())

    def _marks(self, text: str) -> list[int]:
        """Return the token ids of a part of the chat template, special tokens included."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

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


def _trimmed(head: str, lines: Lines) -> tuple[str, Lines]:
    if not lines:
        return head.rstrip(), ()
    *others, (label, text) = lines
    return head, (*others, (label, text.rstrip()))


class Read(NamedTuple):
    """What a player read of a prompt."""

    prompt: Prompt
    """The prompt, cut where it was too long."""
    ids: tuple[int, ...]
    """Its token ids, with those that a chat template puts around it."""


class SavedReader:
    """Reads prompts as the policy in a folder did, with its tokenizer alone.

    Raises:
        InvalidInput: the folder has no ``tokenizer.json`` that can be loaded, a file that is not read (see
            ``check_folder``), or a chat template of which ``saved_turn`` knows nothing.
    """

    def __init__(self, folder: Path) -> None:
        try:
            check_folder(folder)
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except InvalidInput:
            raise
        except Exception as error:  # noqa: BLE001 - damaged files raise errors of any kind
            raise InvalidInput(
                f"{folder} has no tokenizer.json that can be loaded ({first_line(error)}); expected the folder of a "
                "policy that was saved whole."
            ) from error
        self._plain = PlainText(self._tokenizer, turn=saved_turn(self._tokenizer))
        self._texts: dict[int, str] = {}

    def read(self, prompts: Sequence[Prompt], max_length: int, mode: ActionMode, max_new_tokens: int) -> Iterator[Read]:
        """Yield what the policy read of each prompt; to cut one, it is tokenized many times.

        Args:
            prompts: prompts with menus, without pictures.
            max_length: maximum number of tokens of a prompt and of the text after it.
            mode: form of the policy's answer.
            max_new_tokens: maximum number of tokens of a text that it writes.

        Raises:
            InvalidInput: a prompt with pictures, or one that does not fit even without anything that may be cut.
        """
        limit = max_length
        if mode != "enumerated":
            limit -= max_new_tokens + (len(self._plain.completion(AFTER_THOUGHT)) if mode == "thought_choice" else 0)
        for prompt, ids in zip(prompts, self._plain.prompts(prompts), strict=True):
            if len(ids) <= limit:
                yield Read(prompt, tuple(ids))
            else:
                cut = self._plain.fitted(prompt, limit)
                yield Read(cut, tuple(self._plain.prompt(cut)))

    def text(self, number: int) -> str:
        """Return the text of a token in the middle of others; a part of a character is U+FFFD."""
        if number not in self._texts:
            before = self._plain.completion(".")[:1]  # many tokenizers drop a space at the beginning
            whole, first = (self._tokenizer.decode(ids) for ids in ([*before, number], before))
            self._texts[number] = whole.removeprefix(first)
        return self._texts[number]
