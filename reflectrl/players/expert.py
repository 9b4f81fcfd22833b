"""The environment's own expert as a player: offline teacher and upper bound of every table."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core import Choice, Decision, Hints, InvalidInput, Utterance
from reflectrl.players.base import ReadsHints
from reflectrl.prompts.views import MenuView, View


def _hints(view: View) -> Hints:
    if view.hints is None:
        raise InvalidInput("an expert player was given a view without hints; play it through reflectrl.rollout.")
    return view.hints


class ExpertPolicy(ReadsHints):
    """Plays ``env.expert()``."""

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002 - nothing is drawn
        """Return the expert's action, with certainty.

        Raises:
            InvalidInput: the environment has no expert.

        """
        decisions = []
        for view in views:
            action = _hints(view).action
            if action is None:
                raise InvalidInput(
                    "the expert was asked to play an environment that has none; write its expert() method."
                )
            index = view.menu.actions.index(action)
            certain = tuple(float(i == index) for i in range(len(view.menu.actions)))
            decisions.append(Decision(action, 0.0, 0.0, Choice(index, certain)))
        return decisions


class ExpertReflector(ReadsHints):
    """Says ``env.reflection()``."""

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002 - nothing is drawn
        """Return the expert's reflections.

        Raises:
            InvalidInput: the environment has none.

        """
        said = [_hints(view).reflection for view in views]
        if None in said:
            raise InvalidInput("the expert was asked to reflect in an environment without expert() and reflection().")
        return [Utterance(text or "") for text in said]
