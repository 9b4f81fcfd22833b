"""``Prompt``: text for a local model, divided into parts that are cut in a fixed order when it is too long."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from reflectrl.core import Image, InvalidInput
from reflectrl.prompts.menu import Lines, Menu

CUT = "[...]"
"""Mark in a prompt where text was cut out."""
MEMORY_CUE = "Memory:"
"""Beginning of the line of a memory's words, which are cut by whole windows, and windows by whole steps."""
CARRIED_CUE = "Before:"
"""Beginning of the line in which a reflector reads its reflection of the step before."""
SUCCEEDED, FAILED = "Done before:", "Tried before:"
"""Beginnings of a memory's windows on past episodes that succeeded, or did not."""
STEP_CUE = " > "
"""Beginning of a step in a memory's window."""
_MEMORY = re.compile(rf"^{MEMORY_CUE} (.*)$", re.MULTILINE)
_NEXT_WINDOW = re.compile(rf" (?=(?:{SUCCEEDED}|{FAILED}) )")


def unreadable() -> InvalidInput:
    """Return the error for a state that is shown only by images to a player that reads text."""
    return InvalidInput(
        "a state was shown as an image without text, but this player reads text; expected words in Observation.text: "
        "describe the state, or play it with a model that reads images (model.images=true)."
    )


@dataclass(frozen=True)
class Prompt:
    """Input text of one player at one step. Equal prompts are equal records, so a prompt can be a cache key."""

    head: str
    """Instructions and task, which are never cut, then the common actions of the menu, if any, cut like the tail's."""
    history: tuple[str, ...]
    """Past steps, oldest first: each a line with its action, after the text of its state where that is shown; cut
    second, by whole steps."""
    tail: str
    """Menu without the actions of the head, and cue; the ends of actions are cut last, labels never."""
    menu: Menu | None = None
    """The policy's menu; ``None`` for a reflector, which does not see one."""
    state: str = ""
    """Text of the observation, between history and tail; its middle is cut third."""
    said: str = ""
    """Words of other players, one line per role, between state and tail. The memory's line is cut first, the ends of
    the others' fourth."""
    images: tuple[Image, ...] = ()
    """Pictures of the state, which precede the text and are never cut."""

    @cached_property
    def text(self) -> str:
        """The prompt as the model reads it."""
        return "".join((self.head, *self.history, self.state, self.said, self.tail))

    def as_text(self) -> str:
        """Return the prompt for a player that reads text.

        Raises:
            InvalidInput: the prompt has pictures.
        """
        if self.images:
            raise unreadable()
        return self.text

    @property
    def lines(self) -> Lines:
        """The prompt as pieces, each with the menu label before it, if any; joined they are ``text``."""
        menu = self.menu
        listed, last = ("", "") if menu is None else (menu.head_text, menu.tail_text)
        if menu is None or not (self.head.endswith(listed) and self.tail.startswith(last)):  # rows of another layout
            return (("", self.text),)
        head, middle = self.head.removesuffix(listed), "".join((*self.history, self.state, self.said))
        return (("", head), *menu.head, ("", middle), *menu.tail, ("", self.tail.removeprefix(last)))

    @property
    def shortest(self) -> Prompt:
        """The prompt without anything that may be cut."""
        return (self, *self._forgetting())[-1]._cut()

    def fit(self, count: Callable[[Prompt], int], limit: int) -> Prompt:
        """Return the prompt, cut as little as possible so that ``count(prompt)`` is at most ``limit`` tokens.

        What a memory shows of past episodes is cut before anything of the present one: its last windows, then the steps
        of the only one left. The oldest lines of the history are cut next, then the middle of the state, the ends of
        other players' words and the ends of the menu's actions. The result depends only on the prompt, the tokenizer
        and the limit, so sampling and re-scoring read the same tokens.

        Raises:
            InvalidInput: the parts that are never cut are already too long.
        """
        lengths = []
        for prompt in self._shorter(count, limit):
            lengths.append(count(prompt))
            if lengths[-1] <= limit:
                return prompt
        what = f"with a menu of {len(self.menu.actions)} actions " if self.menu else ""
        raise InvalidInput(
            f"a prompt {what}has {min(lengths)} tokens without anything that may be cut, but the model takes {limit}; "
            "use a model with a longer context (model.max_length) or an environment with shorter texts."
        )

    def _shorter(self, count: Callable[[Prompt], int], limit: int) -> Iterator[Prompt]:
        """Yield shorter and shorter prompts, in the order in which parts are cut; the last is the shortest."""
        forgetful = self
        for forgetful in (self, *self._forgetting()):
            yield forgetful
        for start in range(len(self.history)):
            yield replace(forgetful, history=self.history[start + 1 :])
        actions = (*self.menu.actions, *self.menu.common) if self.menu else ()
        longest = max(len(self.state), len(forgetful.said), *map(len, actions))
        for cut in (
            lambda kept: forgetful._cut(state=kept, said=longest, action=longest),
            lambda kept: forgetful._cut(said=kept, action=longest),
            lambda kept: forgetful._cut(action=kept),
        ):
            yield _longest(cut, longest, count, limit)

    def _forgetting(self) -> Iterator[Prompt]:
        """Yield the prompt with less and less of a memory's words, and at last without any; nothing without a memory.

        Steps go at both ends of a window, as in a smaller one, or at its end if the past episode begins in it.
        """
        found = _MEMORY.search(self.said)
        if found is None:
            return
        first, *others = _NEXT_WINDOW.split(found[1])
        kept = [" ".join((first, *others[:number])) for number in range(len(others))][::-1]
        beginning, *steps = first.split(STEP_CUE)
        inside = beginning.endswith(CUT)
        while len(steps) > 1 + inside:
            steps = steps[inside:-1]
            kept.append(STEP_CUE.join((beginning, *steps)))
        for words in (*kept, ""):
            line = f"{MEMORY_CUE} {words}".rstrip()
            yield replace(self, said=f"{self.said[: found.start()]}{line}{self.said[found.end() :]}")

    def _cut(self, *, state: int = 0, said: int = 0, action: int = 0) -> Prompt:
        """Return the prompt without history and with at most the given numbers of characters of the other parts."""
        menu, head, tail = self.menu, self.head, self.tail
        if menu is not None and len(self.lines) > 1:  # else a row of another layout
            actions, common = (
                tuple(_shortened(each, action) for each in given) for given in (menu.actions, menu.common)
            )
            cut = replace(menu, actions=actions, common=common)
            head = head.removesuffix(menu.head_text) + cut.head_text
            tail = cut.tail_text + tail.removeprefix(menu.tail_text)
            menu = cut
        parts = [line.partition(" ") for line in self.said.splitlines(keepends=True)]
        lines = "".join(cue + space + _shortened(words, said) for cue, space, words in parts)
        text = _shortened(self.state, (state + 1) // 2, state // 2)
        return Prompt(head, (), tail, menu, text, lines, self.images)


def _longest(cut: Callable[[int], Prompt], most: int, count: Callable[[Prompt], int], limit: int) -> Prompt:
    """Return the longest ``cut(kept)`` that fits the limit, found by bisection; ``cut(0)`` if none fits."""
    kept = 0
    while most - kept > 1:
        middle = (kept + most) // 2
        if count(cut(middle)) <= limit:
            kept = middle
        else:
            most = middle
    return cut(kept)


def _shortened(text: str, first: int, last: int = 0) -> str:
    """Return the ``first`` and ``last`` characters of a text with a mark in between; a final newline is kept."""
    body = text.removesuffix("\n")
    if len(body) <= first + last + len(CUT):
        return text
    return f"{body[:first]}{CUT}{body[len(body) - last :]}{text[len(body) :]}"
