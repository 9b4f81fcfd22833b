from __future__ import annotations

import random
import re

import pytest

from reflectrl.envs.alfworld.engine import Engine
from reflectrl.envs.alfworld.expert import best_plan, fault
from reflectrl.envs.alfworld.games import FAMILIES, make_game

QUIET = ("examine", "help", "inventory", "look")


@pytest.fixture(scope="module")
def engine():
    return Engine()


def play(engine, game):
    """Follow the expert, asking it anew at each step; every step brings the win nearer by one, as announced."""
    left = len(best_plan(game, engine).commands)
    while plan := best_plan(game, engine):
        assert len(plan.commands) == left
        assert plan.commands[0] in engine.snapshot().reply.commands
        assert plan.standing.endswith(".")
        engine.step(plan.commands[0])
        left -= 1
    assert left == 0
    assert engine.snapshot().reply.won


def wander(engine, rng, steps):
    for _ in range(steps):
        reply = engine.snapshot().reply
        if not reply.won:
            engine.step(rng.choice([command for command in reply.commands if command.split()[0] not in QUIET]))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_wins_every_family_from_the_start_and_after_random_steps(family, engine):
    for seed in (3, 4):
        game, rng = make_game(family, seed), random.Random(seed)
        engine.load(game)
        play(engine, game)
        for steps in (3, 10, 25):
            engine.reset()
            wander(engine, rng, steps)
            if not engine.snapshot().reply.won:
                play(engine, game)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_single_command_brings_the_win_nearer_than_the_expert_says(family, engine):
    """So no plan can be shorter: each command of one would have to shorten what is left by more than one."""
    game, rng = make_game(family, 3), random.Random(family)
    engine.load(game)
    for _ in range(4):
        wander(engine, rng, 4)
        here = engine.snapshot()
        if here.reply.won:
            return
        left = len(best_plan(game, engine).commands)
        for command in here.reply.commands:
            if command.split()[0] in QUIET:
                continue
            engine.restore(here)
            won = engine.step(command).won
            assert (0 if won else len(best_plan(game, engine).commands)) >= left - 1, command
        engine.restore(here)


def test_a_thing_that_is_in_the_way_is_put_down_first(engine):
    game = make_game("pick_two_obj_and_place", 3)
    engine.load(game)
    wanted = game.targets["object_target"].lower()
    rng = random.Random(0)
    while not (held := [names for names in engine.facts.get("holds", ())]) or engine.names[held[0][1]].startswith(
        wanted
    ):
        wander(engine, rng, 1)
    plan = best_plan(game, engine)
    assert "is in hand but not wanted now" in plan.standing
    assert next(command for command in plan.commands if command.split()[0] in ("move", "take")).startswith("move")


def test_the_plan_of_a_past_state_can_be_asked_for(engine):
    game = make_game("pick_and_place_simple", 3)
    engine.load(game)
    start = engine.snapshot()
    first = best_plan(game, engine)
    engine.step(first.commands[0])
    assert best_plan(game, engine, start) == first
    assert best_plan(game, engine).commands == first.commands[1:]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_standing_never_names_a_command(family, engine):
    game = make_game(family, 4)
    engine.load(game)
    while plan := best_plan(game, engine):
        said = re.sub(r"\s+", " ", plan.standing)
        assert not any(command in said for command in engine.snapshot().reply.commands)
        engine.step(plan.commands[0])


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("go to cabinet 3", "cabinet 3 is of no use now"),
        ("open drawer 1", "drawer 1 is of no use now"),
        ("close fridge 1", "fridge 1 is of no use now"),
        ("take mug 2 from desk 1", "mug 2 is not wanted now"),
        ("move tomato 1 to sinkbasin 1", "tomato 1 does not belong in sinkbasin 1 now"),
        ("put tomato 1 in/on sinkbasin 1", "tomato 1 does not belong in sinkbasin 1 now"),
        ("heat egg 1 with microwave 1", "nobody asked for that"),
        ("use desklamp 1", "nobody asked for that"),
        ("examine egg 1", "that changed nothing"),
        ("inventory", "that changed nothing"),
    ],
)
def test_faults_by_hand(command, sentence):
    assert fault(command) == sentence
