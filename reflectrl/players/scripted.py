"""Players without a model: random, predetermined and scripted players, and the environment's expert."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from reflectrl.core import Choice, Decision, Hints, InvalidInput, Utterance
from reflectrl.players.base import ReadsHints
from reflectrl.prompts.views import MenuView, View


class RandomPolicy:
    """Policy that is uniform over the menu, the lowest baseline of an evaluation."""

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Return one uniformly drawn action per view."""
        decisions = []
        for view, draw in zip(views, draws, strict=True):
            count = len(view.menu.actions)
            choice = Choice(int(draw * count), (1 / count,) * count)
            decisions.append(Decision(view.menu.actions[choice.index], -math.log(count), math.log(count), choice))
        return decisions


class GivenActions:
    """Policy that plays given actions, one per view."""

    def __init__(self, actions: Sequence[str]) -> None:
        self._actions = actions

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002 - nothing is drawn
        """Return the given actions, in order; each must be on its menu."""
        return [
            Decision(action, 0.0, 0.0, Choice(view.menu.actions.index(action)))
            for view, action in zip(views, self._actions, strict=True)
        ]


class ScriptedReflector:
    """Player that says ``words(prompt.text)``, such as a blank reflection as a control."""

    def __init__(self, words: Callable[[str], str]) -> None:
        self._words = words

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002 - nothing is drawn
        """Return ``words(prompt.text)`` for each view."""
        return [Utterance(self._words(view.prompt.text)) for view in views]


class ShuffledReflector:
    """Player that says reflections on other states, as a control that shows whether a policy uses its reflections."""

    def __init__(self, pool: Sequence[str]) -> None:
        if not pool:
            raise InvalidInput("ShuffledReflector was given no reflections; expected those of at least one episode.")
        self._pool = list(pool)

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return for each view an entry of the pool, chosen by the draw and independent of the prompt."""
        return [Utterance(self._pool[int(draw * len(self._pool))]) for _, draw in zip(views, draws, strict=True)]


def _hints(view: View) -> Hints:
    if view.hints is None:
        raise InvalidInput("an expert player was given a view without hints; play it through reflectrl.rollout.")
    return view.hints


class ExpertPolicy(ReadsHints):
    """Policy that plays the action of ``env.expert()``."""

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002 - nothing is drawn
        """Return the expert's action for each view, with probability 1.

        Raises:
            InvalidInput: the environment has no expert, or it says nothing in this state.

        """
        decisions = []
        for view in views:
            action = _hints(view).action
            if action is None:
                raise InvalidInput(
                    "the expert was asked to act in a state in which expert() says nothing; write it for every state, "
                    "or leave the expert out (eval.policies)."
                )
            index = view.menu.actions.index(action)
            certain = tuple(float(i == index) for i in range(len(view.menu.actions)))
            decisions.append(Decision(action, 0.0, 0.0, Choice(index, certain)))
        return decisions


class ExpertCorrector(ReadsHints):
    """Corrector that replaces thoughts which differ from ``env.reflection()`` by that reflection (GTR, section 4)."""

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return the expert's reflections; the empty text where the thought is the same or absent."""
        right = ExpertReflector().say(views, draws)
        thoughts = [" ".join(view.said.get("policy", "").split()) for view in views]
        return [
            Utterance("") if "policy" not in view.said or words.text == thought else words
            for view, thought, words in zip(views, thoughts, right, strict=True)
        ]


class RuleCorrector(ExpertCorrector):
    """Corrector that replaces only thoughts which the environment finds wrong, because several may be right."""

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return the expert's reflections; the empty text where the thought is right, or has no judgement.

        Raises:
            InvalidInput: the environment cannot judge thoughts.

        """
        if any(view.reading is not None and view.reading.right is None for view in views):
            raise InvalidInput(
                "a corrector by rule was asked about a thought that the environment cannot judge; write its "
                "read_thought() method, or set players.corrector.player to expert."
            )
        return [
            Utterance("") if view.reading is None or view.reading.right else words
            for view, words in zip(views, super().say(views, draws), strict=True)
        ]


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


class ExpertReflector(ReadsHints):
    """Reflector that says ``env.reflection()``."""

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002 - nothing is drawn
        """Return the expert's reflection for each view.

        Raises:
            InvalidInput: the environment has no reflections.

        """
        said = [_hints(view).reflection for view in views]
        if None in said:
            raise InvalidInput(
                "the expert was asked to reflect on a state about which expert() and reflection() say nothing; write "
                "one of them for every state, or leave the expert out (eval.controls)."
            )
        return [Utterance(text or "") for text in said]
