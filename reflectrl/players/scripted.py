"""Players without a model: the random policy, given actions, and reflectors whose words follow a rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from reflectrl.core import Choice, Decision, InvalidInput, Utterance
from reflectrl.prompts.views import MenuView, View


class RandomPolicy:
    """Policy that is uniform over the menu: the floor of every table."""

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Return one uniformly drawn action a view."""
        decisions = []
        for view, draw in zip(views, draws, strict=True):
            count = len(view.menu.actions)
            choice = Choice(int(draw * count), (1 / count,) * count)
            decisions.append(Decision(view.menu.actions[choice.index], -math.log(count), math.log(count), choice))
        return decisions


class GivenActions:
    """Plays actions that were decided elsewhere, one a view."""

    def __init__(self, actions: Sequence[str]) -> None:
        self._actions = actions

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002 - nothing is drawn
        """Return the given actions, in order; each must be on its menu."""
        return [
            Decision(action, 0.0, 0.0, Choice(view.menu.actions.index(action)))
            for view, action in zip(views, self._actions, strict=True)
        ]


class ScriptedReflector:
    """Says ``words(prompt.text)``: a blank reflection as a control, or any other rule."""

    def __init__(self, words: Callable[[str], str]) -> None:
        self._words = words

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002 - nothing is drawn
        """Return the script's words for each prompt."""
        return [Utterance(self._words(view.prompt.text)) for view in views]


class ShuffledReflector:
    """Says words that were meant for other states: the control that shows whether a policy reads its reflections."""

    def __init__(self, pool: Sequence[str]) -> None:
        if not pool:
            raise InvalidInput("ShuffledReflector was given no reflections; expected those of at least one episode.")
        self._pool = list(pool)

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return for each view the pool's entry at its draw, whatever the prompt says."""
        return [Utterance(self._pool[int(draw * len(self._pool))]) for _, draw in zip(views, draws, strict=True)]
