from __future__ import annotations

import random

import pytest

from reflectrl.envs.alfworld.engine import Engine
from reflectrl.envs.alfworld.expert import best_plan
from reflectrl.envs.alfworld.games import FAMILIES, make_game

QUIET = ("examine", "help", "inventory", "look")
# small floor plans, which are translated fast
PLANS = dict(zip(FAMILIES, (14, 304, 419, 14, 29, 316), strict=True))


@pytest.fixture(scope="module")
def engine():
    return Engine()


@pytest.fixture(scope="module")
def games():
    return {family: make_game(family, 3, scene=plan) for family, plan in PLANS.items()}


def plan_of(engine, game, seen=None):
    return best_plan(game, engine.names, engine.snapshot(), seen)


def play(engine, game):
    """Follow the expert, asking it anew at each step; every step brings the win nearer by one, as announced."""
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


def wander(engine, rng, steps):
    for _ in range(steps):
        reply = engine.snapshot().reply
        if not reply.won:
            engine.step(rng.choice([command for command in reply.commands if command.split()[0] not in QUIET]))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_wins_every_family_from_the_start_and_after_random_steps(family, engine, games):
    game, rng = games[family], random.Random(family)
    engine.load(game)
    play(engine, game)
    for steps in (3, 10, 25):
        engine.reset()
        wander(engine, rng, steps)
        if not engine.snapshot().reply.won:
            play(engine, game)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_single_command_brings_the_win_nearer_than_the_expert_says(family, engine, games):
    """So no plan can be shorter: each command of one would have to shorten what is left by more than one."""
    game, rng = games[family], random.Random(family)
    engine.load(game)
    for _ in range(4):
        wander(engine, rng, 4)
        here = engine.snapshot()
        if here.reply.won:
            return
        left = len(plan_of(engine, game).commands)
        for command in here.reply.commands:
            if command.split()[0] in QUIET:
                continue
            engine.restore(here)
            won = engine.step(command).won
            assert (0 if won else len(plan_of(engine, game).commands)) >= left - 1, command
        engine.restore(here)


def test_a_thing_that_is_in_the_way_is_put_down_first(engine, games):
    game = games["pick_two_obj_and_place"]
    engine.load(game)
    wanted = game.targets["object_target"].lower()
    rng = random.Random(0)
    while not (held := [engine.names[thing] for _, thing in engine.facts.get("holds", ())]) or wanted in held[0]:
        wander(engine, rng, 1)
    plan = plan_of(engine, game)
    assert "is in hand but not wanted now" in plan.standing
    assert next(command for command in plan.commands if command.split()[0] in ("move", "take")).startswith("move")


def test_the_plan_of_a_past_state_can_be_asked_for(engine, games):
    game = games["pick_and_place_simple"]
    engine.load(game)
    start = engine.snapshot()
    first = plan_of(engine, game)
    engine.step(first.commands[0])
    assert best_plan(game, engine.names, start) == first
    assert plan_of(engine, game).commands == first.commands[1:]


# ---- with what was seen only -----------------------------------------------------------------------------------------


def things(engine, game, kind="object_target"):
    """Names of all things of the kind that the task is about."""
    return sorted(name for name in engine.names.values() if name.startswith(f"{game.targets[kind].lower()} "))


def follow(engine, game, seen):
    """Do what is planned with what was seen, as long as there is a plan."""
    played = []
    while plan := plan_of(engine, game, seen):
        played.append(plan.commands[0])
        engine.step(played[-1])
    return played


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_planned_with_what_was_not_seen(family, engine, games):
    engine.load(games[family])
    assert plan_of(engine, games[family], ()) is None
    for one in things(engine, games[family]):
        assert one in " ".join(plan_of(engine, games[family], {one}).commands)


def test_one_thing_of_two_is_brought_while_the_other_is_unknown(engine, games):
    game = games["pick_two_obj_and_place"]
    engine.load(game)
    first, second = things(engine, game)[:2]
    played = follow(engine, game, {first})
    assert first in played[-1]
    assert played[-1].startswith("move")
    assert not engine.snapshot().reply.won
    follow(engine, game, {first, second})
    assert engine.snapshot().reply.won


def test_without_a_lamp_the_thing_is_fetched_and_then_there_is_no_plan(engine, games):
    game = games["look_at_obj_in_light"]
    engine.load(game)
    known = set(things(engine, game))
    assert known == {"laptop 1", "laptop 2"}, "so there is another one to fetch"
    played = follow(engine, game, known)
    assert played[-1].startswith("take ")
    assert [command for command in played if command.startswith("move")] == []
    follow(engine, game, {*known, *things(engine, game, "toggle_target")})
    assert engine.snapshot().reply.won
