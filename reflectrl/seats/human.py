"""Human players at the keyboard, who act and may reflect; they are shown exactly the prompts that models read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from reflectrl.core import NO_MENU, Choice, Decision, Utterance, nearest
from reflectrl.core.errors import PlayerLeft
from reflectrl.core.text import visible
from reflectrl.prompts import Menu
from reflectrl.prompts.format import REFLECTION_CUE
from reflectrl.prompts.players import ReadsHints
from reflectrl.prompts.views import MenuView, View

QUIT = "quit"
_QUIT_TYPED = f"{QUIT} was typed; this episode is not finished."


class _Console:
    """Keyboard and screen; text that the screen already shows is not repeated."""

    def __init__(self, read: Callable[[], str], out: TextIO | None) -> None:
        self._read = read
        self._out = sys.stdout if out is None else out
        self._head = ""
        self._seen = ""

    def show_prompt(self, head: str, text: str, *, goes_on: bool = False) -> None:
        """Show the new part of ``text``, whose start is the rules ``head``; ``goes_on`` if the next text extends it."""
        known = self._seen if self._seen and text.startswith(self._seen) else head if head == self._head else ""
        self.show(text.removeprefix(known))
        self._head, self._seen = head, text if goes_on else ""

    def show(self, text: str) -> None:
        # a state may quote a file, whose control characters must not reach the player's terminal
        self._out.write(visible(text))
        self._out.flush()

    def line(self) -> str:
        """Return the typed line without control characters, such as those that the arrow keys leave."""
        try:
            typed = self._read()
        except EOFError:
            raise PlayerLeft("the input ended; this episode is not finished.") from None
        return " ".join("".join(char if char.isprintable() else " " for char in typed).split())


class HumanPolicy:
    """Policy that asks a person for each action, until the answer names one.

    Args:
        read: returns one line, as ``input`` does, and raises ``EOFError`` at the end of the input.
        out: stream on which prompts are shown; standard output if absent.

    """

    def __init__(self, read: Callable[[], str] = input, out: TextIO | None = None) -> None:
        self.console = _Console(read, out)

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002 - a person chooses
        """Return one decision per view, asking for one after the other.

        Raises:
            PlayerLeft: the person typed ``quit``, or there is no more input.

        """
        return [self._decide(view) for view in views]

    def _decide(self, view: MenuView) -> Decision:
        menu, prompt = view.menu, view.prompt
        self.console.show_prompt(prompt.head, prompt.as_text())
        while True:
            answer = self.console.line()
            if not menu.actions and answer.casefold() != QUIT:
                return Decision(answer, 0.0, 0.0, Choice(NO_MENU))
            found = _named(answer, menu)
            if not found and answer.casefold() == QUIT:
                raise PlayerLeft(_QUIT_TYPED)
            found = found or _begun(answer, menu)
            if len(found) == 1:
                return Decision(menu.actions[found[0]], 0.0, 0.0, Choice(found[0]))
            self.console.show(f"{_complaint(answer, found, menu)} Or type {QUIT}.\n")


class HumanReflector(ReadsHints):
    """Reflector that asks the person of ``policy`` for reflections, and suggests those of the expert, if any."""

    def __init__(self, policy: HumanPolicy) -> None:
        self._console = policy.console

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002 - a person writes
        """Return one line per view, asking for one after the other.

        Raises:
            PlayerLeft: the person typed ``quit``, or there is no more input.

        """
        return [Utterance(self._reflect(view)) for view in views]

    def _reflect(self, view: View) -> str:
        prompt, advice = view.prompt, view.hints.reflection if view.hints else None
        self._console.show_prompt(prompt.head, prompt.as_text().removesuffix(REFLECTION_CUE), goes_on=True)
        self._console.show(f"Your reflection, or Enter for: {advice}\n" if advice else "Your reflection:\n")
        while not (said := self._console.line() or advice):
            self._console.show(f"Nothing was typed. Type how things stand, in one line. Or type {QUIT}.\n")
        if said.casefold() == QUIT:
            raise PlayerLeft(_QUIT_TYPED)
        return said


def _named(answer: str, menu: Menu) -> list[int]:
    """Return the positions whose label, or else action, equals the answer, in exact case or else in any case."""
    for fold in (str, str.casefold):
        for names in (menu.labels, menu.actions):
            found = [index for index, name in enumerate(names) if fold(name) == fold(answer)]
            if found:
                return found
    return []


def _begun(answer: str, menu: Menu) -> list[int]:
    """Return the positions of the actions that start with the answer, in any case."""
    start = answer.casefold()
    return [index for index, action in enumerate(menu.actions) if start and action.casefold().startswith(start)]


def _complaint(answer: str, found: Sequence[int], menu: Menu) -> str:
    if found:
        several = ", ".join(menu.actions[index] for index in found)
        return f"{answer!r} may be any of: {several}. Type more of it, or a label."
    if not answer:
        return "Nothing was typed. Type the label of an action."
    return f"{answer!r} is not a label or action here; {nearest(answer, menu.actions)} Type a label."
