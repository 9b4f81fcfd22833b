"""The environment's own expert as a player: offline teacher and upper bound of every table."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core import Decision, Hints, InvalidInput, Utterance
from reflectrl.prompts import Prompt


def _hints(prompt: Prompt) -> Hints:
    if prompt.hints is None:
        raise InvalidInput("an expert player was given a prompt without hints; play it through reflectrl.rollout.")
    return prompt.hints


class ExpertPolicy:
    """Plays ``env.expert()``."""

    wants_hints = True

    def act(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002 - deterministic
        """The expert's action, with certainty.

        Raises:
            InvalidInput: the environment has no expert.

        """
        return [self._decide(prompt) for prompt in prompts]

    @staticmethod
    def _decide(prompt: Prompt) -> Decision:
        action = _hints(prompt).action
        if action is None or prompt.menu is None:
            raise InvalidInput("the expert was asked to play an environment that has none; write its expert() method.")
        index = prompt.menu.actions.index(action)
        certain = tuple(float(i == index) for i in range(len(prompt.menu.actions)))
        return Decision(index, action, logprob=0.0, entropy=0.0, probabilities=certain)


class ExpertReflector:
    """Says ``env.reflection()``."""

    wants_hints = True
    hit_rate = 0.0

    def reflect(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002
        """The expert's reflection.

        Raises:
            InvalidInput: the environment has none.

        """
        said = [_hints(prompt).reflection for prompt in prompts]
        if None in said:
            raise InvalidInput("the expert was asked to reflect in an environment without expert() and reflection().")
        return [Utterance(text or "") for text in said]
