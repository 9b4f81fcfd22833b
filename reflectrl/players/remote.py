"""Players behind a chat endpoint: reflector, corrector, and a policy to compare the local one with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from reflectrl.core import Choice, Decision, Utterance
from reflectrl.core.chat import LabelChat
from reflectrl.endpoint.account import Account
from reflectrl.endpoint.chat import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal
from reflectrl.players.cache import CachedPlayer
from reflectrl.prompts import Prompt
from reflectrl.prompts.chat import (
    corrector_chat,
    policy_chat,
    read_correction,
    read_label,
    read_reflection,
    reflector_chat,
)
from reflectrl.prompts.views import MenuView, View


class RemoteReflector(CachedPlayer):
    """A frozen chat model that reflects. At temperature 0, equal prompts are sent once and their replies cached.

    A prompt without a usable reply gets an empty reflection; ``endpoint.max_rejected`` limits their number. Above
    temperature 0 the endpoint samples, so only replies in ``journal`` can be reproduced.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        cache_size: int = 100_000,
        journal: Journal | None = None,
        account: Account | None = None,
    ) -> None:
        """Use the chat model of ``endpoint``; cache at most ``cache_size`` reflections, 0 for none."""
        super().__init__(0 if endpoint.is_sampled else cache_size)
        self.client = ChatClient(endpoint, journal, account)

    def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per prompt.

        Raises:
            WorkFailed: the endpoint failed, or too many prompts have no usable reply.

        """
        chats = [reflector_chat(prompt) for prompt in prompts]
        replies = self.client.ask_many(
            chats, [read_reflection] * len(chats), [repr(draw) for draw in draws], instead=""
        )
        return [Utterance(reply.value, reply.tokens) for reply in replies]


_UNUSABLE = "no usable reply"
"""Marks, by identity, a thought about which the model gave no usable reply."""


class RemoteCorrector:
    """A frozen chat model that rewrites wrong thoughts."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        instead: str | None = "",
        images: bool = False,
        questions: Sequence[str] = (),
        journal: Journal | None = None,
        account: Account | None = None,
    ) -> None:
        """Use the chat model of ``endpoint``; say ``instead`` where it has no usable reply, or raise if ``None``.

        With ``images``, the model is shown the pictures of a view; it answers ``questions`` before it evaluates a
        thought.
        """
        self.client = ChatClient(endpoint, journal, account, skip_failures=instead is not None)
        self.misses = (0, 0)
        """Number of thoughts that the model was asked about so far, and of those without a usable reply."""
        self._instead = instead
        self._images = images
        self._questions = questions

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per view: the corrected thought, or an empty one if the thought is right or absent.

        Raises:
            WorkFailed: more than ``endpoint.max_rejected`` thoughts have no usable reply, or one has none and
                ``instead`` is ``None``; or the budget is spent.

        """
        asked = [(view, draw) for view, draw in zip(views, draws, strict=True) if "policy" in view.said]
        chats = [corrector_chat(view, images=self._images, questions=self._questions) for view, _ in asked]
        replies = self.client.ask_many(
            chats,
            [read_correction] * len(chats),
            [repr(draw) for _, draw in asked],
            instead=None if self._instead is None else _UNUSABLE,
        )
        unusable = [reply.value is _UNUSABLE for reply in replies]
        self.misses = (self.misses[0] + len(replies), self.misses[1] + sum(unusable))
        said = {
            id(view): Utterance(self._instead or "" if missed else reply.value, reply.tokens)
            for (view, _), reply, missed in zip(asked, replies, unusable, strict=True)
        }
        return [said.get(id(view), Utterance("")) for view in views]


class RemotePolicy:
    """A chat model that plays by naming labels; its probabilities are unknown, so the records have none."""

    def __init__(self, endpoint: Endpoint, *, journal: Journal | None = None, account: Account | None = None) -> None:
        """Use the chat model of ``endpoint``."""
        self.client = ChatClient(endpoint, journal, account)

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
