"""``Robots``: five tasks of Meta-World for a robot arm, described in words and played by skills."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task, nearest
from reflectrl.core.types import SPLITS
from reflectrl.envs.robots.scenes import SCENES

HORIZON = 10
STEP, SUCCESS = -0.05, 1.0
"""Rewards."""
TASKS = {"train": 25, "validation": 10, "test": 50}
"""Tasks of each scene: as many as the paper has demonstrations and trials."""
STRIPES = {"train": (0, 1, 3, 5, 6, 8, 9), "validation": (4,), "test": (2, 7)}
"""Tenths of the range of the first coordinate in which the things of a split lie."""
ALL = "all"


@cache
def _splits() -> Mapping[str, tuple[Task, ...]]:
    splits = {}
    for split in SPLITS:
        rng = random.Random(f"robots {split}")
        tasks = [
            Task(f"{name}-{split}-{number}", {"group": name, "place": _place(rng, split)})
            for name in SCENES
            for number in range(TASKS[split])
        ]
        rng.shuffle(tasks)
        splits[split] = tuple(tasks)
    return splits


def _place(rng: random.Random, split: str) -> list[float]:
    return [round((rng.choice(STRIPES[split]) + rng.random()) / 10, 4), round(rng.random(), 4)]


class Robots(NatLangEnv):
    """Robot arm that assembles, presses, opens, hammers and sorts. Rewards: -0.05 a skill, +1 for the success.

    Args:
        task: ``assembly``, ``button``, ``drawer``, ``hammer``, ``bin``, or ``all``.
        horizon: skills of an episode.

    Raises:
        InvalidInput: another task, or Meta-World is not installed.

    """

    name = "robots"
    instructions = (
        "You move a robot's hand by skills; each takes up to a second. The robot sits in front of the table: left, "
        "right, behind and in front of are meant as it sees them. Distances of up to 2 cm are not told. Everything "
        "but opening and closing keeps the gripper as it is. Do what the task says, in as few skills as you can."
    )

    def __init__(self, task: str = ALL, horizon: int = HORIZON) -> None:
        if task not in (ALL, *SCENES):
            raise InvalidInput(f"task={task!r} of {self.name!r} is unknown; {nearest(str(task), (ALL, *SCENES))}")
        try:
            from reflectrl.envs.robots import simulator
        except ModuleNotFoundError as error:
            raise InvalidInput(
                f"{self.name!r} needs Meta-World, of which {error.name!r} is missing; run pip install "
                "'reflectrl[robots]'."
            ) from error
        super().__init__(horizon)
        self._simulator = simulator
        self.max_actions = max(len(scene.actions) for scene in SCENES.values())
        self._tasks = {
            split: tuple(known for known in tasks if task in (ALL, known.group)) for split, tasks in _splits().items()
        }

    def tasks(self, split: str) -> Sequence[Task]:
        """The places of things of a split, all scenes shuffled once and for all."""
        return self._tasks[split]

    def start(self, task: Task) -> None:
        """Lay out the things."""
        if not any(task == known for tasks in self._tasks.values() for known in tasks):
            raise InvalidInput(f"task {task.id!r} is none of this {self.name!r}; use env.tasks(split).")
        self._scene = SCENES[task.group]
        self._place = tuple(task.options["place"])
        self._skills: tuple[str, ...] = ()
        self._look()
        self._before = self._stage

    def observe(self) -> Observation:
        """Where hand and things are, in words; all skills, always."""
        actions = self._scene.actions
        return Observation(
            self._scene.text(self._now.seen, self._now.closed), actions, f"Task: {self._scene.goal}.", common=actions
        )

    def act(self, action: str) -> Outcome:
        """Carry out the skill."""
        self._before = self._stage
        self._skills += (action,)
        self._look()
        success = self._now.success
        return Outcome(SUCCESS if success else STEP, ended=success, success=success)

    def expert(self) -> str | None:
        """The next skill, chosen by what the text says; ``None`` after the success."""
        return None if self._now.success else self._stage.action

    def reflection(self) -> str | None:
        """Judge the last skill and say how far things are, without naming the next one."""
        standing = f"{'Done' if self._now.success else self._stage.standing}."
        if self.last_action is None:
            return standing
        return f"{'Mistake' if self.mistaken() else 'Good'}. {standing}"

    def mistaken(self) -> bool | None:
        """True if another skill than the expert's brought success no nearer."""
        if self.last_action is None:
            return None
        nearer = self._now.success or self._stage.left < self._before.left
        return self.last_action != self._before.action and not nearer

    def _look(self) -> None:
        self._now = self._simulator.position(self.task.group, self._place, self._skills)
        self._stage = self._scene.stage(self._now.seen, self._now.closed)
