"""Episodes of a run for the viewer: those of every evaluated policy, and those recorded in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectrl.core import Trajectory
from reflectrl.core.artefacts import Artefacts, read_artefacts
from reflectrl.core.jsonl import decode, read_jsonl
from reflectrl.core.layout import IMAGES, advantages_file, recorded_iterations, training_episodes_file
from reflectrl.report.packing import Recorded, pack
from reflectrl.report.pictures import Album
from reflectrl.report.runs import Run
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import episodes_file


@dataclass(frozen=True)
class PageLimits:
    """Limits of one page, with which browsers open it in less than a second."""

    evaluated: int = 10_000
    """Episodes of one evaluated policy."""
    training: int = 2_000
    """Episodes of one run's training, spread evenly over its iterations."""
    characters: int = 48 * 2**20
    """Characters of all packed episodes, divided equally among the runs."""
    pictures: int = 16 * 2**20
    """Characters of all pictures of their states, each of which is stored once."""


LIMITS = PageLimits()


@dataclass(frozen=True)
class Source:
    """Episodes that the viewer shows together."""

    key: str
    """Identifier in the page's address, independent of what else is reported."""
    run: int
    """Number of the run."""
    label: str
    policy: str
    """Name of the evaluated policy; empty for training."""
    episodes: int
    block: str
    """Packed episodes."""


@dataclass(frozen=True)
class Sources:
    """All episodes of a page with their pictures, and sentences about what is missing."""

    found: tuple[Source, ...]
    missing: tuple[str, ...]
    pictures: tuple[str, ...] = ()
    """Base64 of PNG files, which the packed episodes name by their numbers."""


def read_sources(runs: Sequence[Run], limits: PageLimits = LIMITS) -> Sources:
    """Read and pack the episodes of ``runs``, as many as ``limits`` allow.

    Raises:
        InvalidInput: a damaged or exchanged file.

    """
    found: list[Source] = []
    missing: list[str] = []
    album = Album()
    for number, run in enumerate(runs):
        album.room += limits.pictures // len(runs)
        before = album.left_out
        left = limits.characters // len(runs)
        artefacts = read_artefacts(run.path)
        sources = [*_evaluated(run, artefacts, limits.evaluated, missing)]
        if trained := _trained(run, artefacts, limits.training, missing):
            sources.append(("training", "training", "", trained))
        for key, label, policy, episodes in sources:
            shown = album.copy()
            block = pack(episodes, shown)
            if len(block) > left:
                missing.append(
                    f"{run.name}: the {len(episodes):,} episodes of {label} are left out, as the page would become too "
                    "large; report fewer runs at once."
                )
                continue
            left -= len(block)
            album = shown
            found.append(Source(f"{run.name}/{key}", number, label, policy, len(episodes), block))
        if more := album.left_out - before:
            missing.append(
                f"{run.name}: pictures of states that are left out, as the page would become too large: {more:,}; they "
                f"stand in {run.path / IMAGES}."
            )
    return Sources(tuple(found), tuple(missing), tuple(album.pictures))


def _evaluated(
    run: Run, artefacts: Artefacts, most: int, missing: list[str]
) -> Iterator[tuple[str, str, str, list[Recorded]]]:
    """Yield key, label, policy and episodes of each evaluated policy; add to ``missing`` what is not there."""
    splits = len({row.split for row in run.rows})
    for name, row in {episodes_file(row, splits): row for row in run.rows}.items():
        label = f"{row.policy}, {row.mode}"
        key = name.partition("/")[2].removesuffix(".jsonl")
        if "/" in key or not (run.path / name).is_file():
            missing.append(f"{run.name}: the episodes of {label} are not here: {run.path / name} is missing.")
            continue
        played = _first(read_trajectories(artefacts.verify(name))[1], most, f"{run.name}: of {label}", missing)
        words = "no reflections" if row.reflections == "none" else f"reflections by {row.reflections}"
        split = f", split {row.split}" if splits > 1 else ""
        if played:
            yield key, f"{label}, {words}{split}", row.policy, [Recorded(trajectory) for trajectory in played]


def _trained(run: Run, artefacts: Artefacts, most: int, missing: list[str]) -> list[Recorded]:
    """Return episodes of training, spread over its iterations; add to ``missing`` what is not there."""
    iterations = recorded_iterations(run.path)
    if not iterations:
        missing += [f"{run.name}: no episodes of training are recorded here."] if run.points else []
        return []
    each = max(1, len(read_trajectories(run.path / training_episodes_file(iterations[0]))[1]))
    count = max(2, most // each)
    if len(iterations) > count:
        missing.append(f"{run.name}: of training, {count:,} of {len(iterations):,} recorded iterations are here.")
        iterations = [iterations[round(place * (len(iterations) - 1) / (count - 1))] for place in range(count)]
    episodes: list[Recorded] = []
    for iteration in iterations:
        path = artefacts.verify(training_episodes_file(iteration))
        played = _first(read_trajectories(path)[1], most, f"{run.name}: of {path.stem}", missing)
        given: Sequence[tuple[float, ...] | None] = [None] * len(played)  # in older folders, which lack that file
        if (run.path / advantages_file(iteration)).is_file():
            given = _advantages(artefacts.verify(advantages_file(iteration)), played, missing)
        episodes += [Recorded(episode, iteration, each) for episode, each in zip(played, given, strict=True)]
    return episodes


def _first(played: list[Trajectory], most: int, of: str, missing: list[str]) -> list[Trajectory]:
    if len(played) > most:
        missing.append(f"{of}, the first {most:,} of {len(played):,} episodes are here.")
    return played[:most]


def _advantages(path: Path, played: Sequence[Trajectory], missing: list[str]) -> list[tuple[float, ...] | None]:
    """Return the advantages of the steps of each episode, none for one that was not learned from.

    All are ``None`` if the file belongs to other episodes.
    """
    rows = [decode(tuple[float, ...], value, where) for where, value in read_jsonl(path)][: len(played)]
    lengths = [len(trajectory.turns) for trajectory in played]
    if len(rows) != len(played) or any(row and len(row) != most for row, most in zip(rows, lengths, strict=True)):
        missing.append(f"{path} does not fit the episodes beside it, so their advantages are not shown.")
        return [None] * len(played)
    return [*rows]
