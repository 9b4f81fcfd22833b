from __future__ import annotations

import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from alfworld_games import PLANS

from reflectrl.core import InvalidInput
from reflectrl.envs.alfworld.engine import NOTHING, Engine
from reflectrl.envs.alfworld.expert import best_plan
from reflectrl.envs.alfworld.games import FAMILIES, make_game
from reflectrl.envs.alfworld.translation import packed_translation, translate

GAMES = {family: make_game(family, 3, scene=plan) for family, plan in PLANS.items()}
QUIET = ("examine", "help", "inventory", "look")
SIMPLE = GAMES["pick_and_place_simple"]


@pytest.fixture(scope="module")
def engine():
    return Engine()


def walk(engine, rng, steps):
    """Replies to random commands, of which some are nonsense."""
    replies = []
    for _ in range(steps):
        nonsense = rng.random() < 0.1
        replies.append(engine.step("dance with fridge 1" if nonsense else rng.choice(engine.snapshot().reply.commands)))
    return replies


def walk_of(engine, family):
    return [engine.load(GAMES[family]), *walk(engine, random.Random(family), 10)]


@pytest.mark.slow
def test_states_can_be_returned_to(engine):
    heat = GAMES["pick_heat_then_place_in_recep"]
    start, facts = engine.load(heat), engine.snapshot().facts
    assert engine.step("take the moon") == replace(start, text=NOTHING)
    assert engine.snapshot().facts == facts
    rng = random.Random(0)
    walk(engine, rng, 6)
    here = engine.snapshot()
    first = walk(engine, random.Random(1), 8)
    for _ in range(2):
        walk(engine, rng, 5)
        assert engine.reset() == start
        assert engine.restore(here) == here.reply
        assert walk(engine, random.Random(1), 8) == first
    assert engine.load(heat) == start
    assert not engine.knows(here)


def test_a_game_is_loaded_again_once_its_states_fill_the_registry():
    engine = Engine(states=3)
    start = engine.load(SIMPLE)
    for _ in range(4):  # a state that was reached before takes no room
        for place in ("go to cabinet 1", "go to cabinet 2"):
            assert engine.step(place).text != NOTHING
    here = engine.snapshot()
    engine.reset()
    assert engine.knows(here)
    walk(engine, random.Random(0), 20)
    engine.restore(here)  # the number of the present state does not matter
    assert engine.reset() == start
    assert not engine.knows(here)


@pytest.mark.slow
def test_engines_in_one_process_do_not_meet_and_leave_no_memory_behind():
    alone = [walk_of(Engine(), family) for family in FAMILIES[:2]]
    engines, rngs = [Engine(), Engine()], [random.Random(family) for family in FAMILIES[:2]]
    beside = [[engine.load(GAMES[family])] for engine, family in zip(engines, FAMILIES[:2], strict=True)]
    for _ in range(10):
        for engine, rng, replies in zip(engines, rngs, beside, strict=True):
            replies.extend(walk(engine, rng, 1))
    assert beside == alone

    def resident_after_games_of_every_family(rounds):
        for family in FAMILIES * rounds:
            walk_of(Engine(), family)  # takes the library of one that is gone
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096

    before = resident_after_games_of_every_family(rounds=2)
    assert resident_after_games_of_every_family(rounds=6) - before < 6e6


def problem(old, new):
    assert old in SIMPLE.problem
    return {"problem": SIMPLE.problem.replace(old, new)}


def grammar(old, new):
    assert old in SIMPLE.grammar
    return {"grammar": SIMPLE.grammar.replace(old, new)}


def expression(code):
    return grammar("{r.indefinite} {r.name or r.id}", f"{{{code}}}")


DAMAGED = {
    "a torn problem": {"problem": "(define (problem x)"},
    "a zero byte": problem("agent1", "agent\0one"),
    "a goal out of reach": {"problem": re.sub(r"\(canContain .*\)", "", SIMPLE.problem)},
    "a torn grammar": {"grammar": SIMPLE.grammar[:6000]},
    "a grammar that never ends": grammar("-= Welcome", "#intro# -= Welcome"),
    "code in a grammar": expression("__import__('os').system('true')"),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_game_is_a_sentence_and_the_process_is_left_alone(damage, engine, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mine", "--flag"])
    with pytest.raises(InvalidInput) as caught:
        engine.load(replace(SIMPLE, **DAMAGED[damage]))
    assert len(str(caught.value).splitlines()) == 1
    assert (sys.argv, *capfd.readouterr(), *tmp_path.iterdir()) == (["mine", "--flag"], "", "")
    with pytest.raises(InvalidInput):
        engine.step("look")
    assert engine.load(SIMPLE).commands


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (grammar('feedback :: "#GotoLocation.feedback#', 'feedback :: "#moon#'), "'moon'"),
        (grammar("open {r}", "open {moon}"), "'moon'"),
    ],
    ids=["no words for the answer", "no words for what can be done next"],
)
def test_a_step_without_words_has_not_been_taken(change, fact, engine):
    before = engine.load(replace(SIMPLE, **change))
    for _ in range(2):
        with pytest.raises(InvalidInput, match=fact):
            engine.step("go to cabinet 1")
    assert engine.snapshot().reply == before
    assert engine.step("inventory").commands == before.commands


# ---- translations ----------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    packed_translation.cache_clear()
    return tmp_path


def translated(game):
    """Translate as a new process would."""
    packed_translation.cache_clear()
    return translate(game.domain, game.problem)


def files(home):
    return {path for path in home.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_translations_are_kept_and_reused(home):
    first = translated(SIMPLE)
    (kept,) = files(home)
    whole, written = kept.read_bytes(), kept.stat().st_mtime_ns
    assert translated(SIMPLE) == first
    assert kept.stat().st_mtime_ns == written
    other = translated(GAMES["pick_heat_then_place_in_recep"])
    (new,) = files(home) - {kept}
    kept.write_bytes(new.read_bytes())
    assert translated(SIMPLE) == other != first
    for damaged in (b"", b"no archive", b"x\x9cK\xaf\x02\x00\x02\x93\x01Q"):  # the last one is an archive of no JSON
        kept.write_bytes(damaged)
        assert translated(SIMPLE) == first
        assert kept.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(home):
    (home / "reflectrl").write_text("a file where the folder should be")
    assert translated(SIMPLE).facts


# ---- the expert ------------------------------------------------------------------------------------------------------


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
def test_the_expert_takes_a_shortest_way(family, engine):
    """So no plan can be shorter: each command of one would have to shorten what is left by more than one."""
    game, rng = GAMES[family], random.Random(family)
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
