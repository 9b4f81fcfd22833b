"""Judgements of commands and descriptions of states, in three small houses that the real engine plays.

TOMATO: tomato 1 is on countertop 1, tomato 2 on garbagecan 1. LIGHT: laptop 1 is on bed 1, laptop 2 on bed 2, the lamp
on desk 1. TWO: pencil 2 is in drawer 1, pencils 1 and 3 are on sidetable 1, and they belong on shelf 1.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from reflectrl.core import Reading
from reflectrl.envs.alfworld.games import FAMILIES, make_game
from reflectrl.envs.alfworld.reflection import Seen, fault, reflect

NAME = re.compile(r"[a-z]+ \d+")
TOMATO = make_game("pick_and_place_simple", 1, object="Tomato", receptacle="Microwave", scene=14)
LIGHT = make_game("look_at_obj_in_light", 3, scene=304)
TWO = make_game("pick_two_obj_and_place", 1, scene=316)


@pytest.mark.parametrize(
    ("text", "names", "places"),
    [
        ("Looking quickly around you, you see a bed 1, and a desk 12.", {"bed 1", "desk 12"}, set()),
        ("You arrive at bed 1. On the bed 1, you see a mug 2.", {"bed 1", "mug 2"}, {"bed 1"}),
        ("The fridge 1 is open. In it, you see nothing.", {"fridge 1"}, {"fridge 1"}),
        ("You arrive at drawer 2. The drawer 2 is closed.", {"drawer 2"}, set()),
    ],
)
def test_a_text_shows_names_and_the_contents_of_places(text, names, places):
    assert Seen(frozenset({"pen 1"})).read(text) == Seen(frozenset({*names, "pen 1"}), frozenset(places))


FORK = ("go to countertop 2", "take fork 3 from countertop 2")
LEFT = "No tomato seen yet; places left: countertop 1, fridge 1, garbagecan 1."
OPENED = "No tomato seen yet; places left: countertop 1, garbagecan 1, microwave 1."
SEARCH = {
    (): LEFT,
    (*FORK, "go to countertop 1"): (
        "Good. fork 3 is in hand but not wanted now; there is room on countertop 1, which is here."
    ),
    ("go to countertop 1",): "Good. tomato 1 is on countertop 1, which is here.",
    ("go to fridge 1",): "Good. No tomato seen yet; fridge 1 is here and closed.",
    ("go to fridge 1", "open fridge 1", "close fridge 1"): f"Mistake: fridge 1 was looked at before. {OPENED}",
    ("go to toaster 1",): f"Mistake: toaster 1 is of no use now. {LEFT}",
    ("go to cabinet 1", "open cabinet 1"): f"Mistake: cabinet 1 is of no use now. {LEFT}",
    FORK: f"Mistake: fork 3 is not wanted now. {LEFT}",
    (*FORK, "move fork 3 to countertop 2"): f"Good. {LEFT}",
}
FETCH = ("go to garbagecan 1", "take tomato 2 from garbagecan 1")
AWAY = "tomato 2 is in hand and belongs in microwave 1, which is elsewhere."
HERE = "tomato 2 is in hand and belongs in microwave 1, which is here"
OVEN = (*FETCH, "go to microwave 1")
BRING = {
    FETCH: f"Good. {AWAY}",
    OVEN: f"Good. {HERE} and closed.",
    (*OVEN, "heat tomato 2 with microwave 1"): f"Mistake: nobody asked for that. {HERE} and closed.",
    (*FETCH, "go to countertop 2", "move tomato 2 to countertop 2"): (
        "Mistake: tomato 2 does not belong in countertop 2 now. tomato 2 is on countertop 2, which is here."
    ),
    (*FETCH, "go to countertop 1"): f"Mistake: countertop 1 is of no use now. {AWAY}",  # the other tomato is there
    (*FETCH, "inventory"): f"Mistake: that changed nothing. {AWAY}",
    (*OVEN, "open microwave 1", "move tomato 2 to microwave 1"): "Good. Everything is as it should be.",
}
FIRST = ("go to drawer 1", "open drawer 1", "take pencil 2 from drawer 1", "go to shelf 1", "move pencil 2 to shelf 1")
OTHER = "No other pencil seen yet; places left: desk 1, garbagecan 1, sidetable 1."
BACK = (*FIRST, "go to sidetable 1", "take pencil 1 from sidetable 1", "go to shelf 1", "move pencil 1 to shelf 1")
PAIR = {
    FIRST[:2]: "Good. pencil 2 is in drawer 1, which is here.",
    FIRST: f"Good. {OTHER}",
    (*FIRST, "take pencil 2 from shelf 1"): (
        "Mistake: pencil 2 is not wanted now. pencil 2 is in hand and belongs on shelf 1, which is here."
    ),
    (*FIRST, "go to drawer 1"): f"Mistake: drawer 1 was looked at before. {OTHER}",
    (*FIRST[:3], "go to sidetable 1"): "Good. pencil 2 is in hand and belongs on shelf 1, which is elsewhere.",
    BACK: "Good. Everything is as it should be.",
}
LAPTOP = ("go to bed 1", "take laptop 1 from bed 1")
UNLIT = "laptop 1 is in hand. No desklamp seen yet; places left: desk 1,"
LAMP = {
    LAPTOP: f"Good. {UNLIT} garbagecan 1, laundryhamper 1.",
    (*LAPTOP, "move laptop 1 to bed 1"): (
        "Mistake: laptop 1 does not belong in bed 1 now. laptop 1 is on bed 1, which is here."
    ),
    (*LAPTOP, "go to garbagecan 1"): f"Good. {UNLIT} laundryhamper 1, bed 2.",
    (*LAPTOP, "go to desk 1"): "Good. laptop 1 is in hand; desklamp 1 is on desk 1, which is here.",
    ("go to desk 1",): "Good. No laptop seen yet; places left: bed 1, bed 2.",
    (*LAPTOP, "go to desk 1", "use desklamp 1"): "Good. Everything is as it should be.",
}
CASES = [
    pytest.param(game, commands, sentence, id=", ".join(commands[-2:]))
    for game, table in ((TOMATO, SEARCH), (TOMATO, BRING), (TWO, PAIR), (LIGHT, LAMP))
    for commands, sentence in table.items()
]


@pytest.mark.parametrize(("game", "commands", "sentence"), CASES)
def test_reflections_by_hand(game, commands, sentence, moments):
    before, now = moments(game, commands)
    assert reflect(now, commands[-1] if commands else None, before) == sentence


# ---- no privileged facts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reflection_is_right_calls_for_the_experts_command_and_names_only_what_a_text_has_shown(family, houses):
    (task,) = [task for task in houses.tasks("train") if task.id.startswith(family)]
    judged, said = set(), set()
    for seed in range(3):
        rng = random.Random(seed)
        _, info = houses.reset(seed=0, options={"task": task})
        shown = set(NAME.findall(houses.observation.full_text))
        terminated = False
        while not terminated and houses.steps < 30:
            best = houses.expert()
            assert houses.read_thought(houses.reflection()) == Reading(True, best), houses.reflection()
            _, _, terminated, _, info = houses.step(best if rng.random() < 0.4 else rng.choice(info["actions"]))
            shown.update(NAME.findall(houses.observation.text.rpartition("> ")[2].partition("\n")[2]))
            reflection = houses.reflection()
            judged.add(reflection.partition(" ")[0])
            said.add(reflection)
            assert set(NAME.findall(reflection)) <= shown
            assert [action for action in info["actions"] if re.search(rf"\b{action}\b", reflection)] == []
        assert houses.read_thought(houses.reflection()).right
    assert judged == {"Good.", "Mistake:"}
    assert len(said) > 10


def test_the_older_dialect_is_understood():
    assert fault("put tomato 1 in/on sinkbasin 1", Seen()) == "tomato 1 does not belong in sinkbasin 1 now"


def test_where_unseen_things_are_changes_neither_reflections_nor_the_experts_commands(moments):
    """The same house with its tomatoes in the fridge is judged and played alike until they are found."""
    (fridge,) = re.findall(r"\(receptacleType (\S+) FridgeType\)", TOMATO.problem)
    (location,) = re.findall(rf"\(receptacleAtLocation {fridge} (\S+)\)", TOMATO.problem)
    problem, count = re.subn(r"\(inReceptacle (Tomato_bar_\S+) \S+\)", rf"(inReceptacle \1 {fridge})", TOMATO.problem)
    assert count == 2
    problem = re.sub(r"\(objectAtLocation (Tomato_bar_\S+) \S+\)", rf"(objectAtLocation \1 {location})", problem)

    def said(game, commands):
        before, now = moments(game, commands)
        return reflect(now, commands[-1] if commands else None, before), now.outlook.command

    moved = replace(TOMATO, problem=problem)
    played = ["go to fridge 1", "go to sinkbasin 1", "take mug 2 from sinkbasin 1", "go to cabinet 2", "open cabinet 2"]
    for number in range(len(played) + 1):
        assert said(moved, played[:number]) == said(TOMATO, played[:number])
    looked = (*played, "go to fridge 1", "open fridge 1")
    assert said(moved, looked)[0].startswith("Good. mug 2 is in hand but not wanted now")
    assert said(TOMATO, looked)[0].startswith("Good. No tomato seen yet")
