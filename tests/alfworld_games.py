"""Small ALFWorld games for tests, in the formats of different ALFWorld releases."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from reflectrl.envs.alfworld.games import FAMILIES, Game

PLANS = dict(zip(FAMILIES, (14, 304, 419, 14, 29, 316), strict=True))
"""A small floor plan for each family, which the engine translates quickly."""
HOUSES = tuple(sorted(set(PLANS.values())))


TRIAL = "trial_T20190907_060234_011675"
FOLDERS = {"train": "train", "validation": "valid_seen", "test": "valid_unseen"}
"""ALFWorld's folder of each split."""


def write_game(folder: Path, game: Game, **further: object) -> Path:
    """Write the two files of a game as ALFWorld does, and return the path of ``game.tw-pddl``."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem}
    (folder / "game.tw-pddl").write_text(json.dumps({**texts, "solvable": True, **further}), encoding="utf-8")
    trajectory = {
        "task_type": game.family,
        "pddl_params": {**game.targets, "mrecep_target": "", "object_sliced": False},
    }
    (folder / "traj_data.json").write_text(json.dumps(trajectory), encoding="utf-8")
    return folder / "game.tw-pddl"


def publish(folder: Path, game: Game, **further: object) -> Path:
    """Write a game where ALFWorld has it in the folder of a split."""
    return write_game(folder / game.name.partition("/")[0] / TRIAL, game, **further)


def older(game: Game) -> Game:
    """Return the game as alfworld 0.3 wrote it, by reverting ALFWorld's own patch of its published games."""
    grammar, domain = game.grammar, game.domain
    for new, old in (
        ("move {o} to {r}", "put {o} in/on {r}"),
        ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
        ("You arrive at {r.name}.", "You arrive at {lend.name}."),
    ):
        assert new in grammar
        grammar = grammar.replace(new, old)
    grammar, without_help = re.subn(r"\naction help \{.*?\n\}\n", "\n", grammar, flags=re.DOTALL)
    domain, without_it_too = re.subn(r"\(:action help\n.*?\n\)\n", "", domain, flags=re.DOTALL)
    assert (without_help, without_it_too) == (1, 1)
    return replace(game, grammar=grammar, domain=domain)
