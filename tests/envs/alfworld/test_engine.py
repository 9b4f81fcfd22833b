from __future__ import annotations

import contextlib
import io
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reflectrl.core import InvalidInput
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
    with pytest.raises(InvalidInput, match="has loaded a game since"):
        engine.restore(here)


def test_a_game_that_filled_the_registry_is_loaded_anew_wherever_it_stands():
    engine = Engine(states=10)
    start = engine.load(SIMPLE)
    walk(engine, random.Random(0), 20)
    here = engine.snapshot()
    engine.restore(replace(here, state=0))
    assert engine.reset() == start
    assert not engine.knows(here)


def test_a_state_that_was_reached_before_takes_no_room():
    engine = Engine(states=3)
    engine.load(SIMPLE)
    here = engine.snapshot()
    for _ in range(10):
        for place in ("go to cabinet 1", "go to cabinet 2"):
            assert engine.step(place).text != NOTHING
    assert engine.snapshot().state == 2
    engine.reset()
    assert engine.knows(here)


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


def test_translations_are_kept_but_not_without_end():
    game = SIMPLE
    assert translate(game.domain, game.problem) is translate(game.domain, game.problem)
    assert translate.cache_info().maxsize == 512


def test_the_translator_leaves_the_process_alone(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mine", "--flag"])
    out = sys.stdout
    Engine().load(make_game("pick_and_place_simple", 77))
    assert sys.argv == ["mine", "--flag"]
    assert sys.stdout is out
    assert capsys.readouterr() == ("", "")


def without(facts):
    return {"problem": re.sub(rf"\({facts} .*\)", "", SIMPLE.problem)}


def problem(old, new):
    assert old in SIMPLE.problem
    return {"problem": SIMPLE.problem.replace(old, new)}


def grammar(old, new):
    assert old in SIMPLE.grammar
    return {"grammar": SIMPLE.grammar.replace(old, new)}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"problem": "(define (problem x)"}, "problem cannot be translated"),
        ({"problem": ""}, "problem cannot be translated"),
        ({"problem": "(" * 100_000}, "problem cannot be translated"),
        (problem("(:init", "(:init (openable moon)"), "speaks of 'moon'"),
        (problem("- receptacle", "- receptakle"), "problem cannot be translated: .*'receptakle'"),
        (problem("agent1", "ägent1"), "problem cannot be translated: Non-ASCII"),
        (problem("(inReceptacle ", "(inReceptacle agent1 "), "problem cannot be translated: .*wrong arity"),
        (problem("agent1", "agent\0one"), "hold a zero byte or are too long"),
        (problem("agent1", "a" * 2000), "hold a zero byte or are too long"),
        (without("canContain"), "goal cannot be reached"),
        (without("atLocation"), "goal cannot be reached"),
        ({"domain": "(define (domain alfred))"}, "problem cannot be translated"),
        ({"grammar": "action {"}, "grammar of a game cannot be parsed"),
        ({"grammar": SIMPLE.grammar[:6000]}, "grammar of a game cannot be parsed"),
        ({"grammar": ""}, "says nothing for 'intro'"),
        (grammar('"look.feedback"', '"moon.feedback"'), "says nothing for 'look.feedback'"),
        (grammar("-= Welcome", "#intro# -= Welcome"), "never ends to tell '#intro#'"),
        (
            grammar("(r:receptacle, l:location)}]", "(r & l)}]"),
            r"condition 'receptacleatlocation\(r & l\)', which cannot",
        ),
        (grammar("action inventory", "action examination"), "has no action 'inventory'"),
    ],
)
def test_a_torn_game_is_a_sentence_not_a_traceback(change, sentence, engine, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=sentence):
        engine.load(replace(SIMPLE, **change))
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput, match="call load first"):
        engine.step("look")
    assert engine.load(SIMPLE).commands


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (grammar('feedback :: "#GotoLocation.feedback#', 'feedback :: "#moon#'), "says nothing for 'moon'"),
        (grammar("You arrive at {r.name}.", "#GotoLocation.feedback#"), "never ends to tell '#GotoLocation.feedback#'"),
        (grammar("open {r}", "open {moon}"), "holds the expression 'moon'"),
    ],
)
def test_a_step_without_words_has_not_been_taken(change, sentence, engine):
    before = engine.load(replace(SIMPLE, **change))
    for _ in range(2):
        with pytest.raises(InvalidInput, match=sentence):
            engine.step("go to cabinet 1")
    assert engine.snapshot().reply == before
    assert engine.step("inventory").commands == before.commands


@pytest.mark.parametrize(
    "expression", ["__import__('os').system('true')", "o.__class__", "o.name * 9", "nobody.name", "(lambda: 1)()"]
)
def test_a_grammar_cannot_run_code(expression, engine):
    game = SIMPLE
    evil = replace(game, grammar=game.grammar.replace("{r.indefinite} {r.name or r.id}", f"{{{expression}}}"))
    assert evil.grammar != game.grammar
    with pytest.raises(InvalidInput, match="holds the expression"):
        engine.load(evil)


def test_a_library_that_is_missing_or_does_not_fit_is_a_sentence(tmp_path):
    (tmp_path / "odd.so").write_bytes(b"compiled elsewhere")
    code = f"""
import fast_downward.interface
from reflectrl.core import InvalidInput
from reflectrl.envs.alfworld.engine import Engine
for name in ("gone.so", "odd.so"):
    fast_downward.interface.DOWNWARD_LIB_PATH = {str(tmp_path)!r} + "/" + name
    try:
        Engine()
    except InvalidInput as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sentences = done.stdout.splitlines()
    assert len(sentences) == 2
    for said in sentences:
        assert said.startswith("the library of Fast Downward cannot be loaded (")
        assert "compile it here: run pip install" in said


def test_an_engine_without_a_game_says_so():
    for use in (Engine().reset, Engine().snapshot, lambda: Engine().step("look")):
        with pytest.raises(InvalidInput, match="call load first"):
            use()


def test_stdout_can_be_anything_while_a_game_is_loaded():
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        Engine().load(make_game("pick_and_place_simple", 78))
        assert sys.stdout is stream
    assert stream.getvalue() == ""
