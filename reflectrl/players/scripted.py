"""Players without a model: the random policy, and reflectors whose words are a function of the prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from reflectrl.core import Decision, InvalidInput, Utterance
from reflectrl.prompts import Prompt


class RandomPolicy:
    """Uniform over the menu: the floor of every table."""

    wants_hints = False

    def act(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Decision]:
        """One uniformly drawn action a prompt."""
        return [self._decide(prompt, draw) for prompt, draw in zip(prompts, draws, strict=True)]

    @staticmethod
    def _decide(prompt: Prompt, draw: float) -> Decision:
        if prompt.menu is None:
            raise InvalidInput("a policy was given a reflector's prompt; expected one with a menu.")
        n = len(prompt.menu.actions)
        index = int(draw * n)
        return Decision(index, prompt.menu.actions[index], -math.log(n), math.log(n), (1 / n,) * n)


class ScriptedReflector:
    """Says ``words(prompt.text)``: a blank or shuffled reflection as a control, or a rule of one's own."""

    wants_hints = False
    hit_rate = 0.0

    def __init__(self, words: Callable[[str], str]) -> None:
        self._words = words

    def reflect(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002
        """The script's words for each prompt."""
        return [Utterance(self._words(prompt.text)) for prompt in prompts]


class ShuffledReflector:
    """Says words that were meant for other states: the control that tells whether a policy reads its reflections."""

    wants_hints = False
    hit_rate = 0.0

    def __init__(self, pool: Sequence[str]) -> None:
        if not pool:
            raise InvalidInput("ShuffledReflector was given no reflections; expected those of at least one episode.")
        self._pool = list(pool)

    def reflect(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """For each prompt the pool's entry at its draw, whatever the prompt says."""
        return [Utterance(self._pool[int(draw * len(self._pool))]) for _, draw in zip(prompts, draws, strict=True)]
