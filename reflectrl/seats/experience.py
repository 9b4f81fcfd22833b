"""``Experience``: a past episode as a memory keeps it (RAP, equations 1 and 2), without thoughts and idle steps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from reflectrl.core import Image, Observation, Trajectory

Keep = Literal["success", "rewarded"]
"""Episodes that a memory keeps: those that succeeded, or also those that failed with a return above 0."""
NOTHING_DONE = ("Nothing happens.", "Invalid action!")
"""Answers of ALFWorld and WebShop to an action that had no effect."""
_LOCATIONS = "likely to appear"
"""Words of a thought that introduce a list of places, which are those of another episode's room."""
_FIRST_SENTENCE = re.compile(r"[^.!?]*[.!?]?")


@dataclass(frozen=True)
class PastStep:
    """An action of a past episode and the observation after it."""

    action: str
    observation: str
    """Observation after the action; empty after the last one of an episode that was left before its end."""


@dataclass(frozen=True)
class PicturedStep(PastStep):
    """A step with the pictures of the state after it."""

    images: tuple[Image, ...]


@dataclass(frozen=True)
class Experience:
    """One past episode, ``L_i = {T_i, p_i, tau_i}``."""

    task_id: str
    task: str
    """Goal in words; empty where the environment states none."""
    task_type: str
    """Group of the task; empty for none."""
    plan: str
    """The planner's first utterance; empty without a planner."""
    start: str
    """Observation before the first step."""
    steps: tuple[PastStep, ...]
    success: bool
    episode_return: float
    """Undiscounted sum of the environment's rewards."""


def experience_of(trajectory: Trajectory, *, pictured: bool = False) -> Experience:
    """Return what a memory keeps of an episode, with the pictures of its states if ``pictured`` is true.

    Steps are left out if they were illegal or the environment answered that nothing was done. Of a thought (an action
    that begins with ``think``) with a list of places, only the first sentence is kept.
    """
    turns = trajectory.turns
    after = [*(turn.observation for turn in turns[1:]), trajectory.last or Observation("", ())]
    steps = []
    for turn, seen in zip(turns, after, strict=True):
        observation, images = news(seen.text, turn.decision.action), seen.images
        if turn.illegal or any(words in observation for words in NOTHING_DONE):
            continue
        action = _without_places(turn.decision.action)
        steps.append(
            PicturedStep(action, observation, images) if pictured and images else PastStep(action, observation)
        )
    first = turns[0]
    planned = first.said.get("planner")
    return Experience(
        task_id=trajectory.task.id,
        task=goal(first.observation.task),
        task_type=trajectory.task.group,
        plan="" if planned is None else planned.text,
        start=first.observation.text,
        steps=tuple(steps),
        success=trajectory.success,
        episode_return=trajectory.episode_return,
    )


def goal(task: str) -> str:
    """Return the first line of an observation's task; the rest, such as ALFWorld's room, belongs to one episode."""
    return task.partition("\n")[0]


def news(text: str, action: str) -> str:
    """Return the words of an observation after its last echo of ``action`` (``> action``); all of it without an echo.

    Text games such as ALFWorld show all past steps in each observation, each step below its echo.
    """
    return text.rpartition(f"> {action}\n")[2]


def _without_places(action: str) -> str:
    if not action.startswith("think") or _LOCATIONS not in action:
        return action
    return _FIRST_SENTENCE.match(action)[0]  # type: ignore[index]  # matches anything


def experiences(trajectories: Iterable[Trajectory], keep: Keep = "success") -> tuple[Experience, ...]:
    """Return the best episode of each task, as a store would keep them, with the pictures of its states."""
    best = Best()
    for trajectory in trajectories:
        if is_kept(trajectory, keep):
            best.offer(experience_of(trajectory, pictured=True))
    return tuple(best.of_task.values())


def is_kept(trajectory: Trajectory, keep: Keep) -> bool:
    """Return whether a memory keeps an episode, if it is the best of its task."""
    return trajectory.success or (keep == "rewarded" and trajectory.episode_return > 0)


class Best:
    """The best episode of each task, in the order of their arrival."""

    def __init__(self) -> None:
        self.of_task: dict[str, Experience] = {}

    def offer(self, experience: Experience) -> bool:
        """Keep an episode if it has a step with an effect and is better than that of its task."""
        old = self.of_task.get(experience.task_id)
        if not experience.steps or (old is not None and _rank(experience) <= _rank(old)):
            return False
        self.of_task.pop(experience.task_id, None)  # so that the new one goes to the end
        self.of_task[experience.task_id] = experience
        return True


def _rank(experience: Experience) -> tuple[bool, float, int]:
    return experience.success, experience.episode_return, -len(experience.steps)


class Store(Protocol):
    """Protocol of the episodes that a memory adds to; ``reflectrl.rollout.record.EpisodeStore`` is one."""

    @property
    def text(self) -> str:
        """All episodes as text, for a checkpoint."""
        ...

    def add(self, trajectory: Trajectory) -> bool:
        """Add an episode; return whether it is kept."""
        ...

    def restore(self, text: str) -> None:
        """Return to the episodes of an earlier ``text``."""
        ...

    def snapshot(self) -> tuple[Experience, ...]:
        """Return the episodes as they are now, oldest first."""
        ...
