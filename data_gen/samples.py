"""``Sample``: one taught step, before it becomes text, and the file of negative samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from reflectrl.core import Observation, Task, Trajectory
from reflectrl.prompts.views import State
from reflectrl.rollout.record import Header, append_records, read_records, write_records

FORMAT = "reflectrl-samples"
_HOLDERS = ("observation",)


@dataclass(frozen=True)
class Sample:
    """Reflection and action of a teacher in one state. It holds public text only: no hint, no spoiler."""

    task: Task
    seed: int
    """Seed of the episode."""
    past: tuple[str, ...]
    """All actions that led to the state; the last one of a negative sample is the wrong one."""
    observation: Observation
    menu: tuple[str, ...]
    """The actions in the order in which they are shown."""
    reflection: str
    action: str
    """The teacher's choice, one of ``menu``; in a noisy step, another action is played."""
    negative: bool
    """True for a state reached by a deliberately wrong action (section 4.2)."""
    visited: tuple[Observation, ...] = ()
    """(t,) states in which the actions of ``past`` were chosen, without pictures and actions; empty where no prompt
    shows them."""
    rewards: tuple[float, ...] = ()
    """(t,) rewards of the environment for the actions of ``past``; empty where no prompt shows them."""

    previous: str = ""
    """Reflection of the step before, which a reflector that carries its words reads; empty where there is none."""
    correctable: bool = False
    """True if the reflection follows from the state alone, so that a wrong one of the step before can be corrected."""

    @property
    def state(self) -> State:
        """The state without anybody's words."""
        return State(
            self.observation,
            self.past,
            self.seed,
            visited=self.visited,
            rewards=self.rewards,
            before={"reflector": self.previous} if self.past else {},
        )


def past_states(visited: Iterable[Observation]) -> tuple[Observation, ...]:
    """Return past states as samples hold them, with the text only."""
    return tuple(replace(each.final, images=()) for each in visited)


@dataclass(frozen=True)
class TeacherEpisode:
    """One teacher episode."""

    number: int
    trajectory: Trajectory
    samples: tuple[Sample, ...]
    """Samples in the order of play; states where a held-out task starts are left out."""
    held_out: int
    """Number of samples left out because a held-out task starts in their state."""
    indiscreet: int = 0
    """Number of samples left out because the reflection says a secret that its prompt does not show."""
    rejected: bool = False
    """True if the episode ended because a call to the teacher was rejected."""


def write_samples(path: Path, header: Header, samples: Iterable[Sample]) -> None:
    """Write a file of samples, all of it or nothing; their images are stored beside it."""
    write_records(path, FORMAT, header, samples, _HOLDERS)


def append_samples(path: Path, header: Header, samples: Iterable[Sample]) -> None:
    """Add samples to a file, or begin one with ``header``; their images are stored beside it."""
    append_records(path, FORMAT, header, samples, _HOLDERS)


def read_samples(path: Path) -> tuple[Header, list[Sample]]:
    """Read a file of samples.

    Raises:
        InvalidInput: another format or version, a bad line, or an image that is missing or damaged; names the file.

    """
    return read_records(path, FORMAT, Sample, _HOLDERS)
