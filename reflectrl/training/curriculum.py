"""The curriculum (section 4.4): a sequence of lessons, each with its own environment options and threshold."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal

from reflectrl.config.training import Lesson
from reflectrl.core import InvalidInput, NatLangEnv, Task, Trajectory
from reflectrl.core.seeds import derive_seed
from reflectrl.rollout import Episode
from reflectrl.training.config import ReflectRLConfig


class Curriculum:
    """Position of training in the sequence of lessons, which checkpoints save."""

    def __init__(self, lessons: Sequence[Lesson]) -> None:
        self.lessons = tuple(lessons)
        self.index = 0
        """Position in ``lessons`` of the current lesson."""
        self.successes: list[float] = []
        """Success rate of each iteration of the current lesson so far."""
        self.failures: dict[str, float] = {}
        """Recent failure rate of each task of the lesson by id, an average in which each new episode has weight 1/2."""
        self.weights: list[float] | None = None
        """Weights of the last episodes by which their means are those of uniformly drawn tasks; absent if equal."""

    @property
    def finished(self) -> bool:
        """True after the last lesson."""
        return self.index >= len(self.lessons)

    @property
    def lesson(self) -> Lesson:
        """Current lesson."""
        return self.lessons[self.index]

    @property
    def recent_success(self) -> float:
        """Mean success rate of the lesson's last ``window`` iterations; 0 before the first."""
        recent = self.successes[-self.lesson.window :]
        return sum(recent) / len(recent) if recent else 0.0

    def add(self, success: float) -> Literal["success_threshold", "iterations"] | None:
        """Add an iteration's success rate; return what ends the lesson, its threshold or its length, if it ends."""
        self.successes.append(success)
        threshold, played = self.lesson.success_threshold, len(self.successes)
        if threshold is not None and played >= self.lesson.window and self.recent_success >= threshold:
            return "success_threshold"
        return "iterations" if played >= self.lesson.iterations else None

    def weigh(self, played: Sequence[Trajectory], env: NatLangEnv, priority: float) -> None:
        """Weigh episodes that ``fresh_episodes`` drew, before ``note`` changes the failure rates.

        The weight of an episode is its task's uniform probability over the one with which it was drawn, so weighted
        sums are unbiased. Means are divided by the sum of the weights, which keeps a rate within 0 and 1; that biases
        them by less than about ``1 / ((1 - priority) * episodes)`` of their range, a fraction of their standard error.
        The mean of the uniformly drawn episodes alone has no bias, but there may be none, and its variance is larger:
        as if all weights were ``1 / (1 - priority)``, which is the largest that they can be.
        """
        self.weights = None
        if priority:
            tasks = self.lesson.choose(env)
            chances = zip(tasks, _chances(tasks, self.failures, priority), strict=True)
            drawn = {task.id: chance for task, chance in chances}
            self.weights = [1 / (len(tasks) * drawn[each.task.id]) for each in played]

    def note(self, played: Sequence[Trajectory]) -> None:
        """Update the failure rates with episodes; a task that was never played has the rate 1."""
        for trajectory in played:
            name = trajectory.task.id
            self.failures[name] = (self.failures.get(name, 1.0) + (not trajectory.success)) / 2

    @property
    def ended(self) -> list[list[str | int]]:
        """Names and lengths of the lessons that have ended."""
        return [[lesson.name, lesson.iterations] for lesson in self.lessons[: self.index]]

    def check_ended(self, then: Sequence[Sequence[str | int]], checkpoint: Path) -> None:
        """Check that the lessons which had ended in a checkpoint are the same now.

        Raises:
            InvalidInput: one of them has another name or length.
        """
        for before, now in zip(then, self.ended, strict=False):
            if list(before) != now:
                raise InvalidInput(
                    f"in checkpoint {checkpoint}, lesson {before[0]!r} has ended after at most {before[1]} iterations; "
                    f"now it is {now[0]!r} with {now[1]}: give the lessons that have ended as they were, and add one."
                )

    def end_lesson(self, *, last: bool = False) -> None:
        """Continue with the next lesson, or end after this one, if it is to be the ``last``."""
        self.index = len(self.lessons) if last else self.index + 1
        self.successes = []
        self.failures = {}


def fresh_episodes(
    curriculum: Curriculum, env: NatLangEnv, args: ReflectRLConfig, iteration: int, rank: int
) -> list[Episode]:
    """Return the episodes to play in an iteration; they depend on seed, iteration, process and failure rates."""
    rng = random.Random(derive_seed(args.seed, "tasks", iteration, rank))
    choices = curriculum.lesson.choose(env)
    sums = _summed(choices, curriculum.failures)
    groups = [choices[_draw(sums, args.task_priority, rng)] for _ in range(args.episodes // args.episodes_per_task)]
    tasks = [task for task in groups for _ in range(args.episodes_per_task)]
    return [
        Episode(task, derive_seed(args.seed, "episode", iteration, rank, number)) for number, task in enumerate(tasks)
    ]


def replayed_episodes(
    replay: Sequence[Trajectory], curriculum: Curriculum, args: ReflectRLConfig, rng: random.Random
) -> list[Trajectory]:
    """Draw past episodes for an update without replacement, with the same task priority as fresh episodes."""
    left, drawn = [*replay], list[Trajectory]()
    while left and args.replay is not None and len(drawn) < args.replay.episodes:
        sums = _summed([episode.task for episode in left], curriculum.failures)
        drawn.append(left.pop(_draw(sums, args.task_priority, rng)))
    return drawn


def _chances(tasks: Sequence[Task], failures: Mapping[str, float], priority: float) -> list[float]:
    """Return the probabilities with which ``_draw`` draws the tasks."""
    rates = [failures.get(task.id, 1.0) for task in tasks]
    priority, total = (priority, sum(rates)) if any(rates) else (0.0, 1.0)
    return [(1 - priority) / len(tasks) + priority * rate / total for rate in rates]


def _summed(tasks: Sequence[Task], failures: Mapping[str, float]) -> list[float]:
    """Return the sum of the failure rates of the tasks up to each."""
    return list(accumulate(failures.get(task.id, 1.0) for task in tasks))


def _draw(sums: Sequence[float], priority: float, rng: random.Random) -> int:
    """Draw the position of a task, uniformly or, with probability ``priority``, in proportion to its failure rate."""
    if priority and rng.random() < priority and sums[-1]:
        return rng.choices(range(len(sums)), cum_weights=sums)[0]
    return rng.randrange(len(sums))
