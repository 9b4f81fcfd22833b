"""``RuleRater``: a stand-in for a rating model that knows the episodes' outcomes, and errs at a given rate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from reflectrl.core import NatLangEnv, Observation, Task, Utterance
from reflectrl.prompts.views import View
from reflectrl.raters.scale import Scale


class RuleRater:
    """Rates a successful episode with the highest level and any other with the lowest, some the wrong way round.

    Its view has neither reward nor success. It replays the actions, in environments of its own, on each training task
    with the episode's initial state, until one shows the same states and ends where the episode did, and reads the
    success there. An episode that no task reproduces, as in an environment with random states, gets no rating. No model
    could do this: the rule measures what RLFT makes of ratings with a known accuracy.

    Errors do not depend on what happened in an episode, whereas a model at temperature 0 repeats its errors.

    Args:
        envs: one environment for each set of options that is played.
        scale: the levels.
        accuracy: probability that a rating is right; which episodes are rated wrongly is drawn from their seeds.

    """

    def __init__(self, envs: Sequence[NatLangEnv], scale: Scale, accuracy: float) -> None:
        self._envs = envs
        self._scale = scale
        self._accuracy = accuracy

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one rating a view of a finished episode."""
        return [self._rating(view, draw) for view, draw in zip(views, draws, strict=True)]

    def _rating(self, view: View, draw: float) -> Utterance:
        succeeded = self._truth(view)
        level = None
        if succeeded is not None:
            level = self._scale.highest if succeeded == (draw < self._accuracy) else 0
        return self._scale.rated(level, len(view.past), "")

    def _truth(self, view: View) -> bool | None:
        for env, task in self._beginnings.get(view.visited[0], ()):
            if (succeeded := _played_again(env, task, view)) is not None:
                return succeeded
        return None

    @cached_property
    def _beginnings(self) -> dict[Observation, list[tuple[NatLangEnv, Task]]]:
        """Training tasks by their initial state."""
        found: dict[Observation, list[tuple[NatLangEnv, Task]]] = {}
        for env in self._envs:
            for task in env.split_tasks("train"):
                env.reset(seed=0, options={"task": task})
                found.setdefault(env.observation, []).append((env, task))
        return found


def _played_again(env: NatLangEnv, task: Task, view: View) -> bool | None:
    """Return whether the actions of a view succeed in a task; ``None`` if they lead to other states or another end."""
    _, info = env.reset(seed=0, options={"task": task})
    ended = False
    for seen, action in zip(view.visited, view.past, strict=True):
        if ended or env.observation != seen:
            return None
        _, _, terminated, truncated, info = env.step(action)
        ended = terminated or truncated
    if view.last is not None and env.observation.final != view.last:
        return None
    return bool(info["success"]) if ended else None
