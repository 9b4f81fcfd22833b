"""Correctors of thoughts as a recipe describes them, with a real endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_endpoint import ScriptedEndpoint
from thinkers import Thinks

from reflectrl.config import load_recipe
from reflectrl.core import Observation, WorkFailed
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.team import Team
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import Player
from reflectrl.prompts.views import State
from reflectrl.rollout import Episode, rollout
from reflectrl.seats.corrector import RuleCorrector
from reflectrl.seats.table import menu_view

REMOTE = "gym_cards/nano_number_line_gtr_remote"
STATE = Observation("Target: 5. Current: 3.", ("-", "+"))
SAID = {"policy": "It is lower."}


def corrector(folder: Path, *overrides: str, name: str = REMOTE) -> Player:
    [seat] = Team(load_recipe(name, overrides), RunFolder(folder)).judges
    return seat.player


@pytest.mark.parametrize(("on_failure", "said"), [("skip", ""), ("default", "It is far."), ("raise", None)])
def test_the_recipe_says_what_follows_a_failure(
    on_failure: str, said: str | None, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    endpoint.reply = lambda _: "no idea"
    default = ["players.corrector.default=It is far."] if on_failure == "default" else []
    settings = (f"players.corrector.on_failure={on_failure}", "players.corrector.endpoint.max_attempts=1", *default)
    player = corrector(tmp_path, f"players.corrector.endpoint.base_url={endpoint.url}", *settings)
    layout = PromptFormat(action_mode="json")
    view = menu_view("corrector", layout, State(STATE, (), said=SAID), layout.menu_of(STATE), action="+")
    if said is None:
        with pytest.raises(WorkFailed, match="no idea"):
            player.say([view], [0.0])
        return
    assert [words.text for words in player.say([view], [0.0])] == [said]


@pytest.mark.parametrize("tool", [False, True])
def test_a_corrector_is_asked_the_recipes_questions(tool: bool, endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda _: '{"answer1": "3", "evaluation": "YES"}'
    recipe = load_recipe(
        REMOTE,
        [
            f"players.corrector.endpoint.base_url={endpoint.url}",
            "players.corrector.questions=['Which number is it?']",
            f"players.corrector.tool={str(tool).lower()}",
        ],
    )
    players = Team(recipe, RunFolder(tmp_path))
    [env] = players.env()
    episodes = [Episode(env.tasks("train")[0], seed=0)]
    policy = Thinks("It is lower.", legal=True)
    rollout([env], episodes, policy=policy, seats=players.judges, layout=players.layout)
    asked = [request.chat[1]["content"] for request in endpoint.requests]
    assert asked
    assert all(each.endswith("Questions:\n1. Which number is it?") for each in asked)
    assert {"A solver found: " in each for each in asked} == {tool}


def test_a_rule_needs_no_model(tmp_path: Path) -> None:
    assert isinstance(corrector(tmp_path, name="gym_cards/nano_ez_points_gtr"), RuleCorrector)
