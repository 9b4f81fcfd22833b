"""Judgements of a policy's thoughts about the state of a house, and the commands that follow from them."""

from __future__ import annotations

import pytest

from reflectrl.envs.alfworld.games import make_game
from reflectrl.envs.alfworld.reflection import read

# ---- by hand: tomato 1 is on countertop 1, tomato 2 on garbagecan 1, fork 3 on countertop 2 -------------------------

KITCHEN = make_game("pick_and_place_simple", 1, object="Tomato", receptacle="Microwave", scene=14)
COUNTER = ("go to countertop 1",)
IN_HAND = (*COUNTER, "take tomato 1 from countertop 1")
LOOKED = ("go to garbagecan 1",)
FORK = ("go to countertop 2", "take fork 3 from countertop 2")
OPENED = (*IN_HAND, "go to microwave 1", "open microwave 1")
TRUE = {
    "No tomato seen yet": (),
    "no tomato seen yet; places left: countertop 1, fridge 1.": (),
    "Good. Tomato 1 is on countertop 1": COUNTER,
    "countertop 1 is here": COUNTER,
    "tomato 1 is on countertop 1, which is elsewhere": (*COUNTER, "go to fridge 1"),
    "tomato 1 is in hand but not hot": IN_HAND,
    "Mistake: tomato 9 is in hand. tomato 1 is in hand": IN_HAND,
    "Everything is as it should be.": (*OPENED, "move tomato 1 to microwave 1"),
}
FALSE = {
    "": (),
    "Let me think.": (),
    "Good.": (),
    "tomato 1 is on countertop 1": (),  # which no text has shown
    "No tomato seen yet; fridge 1 is here and closed.": (),
    "No tomato seen yet; places left: garbagecan 1.": LOOKED,
    "No fork seen yet": FORK,
    "No other tomato seen yet": (),
    "tomato 1 is in hand": COUNTER,
    "tomato 1 is on fridge 1": COUNTER,
    "tomato 1 is on countertop 1, which is elsewhere": COUNTER,
    "tomato 1 is in countertop 1": IN_HAND,
    "tomato 2 is in hand": IN_HAND,
    "fork 3 is in hand and microwave 1 is here": FORK,
    "microwave 1 is here and closed": OPENED,
    "Everything is as it should be.": OPENED,
}


@pytest.mark.parametrize(
    ("thought", "commands", "right"),
    [
        *((thought, commands, True) for thought, commands in TRUE.items()),
        *((thought, commands, False) for thought, commands in FALSE.items()),
    ],
)
def test_every_statement_of_a_thought_must_be_true(thought, commands, right, moments):
    _, now = moments(KITCHEN, commands)
    assert read(thought, now).right is right


@pytest.mark.parametrize(
    ("thought", "command"),
    [
        ("No tomato seen yet; places left: fridge 1, microwave 1.", "go to fridge 1"),
        ("No tomato seen yet; fridge 1 is here and closed.", "open fridge 1"),
        ("tomato 7 is in cabinet 3, which is elsewhere.", "go to cabinet 3"),
        ("tomato 7 is in cabinet 3, which is here and closed.", "open cabinet 3"),
        ("tomato 7 is in cabinet 3, which is here.", "take tomato 7 from cabinet 3"),
        ("mug 1 is in hand but not wanted now; there is room on shelf 2, which is here.", "move mug 1 to shelf 2"),
        ("mug 1 is in hand and belongs in sinkbasin 1, which is here.", "move mug 1 to sinkbasin 1"),
        ("mug 1 is in hand but not clean; there is sinkbasin 1, which is here.", "clean mug 1 with sinkbasin 1"),
        ("mug 1 is in hand but not hot; there is microwave 1, which is here.", "heat mug 1 with microwave 1"),
        ("mug 1 is in hand but not cool; there is fridge 1, which is here.", "cool mug 1 with fridge 1"),
        ("laptop 1 is in hand; desklamp 1 is on desk 1, which is here.", "use desklamp 1"),
        ("Everything is as it should be.", None),
        ("Hmm.", None),
    ],
)
def test_a_thought_calls_for_a_command_even_if_it_is_wrong(thought, command, moments):
    _, now = moments(KITCHEN, ())
    assert read(thought, now).action == command
