"""``Robots``: tasks of Meta-World and Franka Kitchen for a robot arm, described in words and played by skills."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from ctypes.util import find_library
from functools import cache
from types import ModuleType

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task, nearest
from reflectrl.core.types import SPLITS
from reflectrl.envs.robots.kitchen import KITCHEN
from reflectrl.envs.robots.scenes import SCENES, Scene

HORIZON = 10
STEP, SUCCESS = -0.05, 1.0
"""Rewards of each skill and of a success."""
TASKS = {"train": 25, "validation": 10, "test": 50}
"""Number of tasks of each scene by split: as many as the paper has demonstrations and trials."""
STRIPES = {"train": (0, 1, 3, 5, 6, 8, 9), "validation": (4,), "test": (2, 7)}
"""Tenths of the first coordinate's range in which the things are placed, by split."""
SETS: Mapping[str, Mapping[str, Scene]] = {"metaworld": SCENES, "kitchen": KITCHEN}
"""Sets of scenes with one common name, by simulator."""
KNOWN: Mapping[str, Scene] = {**SCENES, **KITCHEN}
OBSERVATIONS = ("text", "image", "both")


@cache
def _splits(scenes: str) -> Mapping[str, tuple[Task, ...]]:
    splits = {}
    for split in SPLITS:
        rng = random.Random(f"robots {split}")
        tasks = [
            Task(f"{name}-{split}-{number}", {"group": name, "place": _place(rng, split)})
            for name in SETS[scenes]
            for number in range(TASKS[split])
        ]
        rng.shuffle(tasks)
        splits[split] = tuple(tasks)
    return splits


def _place(rng: random.Random, split: str) -> list[float]:
    return [round((rng.choice(STRIPES[split]) + rng.random()) / 10, 4), round(rng.random(), 4)]


def _simulator(pictures: bool) -> ModuleType:
    """Import MuJoCo once in a process, after its renderer has been chosen.

    Raises:
        InvalidInput: MuJoCo is not installed, or cannot draw.
    """
    draws = os.environ.setdefault("MUJOCO_GL", "osmesa" if find_library("OSMesa") else "disable")
    if pictures and draws == "disable":
        raise InvalidInput(
            "pictures of robots need OSMesa, which draws without a display, when the simulator is first imported; run "
            "apt-get install libosmesa6, or play with observation=text."
        )
    try:
        from reflectrl.envs.robots import simulator
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"robots needs Meta-World, of which {error.name!r} is missing; run pip install 'reflectrl[robots]'."
        ) from error
    return simulator


class Robots(NatLangEnv):
    """Robot arm with eight tasks of Meta-World and Franka Kitchen. Rewards: -0.05 per skill, +1 for success.

    The tasks are those that RAP (arXiv 2402.03610) took from Meta-World, and three of its five in Franka Kitchen, on
    MuJoCo without a display. Needs the extra ``robots``; pictures also need OSMesa (``apt-get install libosmesa6``).
    The text gives distances in centimetres, as the robot sees them. An action is a skill of up to 60 steps of the
    simulator, carried out by hand-written controllers: nothing below the words is learned, so do not compare results
    with RAP's. All skills are always on the menu; the state decides which of them help.

    The expert follows a scripted policy from any state, and succeeded in all of 50 test episodes of each task; a random
    player succeeds in 0 to 29 of them. Two of ten strips of the table are for testing only. Texts round to centimetres,
    so a third of the validation tasks begin like one for training.

    Args:
        task: ``assembly``, ``button``, ``drawer``, ``hammer``, ``bin``, or ``metaworld``, all five; ``microwave``,
            ``light``, ``burner``, or ``kitchen``, these three.
        observation: the state as ``text``, as an ``image`` from each of two cameras without any text, or ``both``; the
            kitchen has no pictures.
        horizon: maximum number of skills of an episode.

    Raises:
        InvalidInput: another value, Meta-World is not installed, or nothing can draw its pictures.
    """

    name = "robots"
    instructions = (
        "You move a robot's hand by skills. The robot sits in front of the table: left, right, behind and in front of "
        "are meant as it sees them. Distances of up to 2 cm are not told. Everything but opening and closing keeps the "
        "gripper as it is. Do what the task says, in as few skills as you can."
    )

    def __init__(self, task: str = "metaworld", observation: str = "text", horizon: int = HORIZON) -> None:
        for option, value, known in (("task", task, (*SETS, *KNOWN)), ("observation", observation, OBSERVATIONS)):
            if value not in known:
                raise InvalidInput(f"{option}={value!r} of {self.name!r} is unknown; {nearest(str(value), known)}")
        if task in (*KITCHEN, "kitchen") and observation != "text":
            raise InvalidInput(
                f"observation={observation!r} of {self.name!r} was given with task={task!r}, of which there are no "
                "pictures; play with observation=text."
            )
        self._shows_text, self._shows_images = observation != "image", observation != "text"
        self._simulator = _simulator(pictures=self._shows_images)
        super().__init__(horizon)
        scenes = next(name for name, scenes in SETS.items() if task == name or task in scenes)
        self.max_actions = max(len(scene.actions) for scene in SETS[scenes].values())
        self._tasks = {
            split: tuple(known for known in tasks if task in (scenes, known.group))
            for split, tasks in _splits(scenes).items()
        }
        self._known = {known.id: known for tasks in self._tasks.values() for known in tasks}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the initial positions of things in a split, for all scenes in a fixed shuffled order."""
        return self._tasks[split]

    def start(self, task: Task) -> None:
        if self._known.get(task.id) != task:
            raise InvalidInput(f"task {task.id!r} is none of this {self.name!r}; use env.tasks(split).")
        self._scene = KNOWN[task.group]
        self._played: tuple[str, tuple[float, ...], tuple[str, ...]] = (task.group, tuple(task.options["place"]), ())
        self._look()
        self._before, self._text_before = self._stage, self._text

    def observe(self) -> Observation:
        """Return the positions of hand and things, in words, in pictures or both, with all skills."""
        scene, text = self._scene, self._text if self._shows_text else ""
        images = self._simulator.pictures(*self._played) if self._shows_images else ()
        return Observation(text, scene.actions, f"Task: {scene.goal}.", images, common=scene.actions)

    def act(self, action: str) -> Outcome:
        self._before, self._text_before = self._stage, self._text
        name, place, skills = self._played
        self._played = name, place, (*skills, action)
        self._look()
        success = self._now.success
        return Outcome(SUCCESS if success else STEP, ended=success, success=success)

    def expert(self) -> str | None:
        """Return the next skill, chosen from what the text says; ``None`` after the success."""
        return None if self._now.success else self._stage.action

    def reflection(self) -> str | None:
        """Judge the last skill and describe the progress, without naming the next skill."""
        standing = f"{'Done' if self._now.success else self._stage.standing}."
        if self.last_action is None:
            return standing
        return f"{'Mistake' if self.mistaken() else 'Good'}. {standing}"

    def mistaken(self) -> bool | None:
        """Return whether the last skill brought success no nearer, and is not the expert's or changed nothing."""
        if self.last_action is None:
            return None
        nearer = self._now.success or self._stage.left < self._before.left
        return not nearer and (self.last_action != self._before.action or self._text == self._text_before)

    def _look(self) -> None:
        self._now = self._simulator.position(*self._played)
        self._stage = self._scene.stage(self._now.seen, self._now.closed)
        self._text = self._scene.text(self._now.seen, self._now.closed)
