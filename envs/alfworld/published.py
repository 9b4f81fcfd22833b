"""The published games of ALFWorld (``json_2.1.1``), for those who have downloaded them: fixed lists by split."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reflectrl.core import InvalidInput, nearest
from reflectrl.envs.alfworld.games import FAMILIES, read_json

FOLDER = "json_2.1.1"
"""Has kept its name in all of ALFWorld's releases."""

PUBLISHED: Mapping[str, str] = {"train": "train", "validation": "valid_seen", "test": "valid_unseen"}
"""ALFWorld's own name of each of our splits; both are understood."""

SIZES: Mapping[str, int] = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
"""Games that ALFWorld plays of each split."""

HOW = "run alfworld-download, or set ALFWORLD_DATA to the folder that has json_2.1.1"


@dataclass(frozen=True)
class PublishedGame:
    """Where a published game lies; ``read_game`` reads it."""

    name: str
    """``TASK/TRIAL``, the folders' names."""
    family: str
    path: Path
    """Of ``game.tw-pddl``."""


def published_games(split: str, data: str | Path | None = None) -> tuple[PublishedGame, ...]:
    """The games of a split that ALFWorld itself would play, sorted by name.

    Left out as there: tasks with movable receptacles or slices, unsolvable games, and those nobody has tried to solve.

    Args:
        split: ours or ALFWorld's name for it.
        data: the folder ``json_2.1.1`` or the one it is in; ``ALFWORLD_DATA`` if it is not given.

    Raises:
        InvalidInput: an unknown split, missing data, a file that cannot be read.

    """
    own = PUBLISHED.get(split, split)
    if own not in SIZES:
        raise InvalidInput(f"split {split!r} of ALFWorld is unknown; {nearest(split, [*PUBLISHED, *SIZES])}")
    return _games(_folder(data) / own)


def label(split: str, games: int) -> str:
    """What a result on so many of a split's games has to say about itself: ``ALFWorld valid_unseen``."""
    own = PUBLISHED.get(split, split)
    part = "" if games == SIZES[own] else f", {games} of {SIZES[own]} games"
    return f"ALFWorld {own}{part}"


def _folder(data: str | Path | None) -> Path:
    given = data if data is not None else os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld"
    folder = Path(given).expanduser()
    found = folder if folder.name == FOLDER else folder / FOLDER
    if not found.is_dir():
        raise InvalidInput(f"the published games of ALFWorld are not in {found}; {HOW}.")
    return found


@cache
def _games(folder: Path) -> tuple[PublishedGame, ...]:
    """Read once in a process: thousands of files."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder.parent} has no folder {folder.name!r}; {HOW}.")
    trials = sorted(path.parent for path in folder.glob("*/*/traj_data.json"))
    games = [game for trial in trials if (game := _game(trial)) is not None]
    if not games:
        fault = f"{len(trials)} tasks but no game that can be played" if trials else "no tasks"
        raise InvalidInput(
            f"{folder} has {fault}; expected game.tw-pddl beside each traj_data.json: run alfworld-download of "
            "alfworld 0.4, or alfworld-generate."
        )
    return tuple(games)


def _game(trial: Path) -> PublishedGame | None:
    name = f"{trial.parent.name}/{trial.name}"
    path = trial / "game.tw-pddl"
    if "movable" in name or "Sliced" in name or not path.exists():
        return None
    family = read_json(trial / "traj_data.json").get("task_type")
    if family not in FAMILIES or not read_json(path).get("solvable"):
        return None
    return PublishedGame(name, family, path)
