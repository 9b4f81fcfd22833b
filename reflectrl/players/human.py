"""``HumanPolicy``: a person at the keyboard plays, shown exactly the prompt that a model would read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from reflectrl.core import Decision, InvalidInput, ReflectRLError, nearest
from reflectrl.prompts import Menu, Prompt

QUIT = "quit"


class PlayerLeft(ReflectRLError):
    """The person typed ``quit`` or closed the input: no fault, but the episode has no end."""

    exit_code = 130


class HumanPolicy:
    """Asks for each action in turn, until the answer names one.

    Args:
        read: returns one line, as ``input`` does; ``EOFError`` when there is none left.
        out: where prompts are shown; standard output if absent.

    """

    wants_hints = False

    def __init__(self, read: Callable[[], str] = input, out: TextIO | None = None) -> None:
        self._read = read
        self._out = sys.stdout if out is None else out
        self._head = ""

    def act(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002 - a person draws
        """One decision a prompt, asked for one after the other.

        Raises:
            PlayerLeft: the person typed ``quit``, or there is no more input.

        """
        return [self._decide(prompt) for prompt in prompts]

    def _decide(self, prompt: Prompt) -> Decision:
        menu = prompt.menu
        if menu is None:
            raise InvalidInput("a policy was given a reflector's prompt; expected one with a menu.")
        self._show(prompt.text.removeprefix(prompt.head) if prompt.head == self._head else prompt.text)
        self._head = prompt.head  # the rules are read once
        while True:
            answer = self._line()
            found = _named(answer, menu)
            if not found and answer.casefold() == QUIT:
                raise PlayerLeft(f"{QUIT} was typed; this episode is not finished.")
            found = found or _begun(answer, menu)
            if len(found) == 1:
                return Decision(found[0], menu.actions[found[0]], logprob=0.0, entropy=0.0)
            self._show(f"{_complaint(answer, found, menu)} Or type {QUIT}.\n")

    def _line(self) -> str:
        try:
            return " ".join(self._read().split())
        except EOFError:
            raise PlayerLeft("the input ended; this episode is not finished.") from None

    def _show(self, text: str) -> None:
        # a state may quote a file, whose control characters are not meant for the player's terminal
        self._out.write("".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text))
        self._out.flush()


def _named(answer: str, menu: Menu) -> list[int]:
    """Positions that the whole answer names; labels go before actions, and the exact case before any other."""
    for fold in (str, str.casefold):
        for names in (menu.labels, menu.actions):
            found = [index for index, name in enumerate(names) if fold(name) == fold(answer)]
            if found:
                return found
    return []


def _begun(answer: str, menu: Menu) -> list[int]:
    """Positions of the actions that the answer begins."""
    start = answer.casefold()
    return [index for index, action in enumerate(menu.actions) if start and action.casefold().startswith(start)]


def _complaint(answer: str, found: Sequence[int], menu: Menu) -> str:
    if found:
        several = ", ".join(menu.actions[index] for index in found)
        return f"{answer!r} may be any of: {several}. Type more of it, or a label."
    if not answer:
        return "Nothing was typed. Type the label of an action."
    return f"{answer!r} is no label or action here; {nearest(answer, menu.actions)} Type a label."
