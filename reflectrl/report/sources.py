"""Episodes of a run for the viewer: those of every evaluated policy, and those recorded in training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from reflectrl.core import Trajectory
from reflectrl.core.files import read_bytes
from reflectrl.core.jsonl import decode, read_jsonl
from reflectrl.core.origin import Ledger
from reflectrl.core.run_files import IMAGES, advantages_file, recorded_iterations, training_episodes_file
from reflectrl.report.packing import Album, RecordedEpisode, pack, reader_of
from reflectrl.report.runs import RunData
from reflectrl.report.tables import UNTRAINED
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
    prompts: int = 5_000
    """Episodes with the prompts that the policy read, divided equally among the policies; they take time to make."""
    tokens: int = 4 * 2**20
    """Characters of the prompts whose tokens a page shows, at most; shared like the prompts, and 0 for several runs."""


LIMITS = PageLimits()


@dataclass(frozen=True)
class Source:
    """Episodes that the viewer shows together."""

    key: str
    """Identifier in the page's address, independent of what else is reported."""
    run: RunData
    label: str
    policy: str
    """Name of the evaluated policy; empty for training."""
    files: tuple[str, ...]
    """Names of the files in the run folder: one for an evaluated policy, or one for each iteration of training."""
    episodes: int | None = None
    """Number of episodes; ``None`` before they are read."""
    block: str = ""
    """Packed episodes; empty before they are read."""

    @property
    def reads(self) -> bool:
        """Whether a model of the run read prompts."""
        return self.policy not in (*UNTRAINED, "remote")

    @property
    def version(self) -> str:
        """Name of the state of its files, by their sizes and the times when they were written last."""
        states = []
        for name in self.files if self.policy else [file for each in self.files for file in (each, _beside(each))]:
            with suppress(FileNotFoundError):
                now = (self.run.path / name).stat()
                states.append((name, now.st_size, now.st_mtime_ns))
        return hashlib.sha256(repr(states).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Sources:
    """All episodes of a page with their pictures, and sentences about what is missing."""

    found: tuple[Source, ...]
    missing: tuple[str, ...]
    pictures: tuple[str, ...] = ()
    """Base64 of PNG files, which the packed episodes name by their numbers."""


def read_sources(runs: Sequence[RunData], limits: PageLimits = LIMITS) -> Sources:
    """Read and pack the episodes of ``runs``, as many as ``limits`` allow.

    Raises:
        InvalidInput: a damaged file.

    """
    found: list[Source] = []
    missing: list[str] = []
    album, few = Album(), False
    every = [find_sources(run, limits) for run in runs]
    count = max(1, sum(len(known.found) for known in every))
    prompts, reader = limits.prompts // count, reader_of(runs[0].path) if len(runs) == 1 else None
    for run, known in zip(runs, every, strict=True):
        album.room += limits.pictures // len(runs)
        before = album.left_out
        left = limits.characters // len(runs)
        missing += known.missing
        for source in known.found:
            episodes = read_source(source, missing, limits)
            if len(episodes) > prompts and episodes[0].layout:
                episodes = [*episodes[:prompts], *(replace(each, layout=None) for each in episodes[prompts:])]
                few = True
            shown = album.copy()
            given = reader if source.reads else None
            block = pack(episodes, shown, given, limits.tokens // count) if episodes else ""
            if len(block) > left:
                missing.append(
                    f"{run.name}: the {len(episodes):,} episodes of {source.label} are left out, as the page would "
                    "become too large; report fewer runs at once."
                )
            elif block:
                left -= len(block)
                album = shown
                found.append(replace(source, episodes=len(episodes), block=block))
        if more := album.left_out - before:
            missing.append(
                f"{run.name}: pictures of states that are left out, as the page would become too large: {more:,}; they "
                f"stand in {run.path / IMAGES}."
            )
    if few:
        missing.append(
            f"Prompts are included for the first {prompts:,} episodes of each policy; `reflectrl watch` shows them all."
        )
    return Sources(tuple(found), tuple(missing), tuple(album.pictures))


def find_sources(run: RunData, limits: PageLimits = LIMITS) -> Sources:
    """Return the sources of a run, not read yet, and sentences about those that are missing."""
    missing: list[str] = []
    found = [*_evaluated(run, missing), *_trained(run, limits.training, missing)]
    return Sources(tuple(found), tuple(missing))


def _evaluated(run: RunData, missing: list[str]) -> Iterator[Source]:
    splits = len({row.split for row in run.rows})
    for name, row in {episodes_file(row, splits): row for row in run.rows}.items():
        label = f"{row.policy}, {row.mode}"
        key = name.partition("/")[2].removesuffix(".jsonl")
        if "/" in key or not (run.path / name).is_file():
            missing.append(f"{run.name}: the episodes of {label} are not here: {run.path / name} is missing.")
            continue
        words = "no reflections" if row.reflections == "none" else f"reflections by {row.reflections}"
        label += f", {words}" + (f", split {row.split}" if splits > 1 else "")
        yield Source(f"{run.name}/{key}", run, label, row.policy, (name,))


def _trained(run: RunData, most: int, missing: list[str]) -> Iterator[Source]:
    """Yield the source of the run's training, with iterations that are spread evenly over it."""
    iterations = recorded_iterations(run.path)
    if not iterations:
        missing += [f"{run.name}: no episodes of training are recorded here."] if run.points else []
        return
    lines = read_bytes(run.path / training_episodes_file(iterations[0]), "episodes of training").count(b"\n")
    count = max(2, most // max(1, lines - 1))  # the first line is the header
    if len(iterations) > count:
        missing.append(f"{run.name}: of training, {count:,} of {len(iterations):,} recorded iterations are here.")
        iterations = [iterations[round(place * (len(iterations) - 1) / (count - 1))] for place in range(count)]
    yield Source(f"{run.name}/training", run, "training", "", tuple(map(training_episodes_file, iterations)))


def read_source(source: Source, missing: list[str], limits: PageLimits = LIMITS) -> list[RecordedEpisode]:
    """Return the episodes of a source, as many as ``limits`` allow; add to ``missing`` what is not there.

    Raises:
        InvalidInput: a file that is damaged, or gone since the source was found.

    """
    run, ledger = source.run, Ledger(source.run.path)
    if source.policy:
        header, played = read_trajectories(ledger.verify(source.files[0]))
        layout = None if source.policy in UNTRAINED else header.prompt
        of = f"{run.name}: of {source.label}"
        return [RecordedEpisode(each, layout=layout) for each in _first(played, limits.evaluated, of, missing)]
    episodes: list[RecordedEpisode] = []
    for file in source.files:
        path = ledger.verify(file)
        iteration = _iteration(file)
        header, recorded = read_trajectories(path)
        played = _first(recorded, limits.training, f"{run.name}: of {path.stem}", missing)
        given: Sequence[tuple[float, ...] | None] = [None] * len(played)  # in older folders, which lack that file
        if (run.path / _beside(file)).is_file():
            given = _advantages(ledger.verify(_beside(file)), played, missing)
        episodes += [
            RecordedEpisode(episode, iteration, each, header.prompt)
            for episode, each in zip(played, given, strict=True)
        ]
    return episodes


def _iteration(file: str) -> int:
    return int(Path(file).stem.rpartition("-")[2])


def _beside(file: str) -> str:
    """Return the name of the file with the advantages of an iteration's episodes."""
    return advantages_file(_iteration(file))


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
