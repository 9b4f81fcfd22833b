"""``Experience``: a past episode as a memory keeps it, cleaned of steps that did nothing (RAP, equations 1 and 2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from reflectrl.core import Image, Trajectory

NOTHING_DONE = ("Nothing happens.", "Invalid action!")
"""Words with which ALFWorld and WebShop answer an action that did nothing."""
_LOCATIONS = "likely to appear"
"""Words of a thought that a list of places follows, which are those of another room."""
_FIRST_SENTENCE = re.compile(r"[^.!?]*[.!?]?")


@dataclass(frozen=True)
class Step:
    """Action of a past episode and what was observed after it."""

    action: str
    observation: str
    """Empty after an episode's last action, since trajectories end with the state in which it was chosen."""


@dataclass(frozen=True)
class PicturedStep(Step):
    """Step with the pictures of the state after it."""

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
    """The planner's first words; empty without a planner."""
    start: str
    """Observation before the first step."""
    steps: tuple[Step, ...]
    success: bool
    episode_return: float
    """Undiscounted sum of the environment's rewards."""


def experience_of(trajectory: Trajectory, *, pictured: bool = False) -> Experience:
    """Return what a memory keeps of an episode, with the pictures of its states if ``pictured`` is true.

    Left out are steps that were illegal or after which the environment said that nothing was done; of a thought
    (an action that begins with ``think``) with a list of places, the first sentence stays.
    """
    turns = trajectory.turns
    after = [news(turn.observation.text, last) for turn, last in zip(turns[1:], trajectory.actions, strict=False)]
    shown = [*(turn.observation.images for turn in turns[1:]), ()]
    steps = []
    for turn, observation, images in zip(turns, [*after, ""], shown, strict=True):
        if turn.illegal or any(words in observation for words in NOTHING_DONE):
            continue
        action = _without_places(turn.decision.action)
        steps.append(PicturedStep(action, observation, images) if pictured and images else Step(action, observation))
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
    """Return the first line of an observation's task; what follows, such as ALFWorld's room, is of one episode."""
    return task.partition("\n")[0]


def news(text: str, action: str) -> str:
    """Return what an observation says about ``action``: the words after its last echo (``> action``), or all of it.

    Text games such as ALFWorld show the whole path in each observation, each step below its echo.
    """
    return text.rpartition(f"> {action}\n")[2]


def _without_places(action: str) -> str:
    if not action.startswith("think") or _LOCATIONS not in action:
        return action
    return _FIRST_SENTENCE.match(action)[0]  # type: ignore[index]  # matches anything
