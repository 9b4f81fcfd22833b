"""The curriculum (section 4.4): stages in order, each with its own environment options and threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reflectrl.core import NatLangEnv, Task, Trajectory, nearest
from reflectrl.core.errors import InvalidInput


@dataclass(frozen=True)
class Stage:
    """One stage: what is played, for how long, and what counts as good enough."""

    name: str
    iterations: int
    """Iterations at most."""
    env: Mapping[str, Any] = field(default_factory=dict)
    """Options of the environment in this stage."""
    success_threshold: float | None = None
    """Mean success of the last ``window`` iterations that ends the stage early."""
    window: int = 5
    """Iterations the threshold looks at."""
    replay_threshold: float | None = None
    """Return from which an episode is worth replaying; ``None``: every successful one."""
    tasks: Sequence[str] = ()
    """Prefixes of the ids of the training tasks to play; empty for all."""

    def choose(self, env: NatLangEnv) -> list[Task]:
        """The stage's training tasks.

        Raises:
            InvalidInput: no training task has one of the prefixes.

        """
        tasks = env.split_tasks("train")
        chosen = [task for task in tasks if not self.tasks or task.id.startswith(tuple(self.tasks))]
        if not chosen:
            raise InvalidInput(
                f"stage {self.name!r} asks for tasks that start with {list(self.tasks)}, but environment "
                f"{env.name!r} has none; {nearest(self.tasks[0], [task.id for task in tasks[:20]])}"
            )
        return chosen

    def worth_replaying(self, trajectory: Trajectory) -> bool:
        """Whether an episode may enter the replay buffer."""
        if self.replay_threshold is None:
            return trajectory.success
        return trajectory.episode_return >= self.replay_threshold


class Curriculum:
    """Where training stands in the list of stages; its state is two numbers and a short list, kept in checkpoints."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self.index = 0
        """The stage being played."""
        self.successes: list[float] = []
        """Success rate of each iteration of this stage so far."""

    @property
    def finished(self) -> bool:
        """True after the last stage."""
        return self.index >= len(self.stages)

    @property
    def stage(self) -> Stage:
        """The stage being played."""
        return self.stages[self.index]

    def advance(self, success: float) -> bool:
        """Take note of an iteration's success rate; True when that ended the stage."""
        self.successes.append(success)
        stage, recent = self.stage, self.successes[-self.stage.window :]
        reached = (
            stage.success_threshold is not None
            and len(recent) == stage.window
            and sum(recent) / len(recent) >= stage.success_threshold
        )
        if not reached and len(self.successes) < stage.iterations:
            return False
        self.index += 1
        self.successes = []
        return True
