"""The curriculum (section 4.4): a sequence of stages, each with its own environment options and threshold."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from reflectrl.config.rlft import Stage
from reflectrl.core import InvalidInput, NatLangEnv, Task, Trajectory
from reflectrl.core.seeds import derive_seed
from reflectrl.rollout import Episode
from reflectrl.training.config import ReflectRLConfig


class Curriculum:
    """Position of training in the sequence of stages, which checkpoints save."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self.index = 0
        """Position in ``stages`` of the current stage."""
        self.successes: list[float] = []
        """Success rate of each iteration of the current stage so far."""
        self.failures: dict[str, float] = {}
        """Recent failure rate of each task of the stage by id, an average in which each new episode has weight 1/2."""

    @property
    def finished(self) -> bool:
        """True after the last stage."""
        return self.index >= len(self.stages)

    @property
    def stage(self) -> Stage:
        """Current stage."""
        return self.stages[self.index]

    def add(self, success: float) -> bool:
        """Add an iteration's success rate; return whether the stage has reached its threshold or its length."""
        self.successes.append(success)
        stage, recent = self.stage, self.successes[-self.stage.window :]
        reached = (
            stage.success_threshold is not None
            and len(recent) == stage.window
            and sum(recent) / len(recent) >= stage.success_threshold
        )
        return reached or len(self.successes) >= stage.iterations

    def note(self, played: Sequence[Trajectory]) -> None:
        """Update the failure rates with episodes; a task that was never played has the rate 1."""
        for trajectory in played:
            name = trajectory.task.id
            self.failures[name] = (self.failures.get(name, 1.0) + (not trajectory.success)) / 2

    @property
    def ended(self) -> list[list[str | int]]:
        """Names and lengths of the stages that have ended."""
        return [[stage.name, stage.iterations] for stage in self.stages[: self.index]]

    def check_ended(self, then: Sequence[Sequence[str | int]] | None, checkpoint: Path) -> None:
        """Check that the stages which had ended in a checkpoint are the same now; ``None`` if it does not say.

        Raises:
            InvalidInput: one of them has another name or length.

        """
        for before, now in zip(then or (), self.ended, strict=False):
            if list(before) != now:
                raise InvalidInput(
                    f"in checkpoint {checkpoint}, stage {before[0]!r} has ended after at most {before[1]} iterations; "
                    f"now it is {now[0]!r} with {now[1]}: give the stages that have ended as they were, and add one."
                )

    def end_stage(self) -> None:
        """Continue with the next stage."""
        self.index += 1
        self.successes = []
        self.failures = {}


def fresh_episodes(curriculum: Curriculum, env: NatLangEnv, args: ReflectRLConfig, iteration: int) -> list[Episode]:
    """Return the episodes to play in an iteration; they depend on seed, iteration, process and failure rates."""
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
    """Draw past episodes for an update without replacement, with the same task priority as fresh episodes."""
    left, drawn = [*replay], list[Trajectory]()
    while left and len(drawn) < args.replay_episodes:
        tasks = [episode.task for episode in left]
        drawn.append(left.pop(_draw(tasks, curriculum.failures, args.task_priority, rng)))
    return drawn


def _draw(tasks: Sequence[Task], failures: Mapping[str, float], priority: float, rng: random.Random) -> int:
    """Draw the position of a task, uniformly or, with probability ``priority``, in proportion to its failure rate."""
    if priority and rng.random() < priority:
        weights = [failures.get(task.id, 1.0) for task in tasks]
        if any(weights):
            return rng.choices(range(len(tasks)), weights)[0]
    return rng.randrange(len(tasks))
