from __future__ import annotations

import random

import pytest
from records import policy_prompt_of, reflector_prompt_of

from reflectrl.core import InvalidInput, Observation
from reflectrl.prompts import LABEL_KINDS, PromptFormat, labels

HERE = Observation("A hall.", ("go", "wait"))


def texts(layout, past=(), said="", task=""):
    """The prompts of the reflector and of the policy."""
    here = Observation(HERE.text, HERE.actions, task)
    menu = layout.menu(here, random.Random(0))
    return reflector_prompt_of(layout, here, past).text, policy_prompt_of(layout, here, past, said, menu).text


def test_both_prompts_to_the_letter():
    layout = PromptFormat("Leave the house.", history=2)
    asked, acted = texts(layout, ["go", "wait", "go"], "Good.\n\n0. fly\n", task="Find the door.")
    assert asked == "Leave the house.\nFind the door.\nPast: wait\nPast: go\nA hall.\nReflection:"
    assert acted == f"{asked} Good. 0. fly\n0. go\n1. wait\nAction:\n"
    bare = PromptFormat(history=0)
    assert texts(bare, ["go"], "") == ("A hall.\nReflection:", "A hall.\nReflection:\n0. go\n1. wait\nAction:\n")
    assert texts(bare, said=None)[1] == "A hall.\n0. go\n1. wait\nAction:\n"
    assert texts(PromptFormat(history=2))[0] == "Past: none\nA hall.\nReflection:"
    assert reflector_prompt_of(layout, HERE).menu is None


def test_a_shuffled_menu_is_drawn_from_the_given_generator_alone():
    rng, everywhere = random.Random(1), random.getstate()
    before = rng.getstate()
    assert PromptFormat().menu(HERE, rng).actions == HERE.actions
    assert rng.getstate() == before
    layout, hall = PromptFormat(labels="letters", shuffle=True), Observation("A hall.", ("go", "wait", "sing"))
    menus = [layout.menu(hall, random.Random(seed)) for seed in range(30)]
    assert {menu.labels for menu in menus} == {("A", "B", "C")}
    assert len({menu.actions for menu in menus}) == 6
    assert {frozenset(menu.actions) for menu in menus} == {frozenset(hall.actions)}
    assert layout.menu(hall, random.Random(5)) == menus[5]
    assert random.getstate() == everywhere


def test_the_kinds_of_labels():
    assert labels("numbers", 3) == ("0", "1", "2")
    assert labels("letters", 28)[24:] == ("Y", "Z", "a", "b")
    assert labels("added", 2) == ("<|0|>", "<|1|>")
    assert [len(set(labels(kind, 52))) for kind in LABEL_KINDS] == [52] * 3


@pytest.mark.parametrize(
    ("kind", "count", "facts"), [("number", 3, "'number'.*'numbers'"), ("letters", 53, "53.*52.*prompt.labels=added")]
)
def test_an_unknown_kind_and_more_actions_than_letters_are_refused(kind, count, facts):
    with pytest.raises(InvalidInput, match=facts):
        labels(kind, count)
