"""Episodes of a run for the viewer: those of every evaluated policy, and those recorded in training."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from reflectrl.core import Image, InvalidInput, Trajectory, Turn
from reflectrl.core.files import read_bytes
from reflectrl.core.jsonl import decode, read_jsonl
from reflectrl.core.origin import Ledger
from reflectrl.core.run_files import IMAGES, advantages_file, recorded_iterations, training_episodes_file
from reflectrl.core.types import OUTCOMES
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.chats import thought_in
from reflectrl.prompts.views import MenuView
from reflectrl.report.markup import MAX_CHARACTERS, excerpt
from reflectrl.report.runs import RunData
from reflectrl.report.tables import UNTRAINED
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import episodes_file
from reflectrl.rollout.turn import policy_views

LEFT_OUT = -1
"""Number of a picture for which a page has no room."""


@dataclass
class Album:
    """Pictures with their numbers, in the order in which they were first seen."""

    room: int = 0
    """Characters that are left for further pictures."""
    numbers: dict[Image, int] = field(default_factory=dict)
    """Number of each picture that was seen; ``LEFT_OUT`` where it did not fit."""
    pictures: list[str] = field(default_factory=list)
    """Base64 of the PNG file of each picture, by number."""

    def number(self, image: Image) -> int:
        """Return the number of a picture, which is added where it is new and fits."""
        if image not in self.numbers:
            data = base64.b64encode(image.data).decode()
            fits = len(data) <= self.room
            self.numbers[image] = len(self.pictures) if fits else LEFT_OUT
            if fits:
                self.room -= len(data)
                self.pictures.append(data)
        return self.numbers[image]

    def copy(self) -> Album:
        """Return an album of the same pictures, to which others can be added."""
        return Album(self.room, dict(self.numbers), list(self.pictures))

    @property
    def left_out(self) -> int:
        """Number of pictures that did not fit."""
        return list(self.numbers.values()).count(LEFT_OUT)


MAX_ACTIONS = 24
"""Number of a menu's actions that are shown: the chosen one and the most probable others."""
_NAME = 300
"""Maximum number of characters shown of a task's name, or of an action."""


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode, with its training records if it is from training."""

    trajectory: Trajectory
    iteration: int | None = None
    """Iteration of the training; ``None`` for an evaluated episode."""
    advantages: tuple[float, ...] | None = None
    """(T,) as the trainer used them; ``None`` where they were not recorded."""
    layout: PromptFormat | None = None
    """Layout of the prompts that the policy read; ``None`` for one that reads none."""


class _Texts:
    """Visible texts, and menus of them, numbered in the order in which they were first seen."""

    def __init__(self, album: Album) -> None:
        self.album = album
        self._known: dict[tuple[str, int], int] = {}  # original texts, most of which recur
        self.texts: dict[str, int] = {}
        self.menus: dict[tuple[str, ...], int] = {}

    def text(self, text: str, limit: int = MAX_CHARACTERS) -> int:
        if (text, limit) not in self._known:
            self._known[text, limit] = self.texts.setdefault(excerpt(text, limit), len(self.texts))
        return self._known[text, limit]

    def menu(self, actions: tuple[str, ...]) -> int:
        return self.menus.setdefault(actions, len(self.menus))


def pack(episodes: Sequence[RecordedEpisode], album: Album) -> str:
    """Return base64 of the compressed JSON of ``columns``; new pictures are added to ``album``."""
    text = json.dumps(columns(episodes, album), ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def columns(episodes: Sequence[RecordedEpisode], album: Album) -> dict[str, Any]:
    """Return the object that viewer.js unpacks: ``texts``; ``menus`` as numbers of texts; ``episodes``.

    An episode is [task, goal, outcome, seed, iteration or null, steps]: the goal is what its observations share, or -1;
    the outcome is its number in ``OUTCOMES``. A step is [observation, menu, reflection or -1,
    chosen, reward, illegal, value, advantage or null, actions left out, their probability, probabilities, what the
    policy wrote or -1, correction, pictures, prompt]: texts are numbers, probabilities ten-thousandths. A correction is
    the differences between thought and correction, see ``differences``; empty without one. Pictures are their numbers
    in ``album``. A prompt is the parts that the policy read, each with its place in ``PARTS``, before it is cut.
    """
    seen = _Texts(album)
    packed = [_episode(recorded, seen) for recorded in episodes]
    menus = [[seen.text(action, _NAME) for action in menu] for menu in seen.menus]
    return {"texts": list(seen.texts), "menus": menus, "episodes": packed}


def _episode(recorded: RecordedEpisode, texts: _Texts) -> list[Any]:
    played = recorded.trajectory
    goal = played.turns[0].observation.task if played.turns else ""
    advantages = recorded.advantages or [None] * len(played.turns)
    prompts = _prompts(recorded) or [[]] * len(played.turns)
    return [
        texts.text(played.task.id, _NAME),
        texts.text(goal) if goal else -1,
        OUTCOMES.index(played.outcome),
        played.seed,
        recorded.iteration,
        [
            [*_step(turn, goal, value, texts), [(part, texts.text(words)) for part, words in prompt]]
            for turn, value, prompt in zip(played.turns, advantages, prompts, strict=True)
        ],
    ]


PARTS = ("instructions", "past", "state", "words", "menu")
"""Parts of a prompt, in their order."""


def _prompts(recorded: RecordedEpisode) -> list[list[tuple[int, str]]]:
    """Return the parts of each prompt; empty where the policy read none, or the record does not tell."""
    views: list[MenuView] = []
    if recorded.layout:
        with suppress(InvalidInput):
            views = policy_views(recorded.trajectory, recorded.layout)
    return [
        [(place, words) for place, words in enumerate(parts) if words]
        for prompt in (each.prompt for each in views)
        for parts in [(prompt.head, "".join(prompt.history), prompt.state, prompt.said, prompt.tail)]
    ]


def _step(turn: Turn, goal: str, advantage: float | None, texts: _Texts) -> list[Any]:
    seen, menu = turn.observation, turn.menu or (turn.decision.action,)
    chosen = turn.decision.choice.index if turn.menu else 0
    odds, written = turn.decision.choice.probabilities, turn.decision.choice.written
    better = turn.said["corrector"].text if "corrector" in turn.said else ""
    corrected = differences(thought_in(written.text), better) if written and better else []
    if len(odds) != len(menu):
        odds = ()  # the probabilities are unknown
    ranked = sorted(range(len(menu)), key=lambda at: (at != chosen, -odds[at] if odds else at))
    kept, others = sorted(ranked[:MAX_ACTIONS]), ranked[MAX_ACTIONS:]
    return [
        texts.text(seen.text if seen.task == goal else seen.full_text),
        texts.menu(tuple(menu[at] for at in kept)),
        -1 if turn.reflection is None else texts.text(turn.reflection),
        kept.index(chosen) if chosen in kept else -1,
        _rounded(turn.reward),
        int(turn.illegal),
        _rounded(turn.decision.value),
        None if advantage is None else _rounded(advantage),
        len(others),
        _ten_thousandths(sum(odds[at] for at in others) if odds else 0.0),
        [_ten_thousandths(odds[at]) for at in kept] if odds else [],
        -1 if written is None else texts.text(written.text),
        [(kind, texts.text(words)) for kind, words in corrected],
        [texts.album.number(image) for image in seen.images],
    ]


def differences(old: str, new: str) -> list[tuple[int, str]]:
    """Return the words of two texts in runs: 0 for words in both, -1 for old ones only, 1 for new ones only."""
    before, after = old.split(), new.split()
    runs = []
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        parts = [(0, before[a:b])] if kind == "equal" else [(-1, before[a:b]), (1, after[c:d])]
        runs += [(sign, " ".join(words)) for sign, words in parts if words]
    return runs


def _ten_thousandths(probability: float) -> int:
    return round(10_000 * min(1.0, max(0.0, probability)))


def _rounded(number: float) -> float:
    """Round a number, to one that the browser reads from JSON unchanged."""
    return round(number, 4) + 0.0  # without the sign of a zero


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
    name: str
    """Name of the run."""
    folder: Path
    """The run folder."""
    files: tuple[str, ...]
    """Names of the files in it: that of an evaluated policy's episodes, or one for each iteration of training."""
    episodes: int | None = None
    """Number of episodes; ``None`` before they are read."""
    block: str = ""
    """Packed episodes; empty before they are read."""

    @property
    def version(self) -> str:
        """Name of the state of its files, by their sizes and the times when they were written last."""
        states = []
        for name in self.files if self.policy else [file for each in self.files for file in (each, _beside(each))]:
            with suppress(FileNotFoundError):
                now = (self.folder / name).stat()
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
    every = [find_sources(number, run, limits) for number, run in enumerate(runs)]
    prompts = limits.prompts // max(1, sum(len(known.found) for known in every))
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
            block = pack(episodes, shown) if episodes else ""
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


def find_sources(number: int, run: RunData, limits: PageLimits = LIMITS) -> Sources:
    """Return the sources of the ``number``-th run, not read yet, and sentences about those that are missing."""
    missing: list[str] = []
    found = [*_evaluated(number, run, missing), *_trained(number, run, limits.training, missing)]
    return Sources(tuple(found), tuple(missing))


def _evaluated(number: int, run: RunData, missing: list[str]) -> Iterator[Source]:
    splits = len({row.split for row in run.rows})
    for name, row in {episodes_file(row, splits): row for row in run.rows}.items():
        label = f"{row.policy}, {row.mode}"
        key = name.partition("/")[2].removesuffix(".jsonl")
        if "/" in key or not (run.path / name).is_file():
            missing.append(f"{run.name}: the episodes of {label} are not here: {run.path / name} is missing.")
            continue
        words = "no reflections" if row.reflections == "none" else f"reflections by {row.reflections}"
        label += f", {words}" + (f", split {row.split}" if splits > 1 else "")
        yield Source(f"{run.name}/{key}", number, label, row.policy, run.name, run.path, (name,))


def _trained(number: int, run: RunData, most: int, missing: list[str]) -> Iterator[Source]:
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
    files = tuple(map(training_episodes_file, iterations))
    yield Source(f"{run.name}/training", number, "training", "", run.name, run.path, files)


def read_source(source: Source, missing: list[str], limits: PageLimits = LIMITS) -> list[RecordedEpisode]:
    """Return the episodes of a source, as many as ``limits`` allow; add to ``missing`` what is not there.

    Raises:
        InvalidInput: a file that is damaged, or gone since the source was found.

    """
    ledger = Ledger(source.folder)
    if source.policy:
        header, played = read_trajectories(ledger.verify(source.files[0]))
        layout = None if source.policy in UNTRAINED else header.prompt
        of = f"{source.name}: of {source.label}"
        return [RecordedEpisode(each, layout=layout) for each in _first(played, limits.evaluated, of, missing)]
    episodes: list[RecordedEpisode] = []
    for file in source.files:
        path = ledger.verify(file)
        iteration = _iteration(file)
        header, recorded = read_trajectories(path)
        played = _first(recorded, limits.training, f"{source.name}: of {path.stem}", missing)
        given: Sequence[tuple[float, ...] | None] = [None] * len(played)  # in older folders, which lack that file
        if (source.folder / _beside(file)).is_file():
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
