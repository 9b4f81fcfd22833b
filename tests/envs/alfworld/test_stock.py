"""Texts, commands, scores and wins are those of the stack that everyone else plays on, to the byte."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import pytest
from old_alfworld import older

from reflectrl.envs.alfworld import AlfWorld
from reflectrl.envs.alfworld.engine import NOTHING, Engine, names
from reflectrl.envs.alfworld.games import make_game, write_game

LIGHT, SIMPLE, TWO = "look_at_obj_in_light", "pick_and_place_simple", "pick_two_obj_and_place"
CLEAN, HEAT, COOL = (f"pick_{what}_then_place_in_recep" for what in ("clean", "heat", "cool"))
# small floor plans, because the stock stack takes its time over each piece of furniture
GAMES = [
    (HEAT, 14, "move"),
    (COOL, 29, "put"),
    (SIMPLE, 214, "move"),
    (LIGHT, 304, "put"),
    (TWO, 316, "move"),
    (CLEAN, 419, "put"),
]
CHANGES = ("take", "move", "put", "open", "close", "heat", "cool", "clean", "use", "slice", "examine")
NONSENSE = ("dance with fridge 1", "", "LOOK", "go to fridge 99")


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """Makes a stock environment with a game in it; importing alfworld makes the folder it is told of."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("ALFWORLD_DATA", str(home / "alfworld"))
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
        from textworld.envs import PddlEnv

        assert {path.name for path in home.iterdir()} <= {"alfworld"}  # none, where it was imported before
        infos = textworld.EnvInfos(won=True, admissible_commands=True)

        def make(game):
            env = AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))
            path = write_game(home / game.name, game)
            env.load(json.loads(path.read_text(encoding="utf-8")))  # given a path, it leaves the file open
            return env

        yield make


@pytest.fixture(scope="module")
def engine():
    """One for all the games, which it plays in turn."""
    return Engine()


def told(state):
    return state.feedback, state["admissible_commands"], state["won"]


def said(reply):
    return reply.text, list(reply.commands), reply.won


def solution(game, folder):
    """What the environment's expert plays to win."""
    write_game(folder / "train" / "game", game)
    env, commands = AlfWorld(str(folder)), []
    env.reset(options={"task": env.tasks("train")[0]})
    while (command := env.expert()) is not None:
        commands.append(command)
        env.step(command)
    return commands


def wander(rng, admissible):
    """Any admissible command, more of those that change something."""
    busy = [command for command in admissible if command.split()[0] in CHANGES]
    return rng.choice(busy if busy and rng.random() < 0.6 else admissible)


@pytest.mark.parametrize(("family", "plan", "dialect"), GAMES)
def test_a_win_nonsense_and_random_play_read_as_in_the_stock_stack(family, plan, dialect, stock, engine, tmp_path):
    game, rng = make_game(family, plan, scene=plan), random.Random(plan)
    game = older(game) if dialect == "put" else game
    env = stock(game)
    reply = engine.load(game)
    assert said(reply) == told(env.reset())

    def both(command):
        state, score, done = env.step(command)
        reply = engine.step(command)
        assert said(reply) == told(state), command
        assert (score, done) == (int(reply.won), reply.won)
        return reply

    assert both(rng.choice(NONSENSE)).text == NOTHING
    played = solution(game, tmp_path)
    assert [both(command).won for command in played] == [False] * (len(played) - 1) + [True]
    assert any(command.startswith((dialect, "use")) for command in played)
    for _ in range(5):  # the engine itself does not mind that the game is over
        both(wander(rng, engine.snapshot().reply.commands))


@pytest.mark.usefixtures("stock")
def test_names_are_numbered_as_alfworlds_demangler_does():
    from alfworld.agents.utils.misc import Demangler

    ids = [
        "tomato_bar__plus_01_dot_00",
        "tomato_bar__minus_02",
        "sink_bar_1_bar_sinkbasin",
        "agent1",
        "loc_minus_3",
        "loc_bar_0",
    ]
    demangler = Demangler(game_infos={id: SimpleNamespace(id=id) for id in ids}, shuffle=False)
    assert names(ids) == {id: demangler.demangle_alfred_name(id) for id in ids}
