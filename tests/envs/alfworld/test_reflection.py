"""What is said of a command and of where things stand, in three small houses that the real engine plays.

TOMATO: tomato 1 is on countertop 1, tomato 2 on garbagecan 1. LIGHT: laptop 1 is on bed 1, laptop 2 on bed 2, the lamp
on desk 1. TWO: pencil 2 is in drawer 1, pencils 1 and 3 are on sidetable 1, and they belong on shelf 1.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from reflectrl.envs.alfworld import AlfWorld
from reflectrl.envs.alfworld.engine import Engine
from reflectrl.envs.alfworld.games import FAMILIES, make_game
from reflectrl.envs.alfworld.reflection import Moment, Seen, fault, reflect

NAME = re.compile(r"[a-z]+ \d+")
TOMATO = make_game("pick_and_place_simple", 1, object="Tomato", receptacle="Microwave", scene=14)
LIGHT = make_game("look_at_obj_in_light", 3, scene=304)
TWO = make_game("pick_two_obj_and_place", 1, scene=316)


@pytest.fixture(scope="module")
def engine():
    return Engine()


@pytest.fixture
def said(engine):
    """Play commands from the start of a game; what is said of the last one."""

    def play(game, *commands):
        reply = engine.load(game)
        now, before, command = Moment(game, engine.names, engine.snapshot(), Seen().read(reply.text)), None, None
        for command in commands:
            reply = engine.step(command)
            before, now = now, replace(now, position=engine.snapshot(), seen=now.seen.read(reply.text))
        return reflect(now, command, before)

    return play


# ---- what texts tell -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names", "places"),
    [
        (
            "You are in the middle of a room. Looking quickly around you, you see a bed 1, and a desk 12.",
            {"bed 1", "desk 12"},
            set(),
        ),
        ("You arrive at bed 1. On the bed 1, you see a mug 2, and a pen 1.", {"bed 1", "mug 2", "pen 1"}, {"bed 1"}),
        ("On the desk 12, you see nothing.", {"desk 12"}, {"desk 12"}),
        ("The fridge 1 is open. In it, you see an egg 3.", {"fridge 1", "egg 3"}, {"fridge 1"}),
        ("You arrive at drawer 2. The drawer 2 is closed.", {"drawer 2"}, set()),
        ("You open the safe 1. The safe 1 is open. In it, you see nothing.", {"safe 1"}, {"safe 1"}),
        ("You pick up the mug 2 from the bed 1.", {"mug 2", "bed 1"}, set()),
        ("Nothing happens.", set(), set()),
    ],
)
def test_a_text_tells_names_and_of_which_places_the_contents(text, names, places):
    assert Seen().read(text) == Seen(frozenset(names), frozenset(places))


def test_what_was_told_before_stays_known():
    seen = Seen().read("On the bed 1, you see a mug 2.").read("The safe 1 is open. In it, you see a pen 1.")
    assert seen == Seen(frozenset({"bed 1", "mug 2", "safe 1", "pen 1"}), frozenset({"bed 1", "safe 1"}))


# ---- good or a mistake -----------------------------------------------------------------------------------------------


SEARCH = {
    "at the start": ([], "No tomato seen yet; places left: countertop 1, fridge 1, garbagecan 1."),
    "what is in hand is in the way": (
        ["go to countertop 2", "take fork 3 from countertop 2", "go to countertop 1"],
        "Good. fork 3 is in hand but not wanted now; there is room on countertop 1, which is here.",
    ),
    "a thing is found": (["go to countertop 1"], "Good. tomato 1 is on countertop 1, which is here."),
    "one place less is left": (
        ["go to countertop 2"],
        "Good. No tomato seen yet; places left: countertop 1, fridge 1, garbagecan 1.",
    ),
    "a closed place is arrived at": (["go to fridge 1"], "Good. No tomato seen yet; fridge 1 is here and closed."),
    "it is opened": (
        ["go to fridge 1", "open fridge 1"],
        "Good. No tomato seen yet; places left: countertop 1, garbagecan 1, microwave 1.",
    ),
    "it is closed again": (
        ["go to fridge 1", "open fridge 1", "close fridge 1"],
        "Mistake: fridge 1 was looked at before. No tomato seen yet; places left: countertop 1, garbagecan 1, "
        "microwave 1.",
    ),
    "no such thing is kept there": (
        ["go to toaster 1"],
        "Mistake: toaster 1 is of no use now. No tomato seen yet; places left: countertop 1, fridge 1, garbagecan 1.",
    ),
    "nor where it is opened": (
        ["go to cabinet 1", "open cabinet 1"],
        "Mistake: cabinet 1 is of no use now. No tomato seen yet; places left: countertop 1, fridge 1, garbagecan 1.",
    ),
    "the place is known already": (
        ["go to countertop 2", "go to sinkbasin 1", "go to countertop 2"],
        "Mistake: countertop 2 was looked at before. No tomato seen yet; places left: countertop 1, fridge 1, "
        "garbagecan 1.",
    ),
    "another thing is taken": (
        ["go to countertop 2", "take fork 3 from countertop 2"],
        "Mistake: fork 3 is not wanted now. No tomato seen yet; places left: countertop 1, fridge 1, garbagecan 1.",
    ),
    "and put away": (
        ["go to countertop 2", "take fork 3 from countertop 2", "move fork 3 to countertop 2"],
        "Good. No tomato seen yet; places left: countertop 1, fridge 1, garbagecan 1.",
    ),
}
FETCH = ("go to garbagecan 1", "take tomato 2 from garbagecan 1")
BRING = {
    "the thing is taken": ([], "Good. tomato 2 is in hand and belongs in microwave 1, which is elsewhere."),
    "its place is gone to": (
        ["go to microwave 1"],
        "Good. tomato 2 is in hand and belongs in microwave 1, which is here and closed.",
    ),
    "and opened": (
        ["go to microwave 1", "open microwave 1"],
        "Good. tomato 2 is in hand and belongs in microwave 1, which is here.",
    ),
    "and closed": (
        ["go to microwave 1", "open microwave 1", "close microwave 1"],
        "Mistake: microwave 1 was looked at before. tomato 2 is in hand and belongs in microwave 1, which is here and "
        "closed.",
    ),
    "it is put elsewhere": (
        ["go to countertop 2", "move tomato 2 to countertop 2"],
        "Mistake: tomato 2 does not belong in countertop 2 now. tomato 2 is on countertop 2, which is here.",
    ),
    "another place is gone to": (
        ["go to fridge 1"],
        "Mistake: fridge 1 is of no use now. tomato 2 is in hand and belongs in microwave 1, which is elsewhere.",
    ),
    "a second one is found that nobody needs": (
        ["go to countertop 1"],
        "Mistake: countertop 1 is of no use now. tomato 2 is in hand and belongs in microwave 1, which is elsewhere.",
    ),
    "nothing is changed": (
        ["inventory"],
        "Mistake: that changed nothing. tomato 2 is in hand and belongs in microwave 1, which is elsewhere.",
    ),
    "the game is won": (
        ["go to microwave 1", "open microwave 1", "move tomato 2 to microwave 1"],
        "Good. Everything is as it should be.",
    ),
}


FIRST = ("go to drawer 1", "open drawer 1", "take pencil 2 from drawer 1", "go to shelf 1", "move pencil 2 to shelf 1")
SECOND = {
    "the first one is found": (FIRST[:2], "Good. pencil 2 is in drawer 1, which is here."),
    "it is in its place": (FIRST, "Good. No other pencil seen yet; places left: desk 1, garbagecan 1, sidetable 1."),
    "it is taken out of it again": (
        [*FIRST, "take pencil 2 from shelf 1"],
        "Mistake: pencil 2 is not wanted now. pencil 2 is in hand and belongs on shelf 1, which is here.",
    ),
    "the second one is looked for": (
        [*FIRST, "go to desk 1"],
        "Good. No other pencil seen yet; places left: garbagecan 1, sidetable 1.",
    ),
    "where the first one was": (
        [*FIRST, "go to drawer 1"],
        "Mistake: drawer 1 was looked at before. No other pencil seen yet; places left: desk 1, garbagecan 1, "
        "sidetable 1.",
    ),
    "it is found": ([*FIRST, "go to sidetable 1"], "Good. pencil 1 is on sidetable 1, which is here."),
    "it is found on the way with the first one": (
        [*FIRST[:3], "go to sidetable 1"],
        "Good. pencil 2 is in hand and belongs on shelf 1, which is elsewhere.",
    ),
    "it is brought": (
        [*FIRST, "go to sidetable 1", "take pencil 1 from sidetable 1", "go to shelf 1", "move pencil 1 to shelf 1"],
        "Good. Everything is as it should be.",
    ),
}


FETCHED = ("go to bed 1", "take laptop 1 from bed 1")
LAMP = {
    "the thing is taken": (
        FETCHED,
        "Good. laptop 1 is in hand. No desklamp seen yet; places left: desk 1, garbagecan 1, laundryhamper 1.",
    ),
    "it is put down again": (
        [*FETCHED, "move laptop 1 to bed 1"],
        "Mistake: laptop 1 does not belong in bed 1 now. laptop 1 is on bed 1, which is here.",
    ),
    "a lamp is looked for": (
        [*FETCHED, "go to garbagecan 1"],
        "Good. laptop 1 is in hand. No desklamp seen yet; places left: desk 1, laundryhamper 1, bed 2.",
    ),
    "in vain": (
        [*FETCHED, "go to garbagecan 1", "go to bed 1"],
        "Mistake: bed 1 was looked at before. laptop 1 is in hand. No desklamp seen yet; places left: desk 1, "
        "laundryhamper 1, bed 2.",
    ),
    "a lamp is found": (
        [*FETCHED, "go to desk 1"],
        "Good. laptop 1 is in hand; desklamp 1 is on desk 1, which is here.",
    ),
    "a lamp was found first": (["go to desk 1"], "Good. No laptop seen yet; places left: bed 1, bed 2."),
    "the light is on": ([*FETCHED, "go to desk 1", "use desklamp 1"], "Good. Everything is as it should be."),
}


CASES = [
    pytest.param(game, [*begin, *commands], sentence, id=name)
    for game, begin, table in ((TOMATO, (), SEARCH), (TOMATO, FETCH, BRING), (TWO, (), SECOND), (LIGHT, (), LAMP))
    for name, (commands, sentence) in table.items()
]


@pytest.mark.parametrize(("game", "commands", "sentence"), CASES)
def test_reflections_by_hand(game, commands, sentence, said):
    assert said(game, *commands) == sentence


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("go to cabinet 3", "cabinet 3 is of no use now"),
        ("go to cabinet 4", "cabinet 4 was looked at before"),
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
    assert fault(command, Seen(places=frozenset({"cabinet 4"}))) == sentence


# ---- no privileged facts ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def env():
    return AlfWorld("alfworld:all", count=6, scenes=(14, 29, 304, 316, 419), noise=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reflection_names_no_command_and_nothing_that_no_text_has_told(family, env):
    (task,) = [task for task in env.tasks("train") if task.id.startswith(family)]
    judged = set()
    for seed in range(3):
        rng = random.Random(seed)
        _, info = env.reset(seed=0, options={"task": task})
        told = set(NAME.findall(env.observation.full_text))
        terminated = False
        while not terminated and env.steps < 30:
            _, _, terminated, _, info = env.step(env.expert() if rng.random() < 0.4 else rng.choice(info["actions"]))
            told.update(NAME.findall(env.observation.text.rpartition("> ")[2].partition("\n")[2]))
            reflection = env.reflection()
            judged.add(reflection.partition(" ")[0])
            assert set(NAME.findall(reflection)) <= told
            assert [action for action in info["actions"] if re.search(rf"\b{action}\b", reflection)] == []
    assert judged == {"Good.", "Mistake:"}


def test_where_things_are_that_nobody_saw_makes_no_difference(said):
    """The same house with its tomatoes in the fridge: nothing that is said before they are found gives them away."""
    moved = replace(TOMATO, name="moved", problem=_with_all_tomatoes_in_the_fridge(TOMATO.problem))
    played = ["go to fridge 1", "go to sinkbasin 1", "take mug 2 from sinkbasin 1", "go to cabinet 2", "open cabinet 2"]
    for count in range(len(played) + 1):
        assert said(moved, *played[:count]) == said(TOMATO, *played[:count])
    looked = (*played, "go to fridge 1", "open fridge 1")
    assert said(moved, *looked).startswith("Good. mug 2 is in hand but not wanted now")
    assert said(TOMATO, *looked).startswith("Good. No tomato seen yet")


def _with_all_tomatoes_in_the_fridge(problem):
    (fridge,) = re.findall(r"\(receptacleType (\S+) FridgeType\)", problem)
    (location,) = re.findall(rf"\(receptacleAtLocation {fridge} (\S+)\)", problem)
    problem, count = re.subn(r"\(inReceptacle (Tomato_bar_\S+) \S+\)", rf"(inReceptacle \1 {fridge})", problem)
    assert count == 2
    return re.sub(r"\(objectAtLocation (Tomato_bar_\S+) \S+\)", rf"(objectAtLocation \1 {location})", problem)
