"""The policy's seat: its settings in a recipe, and policies without a local model: random, given, expert, remote."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from reflectrl.core import NO_MENU, Choice, Decision, InvalidInput
from reflectrl.core.messages import LabelChat
from reflectrl.core.settings import Count, Positive, Section
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.prompts.chats import policy_chat, read_label
from reflectrl.prompts.players import ReadsHints
from reflectrl.prompts.views import MenuView
from reflectrl.seats.reflector import hints_of

if TYPE_CHECKING:  # openai takes a second to import
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
        """Ask ``chat``."""
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
