"""The curriculum (section 4.4): stages in order, each with its own environment options and threshold."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from reflectrl.config.rlft import Stage
from reflectrl.core import NatLangEnv, Task, Trajectory
from reflectrl.core.seeds import derive_seed
from reflectrl.rollout import Episode
from reflectrl.training.config import ReflectRLConfig


class Curriculum:
    """Position of training in the list of stages; checkpoints keep it."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self.index = 0
        """The stage being played."""
        self.successes: list[float] = []
        """Success rate of each iteration of this stage so far."""
        self.failures: dict[str, float] = {}
        """How often each task of this stage failed lately, by id; the last episode has half of the weight."""

    @property
    def finished(self) -> bool:
        """True after the last stage."""
        return self.index >= len(self.stages)

    @property
    def stage(self) -> Stage:
        """The stage being played."""
        return self.stages[self.index]

    def add(self, success: float) -> bool:
        """Add an iteration's success rate; return True if the stage has reached its threshold or its length."""
        self.successes.append(success)
        stage, recent = self.stage, self.successes[-self.stage.window :]
        reached = (
            stage.success_threshold is not None
            and len(recent) == stage.window
            and sum(recent) / len(recent) >= stage.success_threshold
        )
        return reached or len(self.successes) >= stage.iterations

    def note(self, played: Sequence[Trajectory]) -> None:
        """Count which tasks failed; one that was never played counts as failed."""
        for trajectory in played:
            name = trajectory.task.id
            self.failures[name] = (self.failures.get(name, 1.0) + (not trajectory.success)) / 2

    def end_stage(self) -> None:
        """Go on to the next stage."""
        self.index += 1
        self.successes = []
        self.failures = {}


def fresh_episodes(curriculum: Curriculum, env: NatLangEnv, args: ReflectRLConfig, iteration: int) -> list[Episode]:
    """Return the episodes to sample in an iteration; seed, iteration, process and what failed decide."""
    rank = args.process_index
    rng = random.Random(derive_seed(args.seed, "tasks", iteration, rank))
    choices = curriculum.stage.choose(env)
    groups = [
        choices[_draw(choices, curriculum.failures, args.task_priority, rng)]
        for _ in range(args.episodes // args.episodes_per_task)
    ]
    tasks = [task for task in groups for _ in range(args.episodes_per_task)]
    return [
        Episode(task, derive_seed(args.seed, "episode", iteration, rank, number)) for number, task in enumerate(tasks)
    ]


def replayed_episodes(
    replay: Sequence[Trajectory], curriculum: Curriculum, args: ReflectRLConfig, rng: random.Random
) -> list[Trajectory]:
    """Draw past episodes for an update, each at most once; like new ones, in part by how often their tasks fail."""
    left, drawn = [*replay], list[Trajectory]()
    while left and len(drawn) < args.replay_episodes:
        tasks = [episode.task for episode in left]
        drawn.append(left.pop(_draw(tasks, curriculum.failures, args.task_priority, rng)))
    return drawn


def _draw(tasks: Sequence[Task], failures: Mapping[str, float], priority: float, rng: random.Random) -> int:
    """Return the position of a task, drawn evenly or, with probability ``priority``, in proportion to its failures."""
    if priority and rng.random() < priority:
        weights = [failures.get(task.id, 1.0) for task in tasks]
        if any(weights):
            return rng.choices(range(len(tasks)), weights)[0]
    return rng.randrange(len(tasks))
