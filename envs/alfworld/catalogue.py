"""``Catalogue``: the games of an environment by split, either generated here or published (``json_2.1.1``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from reflectrl.core import InvalidInput, Task, nearest
from reflectrl.core.files import user_path
from reflectrl.core.types import SPLITS
from reflectrl.envs.alfworld.games import FAMILIES, KINDS, LABEL, Game, make_games, read_game, read_json

OWN = "alfworld:"
"""Prefix of the names of datasets that are not folders."""
PUBLISHED = "published"
GAMES = 200
"""Number of games generated for training, if no other is given."""


def full_name(dataset: str) -> str:
    """Return the name of a dataset whose prefix may be left out, as in ``alfworld:tomato``; a folder comes first."""
    return OWN + dataset if dataset in (*KINDS, PUBLISHED) and not Path(dataset).is_dir() else dataset


class Catalogue:
    """Lists the games of a split when they are first requested, and reads a game's file when it is first played.

    The arguments are those of ``AlfWorld``. A folder is ``json_2.1.1``, its parent folder, or one with games in train/,
    validation/ and test/.
    """

    def __init__(
        self,
        dataset: str,
        count: int,
        seed: int,
        families: tuple[str, ...],
        scenes: tuple[int, ...] | None,
        households: int | None,
    ) -> None:
        self.dataset = dataset
        self._count = count
        self._seed = seed
        self._families = families
        self._scenes = scenes
        self._households = households
        self._tasks: dict[str, tuple[Task, ...]] = {}
        self._games: dict[str, Game | Path] = {}

    def tasks(self, split: str) -> tuple[Task, ...]:
        """Return the tasks of a split, named after their games; ids begin with the family.

        Raises:
            InvalidInput: a dataset that does not exist, is not a dataset, or has no such games.
        """
        if split not in self._tasks:
            games = self._list(split)
            self._games.update(games)
            self._tasks[split] = tuple(
                Task(name, {"group": game.group if isinstance(game, Game) else name.partition("-")[0]})
                for name, game in games.items()
            )
        return self._tasks[split]

    def game(self, task: Task) -> Game:
        """Return the game of a task."""
        if task.id not in self._games:
            for split in SPLITS:
                with suppress(InvalidInput):  # a folder may lack a split
                    self.tasks(split)
            if task.id not in self._games:
                raise InvalidInput(f"task {task.id!r} is not in dataset {self.dataset!r}; use env.tasks(split).")
        found = self._games[task.id]
        return found if isinstance(found, Game) else _read(found)

    def benchmark(self, split: str, games: int) -> str:
        """Return the label of results on ``games`` games of a split."""
        if self._published:
            name, size = OFFICIAL[split]
            return f"ALFWorld {name}" if games == size else f"ALFWorld {name}, {games} of {size} games"
        plans = "" if self._scenes is None else ", floor plans of the training games"
        return f"{LABEL}{plans}{'' if self._households is None else f', {self._households} households'}"

    @property
    def _published(self) -> bool:
        if self.dataset.startswith(OWN):
            return self.dataset == OWN + PUBLISHED
        return Path(self.dataset).name == FOLDER or Path(self.dataset, FOLDER).is_dir()

    def _list(self, split: str) -> Mapping[str, Game | Path]:
        found: dict[str, Path]
        if self.dataset.startswith(OWN) and not self._published:
            return {game.name: game for game in self._made(split)}
        if self._published:
            folder = None if self.dataset == OWN + PUBLISHED else self.dataset
            found = {game.name: game.path for game in published_games(split, folder) if game.family in self._families}
        else:
            paths = sorted((Path(self.dataset) / split).glob("**/game.tw-pddl"))
            games = {path: _read(path) for path in paths}
            found = {game.name: path for path, game in games.items() if game.family in self._families}
        if not found:
            raise InvalidInput(
                f"dataset {self.dataset!r} has no {split} games of {', '.join(self._families)}; expected a folder with "
                f"game.tw-pddl files below {', '.join(SPLITS)}, or the published {FOLDER}."
            )
        return found

    def _made(self, split: str) -> tuple[Game, ...]:
        """Make the games of a split, with the families in turn."""
        kind = self.dataset.removeprefix(OWN)
        families = [family for family in KINDS[kind] if family in self._families]
        if not families:
            raise InvalidInput(f"dataset {self.dataset!r} has games of {KINDS[kind][0]!r} only; leave families out.")
        count = self._count if split == "train" else max(len(families), self._count // 4)
        return make_games(kind, split, count, self._seed, self._scenes, families, self._households)


@cache
def open_catalogue(
    dataset: str,
    count: int | None,
    seed: int | None,
    families: tuple[str, ...],
    scenes: tuple[int, ...] | None = None,
    households: int | None = None,
) -> Catalogue:
    """Return the catalogue of these arguments, of which a process has only one.

    Raises:
        InvalidInput: an unknown dataset or family, or options of generated games for games that are not generated here.
    """
    for family in families:
        if family not in FAMILIES:
            raise InvalidInput(f"family {family!r} is unknown; {nearest(family, FAMILIES)}")
    own = dataset.startswith(OWN)
    kind = dataset.removeprefix(OWN) if own else ""
    if own:
        if kind not in (*KINDS, PUBLISHED):
            raise InvalidInput(
                f"dataset {dataset!r} is unknown; {nearest(dataset, [OWN + kind for kind in (*KINDS, PUBLISHED)])}"
            )
    elif not Path(dataset).is_dir():
        raise InvalidInput(
            f"dataset {dataset!r} is not a folder; expected one with games, {OWN}tomato, {OWN}all or {OWN}{PUBLISHED}."
        )
    for option, given in (("count", count), ("seed", seed), ("scenes", scenes), ("households", households)):
        if given is not None and kind not in KINDS:
            said = list(given) if isinstance(given, tuple) else given
            raise InvalidInput(
                f"{option}={said} was given for the games of {dataset!r}, which are made already; leave it out or set "
                "it to null."
            )
    count = GAMES if count is None else count
    return Catalogue(dataset, count, 0 if seed is None else seed, families, scenes, households)


_read = lru_cache(maxsize=512)(read_game)


# ---- the published games, for those who have downloaded them: fixed lists by split ----

FOLDER = "json_2.1.1"
"""Folder of the games in all releases of ALFWorld."""

OFFICIAL: Mapping[str, tuple[str, int]] = {
    "train": ("train", 3553),
    "validation": ("valid_seen", 140),
    "test": ("valid_unseen", 134),
}
"""ALFWorld's own name of each of our splits, and the number of its games that ALFWorld plays."""

_HOW = "run alfworld-download, or set ALFWORLD_DATA to the folder that has json_2.1.1"


@dataclass(frozen=True)
class PublishedGame:
    """Place of a published game; ``read_game`` reads it."""

    name: str
    """``TASK/TRIAL``, the folders' names."""
    family: str
    path: Path
    """Path of ``game.tw-pddl``."""


def published_games(split: str, data: str | Path | None = None) -> tuple[PublishedGame, ...]:
    """Return the games of a split that ALFWorld itself would play, sorted by name.

    Left out as in ALFWorld: tasks with movable receptacles or slices, unsolvable games, and those that were never
    solved.

    Args:
        split: "train", "validation" or "test".
        data: the folder ``json_2.1.1`` or its parent folder; absent: ``ALFWORLD_DATA``.

    Raises:
        InvalidInput: missing data, or a file that cannot be read.
    """
    given = data if data is not None else os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld"
    folder = user_path(given)
    found = folder if folder.name == FOLDER else folder / FOLDER
    if not found.is_dir():
        raise InvalidInput(f"the published games of ALFWorld are not in {found}; {_HOW}.")
    return _published_games(found / OFFICIAL[split][0])


@cache
def _published_games(folder: Path) -> tuple[PublishedGame, ...]:
    """Return the games in a folder, read once in a process because there are thousands of files."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder.parent} has no folder {folder.name!r}; {_HOW}.")
    trials = sorted(path.parent for path in folder.glob("*/*/traj_data.json"))
    games = [game for trial in trials if (game := _published_game(trial)) is not None]
    if not games:
        raise InvalidInput(
            f"{folder} has {len(trials)} tasks but no game that can be played; expected game.tw-pddl beside each "
            "traj_data.json: run alfworld-download of alfworld 0.4, or alfworld-generate."
        )
    return tuple(games)


def _published_game(trial: Path) -> PublishedGame | None:
    name = f"{trial.parent.name}/{trial.name}"
    path = trial / "game.tw-pddl"
    if "movable" in name or "Sliced" in name or not path.exists():
        return None
    family = read_json(trial / "traj_data.json").get("task_type")
    if family not in FAMILIES or not read_json(path).get("solvable"):
        return None
    return PublishedGame(name, family, path)
