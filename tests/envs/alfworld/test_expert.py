from __future__ import annotations

import random

import pytest
from alfworld_games import PLANS

from reflectrl.envs.alfworld.engine import Engine
from reflectrl.envs.alfworld.expert import best_plan
from reflectrl.envs.alfworld.games import FAMILIES, make_game

QUIET = ("examine", "help", "inventory", "look")


@pytest.fixture(scope="module")
def engine():
    return Engine()


def plan_of(engine, game):
    return best_plan(game, engine.names, engine.snapshot())


def busy(engine):
    """Commands that can change something."""
    return [command for command in engine.snapshot().reply.commands if command.split()[0] not in QUIET]


def win(engine, game):
    """Follow the expert, who is asked at each step; every step brings the win nearer by one, as announced."""
    left = len(plan_of(engine, game).commands)
    while plan := plan_of(engine, game):
        commands = engine.snapshot().reply.commands
        assert len(plan.commands) == left
        assert plan.commands[0] in commands
        assert plan.standing.endswith(".")
        assert not [command for command in commands if command in plan.standing]
        engine.step(plan.commands[0])
        left -= 1
    assert left == 0
    assert engine.snapshot().reply.won


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_wins_from_every_state_and_no_command_brings_the_win_nearer_than_it_says(family, engine):
    """So no plan can be shorter: each command of one would have to shorten what is left by more than one."""
    game, rng = make_game(family, 3, scene=PLANS[family]), random.Random(family)
    engine.load(game)
    for steps in (0, 4, 10, 25):
        engine.reset()
        for _ in range(steps):
            if not engine.snapshot().reply.won:
                engine.step(rng.choice(busy(engine)))
        here = engine.snapshot()
        if here.reply.won:
            continue
        left = len(plan_of(engine, game).commands)
        for command in rng.sample(busy(engine), min(12, len(busy(engine)))):
            won = engine.step(command).won
            assert (0 if won else len(plan_of(engine, game).commands)) >= left - 1, command
            engine.restore(here)
        win(engine, game)
