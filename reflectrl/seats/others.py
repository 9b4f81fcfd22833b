"""The policy's seat: its settings in a recipe, and policies without a local model, a person's among them.

A person at the keyboard, who acts and may reflect, is shown exactly the prompts that models read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TextIO

from reflectrl.core import NO_MENU, Choice, Decision, InvalidInput, Utterance, nearest
from reflectrl.core.errors import PlayerLeft
from reflectrl.core.messages import LabelChat
from reflectrl.core.settings import Count, Positive, Section
from reflectrl.core.text import visible
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.prompts import Menu
from reflectrl.prompts.chats import policy_chat, read_label
from reflectrl.prompts.format import REFLECTION_CUE
from reflectrl.prompts.players import ReadsHints
from reflectrl.prompts.views import MenuView, View
from reflectrl.seats.reflector import hints_of

if TYPE_CHECKING:
    from reflectrl.endpoint.client import ChatClient


class PolicyPlayerSection(Section):
    """Settings of policies that write text before they act, and of the evaluation's policy ``remote``."""

    max_new_tokens: Count = 64
    """Maximum length of what the policy writes, in tokens."""
    temperature: Positive = 1.0
    """Temperature at which it is sampled and scored."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of the policy ``remote``, which answers with a label."""
    server: Endpoint | None = None
    """Server that writes the text in RLFT in place of this process: vLLM with the policy's base as ``model``, which is
    given the adapter before each rollout, by a path in the run folder. Absent: this process writes."""


class RandomPolicy:
    """Policy that is uniform over the menu, the lowest baseline of an evaluation."""

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Return one uniformly drawn action per view."""
        decisions = []
        for view, draw in zip(views, draws, strict=True):
            actions = view.menu.actions or view.observation.tries
            index, count = int(draw * len(actions)), len(actions)
            choice = Choice(index, (1 / count,) * count) if view.menu.actions else Choice(NO_MENU)
            decisions.append(Decision(actions[index], -math.log(count), math.log(count), choice))
        return decisions


class GivenActions:
    """Policy that plays given actions, one per view."""

    def __init__(self, actions: Sequence[str]) -> None:
        self._actions = actions

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002 - nothing is drawn
        """Return the given actions, in order; each must be on its menu."""
        return [
            Decision(action, 0.0, 0.0, Choice(view.menu.place_of(action)))
            for view, action in zip(views, self._actions, strict=True)
        ]


class ExpertPolicy(ReadsHints):
    """Policy that plays the action of ``env.expert()``."""

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002 - nothing is drawn
        """Return the expert's action for each view, with probability 1.

        Raises:
            InvalidInput: the environment has no expert, or it says nothing in this state.
        """
        decisions = []
        for view in views:
            action = hints_of(view).action
            if action is None:
                raise InvalidInput(
                    "the expert was asked to act in a state in which expert() says nothing; write it for every state, "
                    "or leave the expert out (eval.policies)."
                )
            index = view.menu.place_of(action)
            certain = tuple(float(i == index) for i in range(len(view.menu.actions)))
            decisions.append(Decision(action, 0.0, 0.0, Choice(index, certain)))
        return decisions


class CarelessExpert(ReadsHints):
    """Policy that plays the expert's action with probability ``expertise``, otherwise a uniformly random one.

    Where the expert has no action, it is always random.
    """

    def __init__(self, expertise: float) -> None:
        self._expertise = expertise

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Return one decision per view."""
        return [self._decide(view, draw) for view, draw in zip(views, draws, strict=True)]

    def _decide(self, view: MenuView, draw: float) -> Decision:
        if view.hints is None or view.hints.action is None:
            return RandomPolicy().act([view], [draw])[0]
        if draw < self._expertise:
            return ExpertPolicy().act([view], [draw])[0]
        return RandomPolicy().act([view], [(draw - self._expertise) / (1 - self._expertise)])[0]


class RemotePolicy:
    """A chat model that plays by naming labels; its probabilities are unknown, so the records have none."""

    def __init__(self, chat: ChatClient) -> None:
        self.client = chat

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Return one decision per view.

        Raises:
            WorkFailed: the endpoint failed, or no reply to a prompt was a label.
        """
        reads = [partial(read_label, menu=view.menu) for view in views]
        chats = [LabelChat(policy_chat(view.prompt), view.menu.labels, view.menu.actions) for view in views]
        replies = self.client.ask_many(chats, reads, [repr(draw) for draw in draws])
        return [
            Decision(view.menu.actions[reply.value], 0.0, 0.0, Choice(reply.value))
            for reply, view in zip(replies, views, strict=True)
        ]


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
