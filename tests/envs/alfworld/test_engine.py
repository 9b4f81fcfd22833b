from __future__ import annotations

import contextlib
import io
import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import fast_downward.interface
import pytest

from reflectrl.core import InvalidInput
from reflectrl.envs.alfworld import engine as engine_module
from reflectrl.envs.alfworld.engine import NOTHING, Engine
from reflectrl.envs.alfworld.games import FAMILIES, make_game
from reflectrl.envs.alfworld.translation import translate

# small floor plans, which are translated fast
PLANS = dict(zip(FAMILIES, (14, 304, 419, 14, 29, 316), strict=True))
GAMES = {family: make_game(family, 3, scene=plan) for family, plan in PLANS.items()}
SIMPLE = GAMES["pick_and_place_simple"]
CHANGES = ("take", "move", "put", "open", "close", "heat", "cool", "clean", "use", "slice", "examine")


@pytest.fixture(scope="module")
def engine():
    return Engine()


def commands(rng, admissible):
    """Any admissible command, more of those that change something, and now and then nonsense."""
    if rng.random() < 0.1:
        return "dance with fridge 1"
    busy = [command for command in admissible if command.split()[0] in CHANGES]
    return rng.choice(busy if busy and rng.random() < 0.6 else admissible)


def said(reply):
    return reply.text, list(reply.commands), reply.won


def walk(engine, rng, steps):
    return [said(engine.step(commands(rng, engine.snapshot().reply.commands))) for _ in range(steps)]


def test_what_is_not_admissible_changes_nothing(engine):
    before = engine.load(SIMPLE)
    facts = engine.facts
    reply = engine.step("take the moon")
    assert reply == replace(before, text=NOTHING)
    assert engine.facts == facts
    here = engine.snapshot()
    for _ in range(3):
        for place in ("go to cabinet 1", "go to cabinet 2"):
            assert engine.step(place).text != NOTHING
    assert engine.snapshot().state == 2  # a state that was reached before takes no room
    engine.reset()
    assert engine.knows(here)


def test_a_state_can_be_returned_to_from_anywhere(engine):
    engine.load(GAMES["pick_heat_then_place_in_recep"])
    rng = random.Random(0)
    walk(engine, rng, 6)
    here = engine.snapshot()
    first = walk(engine, random.Random(1), 8)
    for _ in range(3):
        walk(engine, rng, 5)
        assert engine.restore(here) == here.reply
        assert walk(engine, random.Random(1), 8) == first
    assert engine.reset() == engine.load(GAMES["pick_heat_then_place_in_recep"])


def test_a_state_outlives_a_reset_but_not_another_game(engine):
    engine.load(SIMPLE)
    walk(engine, random.Random(2), 4)
    here = engine.snapshot()
    engine.reset()
    assert engine.restore(here) == here.reply
    engine.load(GAMES["look_at_obj_in_light"])
    assert not engine.knows(here)
    with pytest.raises(InvalidInput):
        engine.restore(here)


def test_a_game_that_filled_the_registry_is_loaded_anew_wherever_it_stands():
    engine = Engine(states=10)
    start = engine.load(SIMPLE)
    walk(engine, random.Random(0), 20)
    here = engine.snapshot()
    engine.restore(replace(here, state=0))
    assert engine.reset() == start
    assert not engine.knows(here)


def test_two_engines_in_one_process_do_not_meet():
    alone = [walk_of(Engine(), family) for family in FAMILIES[:2]]
    engines = [Engine(), Engine()]
    rngs = [random.Random(family) for family in FAMILIES[:2]]
    beside = [[said(engine.load(GAMES[family]))] for engine, family in zip(engines, FAMILIES[:2], strict=True)]
    for _ in range(10):
        for engine, rng, steps in zip(engines, rngs, beside, strict=True):
            steps.extend(walk(engine, rng, 1))
    assert beside == alone


def walk_of(engine, family):
    return [said(engine.load(GAMES[family])), *walk(engine, random.Random(family), 10)]


def test_memory_stays_flat_over_games_and_engines():
    def resident():
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096

    def play():
        for family in FAMILIES:
            engine = Engine()  # takes the library of one that is gone
            walk_of(engine, family)

    for _ in range(2):
        play()
    before = resident()
    for _ in range(8):
        play()
    assert resident() - before < 6e6


def without(facts):
    return {"problem": re.sub(rf"\({facts} .*\)", "", SIMPLE.problem)}


def problem(old, new):
    assert old in SIMPLE.problem
    return {"problem": SIMPLE.problem.replace(old, new)}


def grammar(old, new):
    assert old in SIMPLE.grammar
    return {"grammar": SIMPLE.grammar.replace(old, new)}


def expression(code):
    return grammar("{r.indefinite} {r.name or r.id}", f"{{{code}}}")


@pytest.mark.parametrize(
    "change",
    [
        {"problem": "(define (problem x)"},
        {"problem": ""},
        {"problem": "(" * 100_000},
        problem("(:init", "(:init (openable moon)"),
        problem("- receptacle", "- receptakle"),
        problem("agent1", "ägent1"),
        problem("(inReceptacle ", "(inReceptacle agent1 "),
        problem("agent1", "agent\0one"),
        problem("agent1", "a" * 2000),
        without("canContain"),
        without("atLocation"),
        {"domain": "(define (domain alfred))"},
        {"grammar": "action {"},
        {"grammar": SIMPLE.grammar[:6000]},
        {"grammar": ""},
        grammar('"look.feedback"', '"moon.feedback"'),
        grammar("-= Welcome", "#intro# -= Welcome"),
        grammar("(r:receptacle, l:location)}]", "(r & l)}]"),
        grammar("action inventory", "action examination"),
        # a grammar cannot run code
        *map(
            expression, ("__import__('os').system('true')", "o.__class__", "o.name * 9", "nobody.name", "(lambda: 1)()")
        ),
    ],
    ids=range(24),
)
def test_a_torn_game_is_a_sentence_not_a_traceback(change, engine, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as caught:
        engine.load(replace(SIMPLE, **change))
    assert len(str(caught.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    for use in (engine.reset, engine.snapshot, lambda: engine.step("look")):
        with pytest.raises(InvalidInput):
            use()
    assert engine.load(SIMPLE).commands


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (grammar('feedback :: "#GotoLocation.feedback#', 'feedback :: "#moon#'), "'moon'"),
        (grammar("You arrive at {r.name}.", "#GotoLocation.feedback#"), "'#GotoLocation.feedback#'"),
        (grammar("open {r}", "open {moon}"), "'moon'"),
    ],
)
def test_a_step_without_words_has_not_been_taken(change, fact, engine):
    before = engine.load(replace(SIMPLE, **change))
    for _ in range(2):
        with pytest.raises(InvalidInput, match=fact):
            engine.step("go to cabinet 1")
    assert engine.snapshot().reply == before
    assert engine.step("inventory").commands == before.commands


def test_the_translator_leaves_the_process_alone(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mine", "--flag"])
    for out in (sys.stdout, io.StringIO()):
        with contextlib.redirect_stdout(out):
            Engine().load(make_game("pick_and_place_simple", 77, scene=14))
            assert sys.stdout is out
        translate.cache_clear()
    assert sys.argv == ["mine", "--flag"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["gone.so", "odd.so"])
def test_a_library_that_is_missing_or_does_not_fit_is_a_sentence(name, tmp_path, monkeypatch):
    (tmp_path / "odd.so").write_bytes(b"compiled elsewhere")
    monkeypatch.setattr(fast_downward.interface, "DOWNWARD_LIB_PATH", str(tmp_path / name))
    monkeypatch.setattr(engine_module, "_LIBRARIES", [])
    with pytest.raises(InvalidInput, match=r"pip install"):
        Engine()
