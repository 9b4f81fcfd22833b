"""Texts, commands, scores and wins are those of the stack that everyone else plays on, to the byte."""

from __future__ import annotations

import json
import random

import pytest
from alfworld_games import older, write_game

from reflectrl.envs.alfworld import AlfWorld
from reflectrl.envs.alfworld.engine import NOTHING, Engine
from reflectrl.envs.alfworld.games import FAMILIES, make_game

*_, HEAT, COOL, TWO = FAMILIES
# small floor plans, because the stock stack takes its time over each piece of furniture
GAMES = [(HEAT, 14, "move"), (COOL, 14, "put"), (TWO, 316, "move")]
CHANGES = ("take", "move", "put", "open", "close", "heat", "cool", "clean", "use", "slice", "examine")


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """Makes a stock environment with a game in it; importing alfworld makes the folder that ALFWORLD_DATA names."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("ALFWORLD_DATA", str(home / "alfworld"))
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
        from textworld.envs import PddlEnv

        def make(path):
            infos = textworld.EnvInfos(won=True, admissible_commands=True)
            env = AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))
            env.load({**json.loads(path.read_text(encoding="utf-8")), "walkthrough": None})  # a path is left open
            return env

        yield make


@pytest.fixture(scope="module")
def engine():
    """One engine, which plays all games in turn."""
    return Engine()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "plan", "dialect"), GAMES)
def test_a_win_nonsense_and_random_play_read_as_in_the_stock_stack(family, plan, dialect, stock, engine, tmp_path):
    game, rng = make_game(family, plan, scene=plan), random.Random(plan)
    game = older(game) if dialect == "put" else game
    theirs = stock(write_game(tmp_path / "train" / "game", game))
    env = AlfWorld(str(tmp_path))  # for its expert
    env.reset(options={"task": env.tasks("train")[0]})

    def compare(reply, state):
        assert (reply.text, list(reply.commands)) == (state.feedback, state["admissible_commands"])
        assert reply.won == state["won"]

    def both(command):
        state, score, done = theirs.step(command)
        reply = engine.step(command)
        compare(reply, state)
        assert (score, done) == (int(reply.won), reply.won)
        return reply

    compare(engine.load(game), theirs.reset())
    assert both(rng.choice(("dance with fridge 1", "", "LOOK", "go to fridge 99"))).text == NOTHING
    while (command := env.expert()) is not None:
        env.step(command)
        reply = both(command)
    assert reply.won
    for _ in range(5):  # the engine itself does not mind that the game is over
        commands = engine.snapshot().reply.commands
        busy = [command for command in commands if command.split()[0] in CHANGES]
        both(rng.choice(busy if busy and rng.random() < 0.6 else commands))
