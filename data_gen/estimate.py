"""What the calls to a chat model will come to, before the first of them is sent."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reflectrl.core import NatLangEnv, Task
from reflectrl.players.account import Tokens
from reflectrl.players.endpoint import Endpoint
from reflectrl.prompts import Menu, TeacherPrompts, labels
from reflectrl.prompts.chat import Messages

CHARACTERS = 4
"""Of English text, a token."""
REFLECTION_TOKENS = 70
"""A reflection of the 50 words that are asked for."""
LABEL_TOKENS = 2
EXAMPLES = 8
"""Tasks whose first state stands for all states."""


@dataclass(frozen=True)
class Estimate:
    """Calls, and the tokens of all of them together."""

    calls: int
    tokens: Tokens

    def sentence(self, endpoint: Endpoint, kept: int) -> str:
        """For the person who pays; ``kept`` replies are there already."""
        tokens = f"{self.tokens.prompt:,} tokens sent and {self.tokens.completion:,} answered"
        cost = f"about {self.tokens.cost(endpoint.price):.2f} dollars"
        money = "the endpoint's price is not set" if endpoint.price is None else cost
        already = f"; {kept:,} replies are there already and cost nothing" if kept else ""
        return f"estimate: about {self.calls:,} calls to {endpoint}, {tokens}: {money}{already}"


def estimate_files(chats: Iterable[Messages], reply_tokens: int) -> Estimate:
    """One call a file, with a reply of at most ``reply_tokens``."""
    sizes = [_tokens(chat) for chat in chats]
    return Estimate(len(sizes), Tokens(sum(sizes), reply_tokens * len(sizes)))


def estimate_lessons(
    env: NatLangEnv, tasks: Sequence[Task], prompts: TeacherPrompts, *, samples: int, chooses: bool
) -> Estimate:
    """A call a sample, and one more where the teacher ``chooses``; as long as those of the first states."""
    sizes: list[int] = []
    for task in itertools.islice(tasks, EXAMPLES):
        env.reset(seed=0, options={"task": task})
        observation = env.observation
        chat = prompts.reflect(observation, (), spoiler=None if chooses else env.spoiler())
        sizes.append(_tokens(chat))
        if chooses:
            menu = Menu(labels("numbers", len(observation.actions)), observation.actions)
            sizes[-1] += _tokens(prompts.choose(chat, "", menu)) + REFLECTION_TOKENS
    answered = REFLECTION_TOKENS + (LABEL_TOKENS if chooses else 0)
    tokens = Tokens(round(samples * sum(sizes) / len(sizes)), samples * answered)
    return Estimate(samples * (2 if chooses else 1), tokens)


def _tokens(chat: Messages) -> int:
    return sum(len(message["content"]) for message in chat) // CHARACTERS
