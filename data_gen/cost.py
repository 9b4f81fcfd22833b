"""Estimate of the calls to a chat model and of their cost, before the first call is sent."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from reflectrl.core import NatLangEnv, Task
from reflectrl.core.messages import Messages
from reflectrl.core.stop import run_async
from reflectrl.data_gen.episodes import Advice, Request, Teaching, expert_action, play_teacher_episode
from reflectrl.endpoint.account import Tokens
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.prompts import TeacherPrompts, make_menu

CHARACTERS_PER_TOKEN = 4
REFLECTION_TOKENS = 70
"""Tokens of a reflection of 50 words, the length that the prompt asks for."""
LABEL_TOKENS = 2
"""Tokens of a reply that names a label."""
MAX_SAMPLES = 40
"""Maximum number of samples from which the total cost is extrapolated."""
MAX_EPISODES = 20
"""Maximum number of episodes that are played to find these samples."""


@dataclass(frozen=True)
class CallEstimate:
    """Number of calls, and the sum of their tokens."""

    calls: int
    tokens: Tokens

    def sentence(self, endpoint: Endpoint, kept: int) -> str:
        """Describe the estimate for the user; ``kept`` replies are there already."""
        tokens = f"{self.tokens.prompt:,} tokens sent and {self.tokens.completion:,} answered"
        cost = self.tokens.cost(endpoint.price)
        money = "" if endpoint.is_own and not cost else f": about {cost:.2f} dollars"
        if endpoint.price is None and not endpoint.is_own:
            money = ": the endpoint's price is not set"
        already = f"; {kept:,} replies are there already and are not asked for again" if kept else ""
        return f"estimate: about {self.calls:,} calls to {endpoint}, {tokens}{money}{already}"


def estimate_files(chats: Iterable[Messages], reply_tokens: int) -> CallEstimate:
    """Return the estimate of one call per chat, with a reply of at most ``reply_tokens``."""
    sizes = [_tokens(chat) for chat in chats]
    return CallEstimate(len(sizes), Tokens(sum(sizes), reply_tokens * len(sizes)))


def estimate_teacher_calls(
    env: NatLangEnv, tasks: Sequence[Task], teaching: Teaching, prompts: TeacherPrompts, *, samples: int, chooses: bool
) -> CallEstimate:
    """Return the estimate for ``samples``, extrapolated from a few episodes of ``tasks`` without calls.

    If the teacher plays (``chooses``), the expert plays in its place here; without an expert, the first action is
    played.

    Raises:
        InvalidInput: no expert where the teacher does not play.
    """
    tally = _Tally(prompts, chooses)
    taught = 0
    for number, task in enumerate(itertools.islice(itertools.cycle(tasks), MAX_EPISODES)):
        episode = run_async(play_teacher_episode(env, number, task, replace(teaching, teacher=tally)))
        taught += len(episode.samples)
        if taught >= min(samples, MAX_SAMPLES):
            break
    scale = samples / max(1, taught)
    tokens = Tokens(round(scale * tally.tokens.prompt), round(scale * tally.tokens.completion))
    return CallEstimate(round(scale * tally.calls), tokens)


class _Tally:
    """A teacher that costs nothing and counts what it would cost."""

    def __init__(self, prompts: TeacherPrompts, chooses: bool) -> None:
        self._prompts = prompts
        self._chooses = chooses
        self.calls = 0
        self.tokens = Tokens()

    async def advise(self, request: Request) -> Advice:
        spoiler, action, actions = request.hints.spoiler, request.hints.action, request.menu.actions
        if not self._chooses:
            action = expert_action(request)
        elif action not in actions:
            action = actions[0]
        chat = self._prompts.reflect(
            request.seen, spoiler=None if self._chooses else spoiler, mistaken=request.mistaken
        )
        self._count(chat, REFLECTION_TOKENS)
        if self._chooses:
            menu = make_menu(actions, "numbers")
            self._count(self._prompts.choose(chat, "x" * CHARACTERS_PER_TOKEN * REFLECTION_TOKENS, menu), LABEL_TOKENS)
        return Advice("", action)

    def _count(self, chat: Messages, answered: int) -> None:
        self.calls += 1
        self.tokens = Tokens(self.tokens.prompt + _tokens(chat), self.tokens.completion + answered)


def _tokens(chat: Messages) -> int:
    return sum(len(message["content"]) for message in chat) // CHARACTERS_PER_TOKEN
