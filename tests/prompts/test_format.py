from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from records import policy_prompt_of, reflector_prompt_of

from reflectrl.core import InvalidInput, Observation
from reflectrl.prompts import LABEL_KINDS, PromptFormat, labels
from reflectrl.prompts.format import before_reflection, with_reflection

HERE = Observation("A hall.", ("go", "wait"))


def texts(layout, past=(), said="", task=""):
    """Return the prompts of the reflector and of the policy."""
    here = Observation(HERE.text, HERE.actions, task)
    menu = layout.menu_of(here)
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


COMMON = Observation("A hall.", ("take lamp", "wait", "eat", "go"), "Find it.", common=("go", "wait", "sing", "run"))
NAMES = {"numbers": "0 1 2 3 4 5", "letters": "A B C D E F", "added": "<|0|> <|1|> <|2|> <|3|> <|4|> <|5|>"}
SHOWN = {
    # the place of the menu, and whether it is shuffled
    ("last", False): (
        "Find it.\nPast: go\nA hall.\nReflection: Good.\n0. take lamp\n1. wait\n2. eat\n3. go\nAction:\n"
    ),
    ("last", True): ("Find it.\nPast: go\nA hall.\nReflection: Good.\n0. go\n1. take lamp\n2. wait\n3. eat\nAction:\n"),
    ("first", False): (
        "Find it.\n0. go\n1. wait\n2. sing\n3. run\nPast: go\nA hall.\nReflection: Good.\n"
        "4. take lamp\n5. eat\nNot now: 2 3\nAction:\n"
    ),
    ("first", True): (
        "Find it.\n0. sing\n1. go\n2. wait\n3. run\nPast: go\nA hall.\nReflection: Good.\n"
        "4. take lamp\n5. eat\nNot now: 0 3\nAction:\n"
    ),
}


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize(("place", "shuffle"), SHOWN)
def test_both_places_of_the_menu_to_the_letter(place, shuffle, kind):
    layout = PromptFormat(history=1, labels=kind, shuffle=shuffle, menu=place)
    menu = layout.menu_of(COMMON, seed=4, step=1)
    names = NAMES[kind].split()
    expected = re.sub(r"\b[0-5]\b", lambda found: names[int(found[0])], SHOWN[place, shuffle])
    assert policy_prompt_of(layout, COMMON, ["go"], "Good.", menu).text == expected
    assert reflector_prompt_of(layout, COMMON, ["go"]).text == "Find it.\nPast: go\nA hall.\nReflection:"
    assert set(menu.actions) == set(COMMON.actions)
    assert [menu.all_labels[at] for at in menu.positions] == list(menu.labels)
    assert all(f"{label}. {action}\n" in expected for label, action in zip(menu.labels, menu.actions, strict=True))


def test_a_known_action_has_the_same_label_in_every_menu():
    layout = PromptFormat(history=0, labels="letters", known_actions=("go", "wait", "sing"))
    hall = replace(HERE, actions=("sing", "dance", "go"), common=("wait", "dance"))
    menu = layout.menu_of(hall)
    assert (menu.labels, menu.positions, menu.size) == (("C", "D", "A"), (2, 3, 0), 4)
    assert layout.menu_of(HERE).labels == ("A", "B")
    assert layout.all_labels(3) == tuple("ABCDEF")
    listing = replace(layout, menu="first")
    shown = policy_prompt_of(listing, hall, [], None, listing.menu_of(hall)).text
    assert shown == "B. wait\nD. dance\nA hall.\nC. sing\nA. go\nNot now: B\nAction:\n"


def test_with_nothing_particular_to_a_state_its_menu_adds_nothing_to_it():
    layout, hall = PromptFormat(history=0, menu="first"), replace(HERE, common=HERE.actions)
    assert policy_prompt_of(layout, hall, [], None, layout.menu_of(hall)).text == "0. go\n1. wait\nA hall.\nAction:\n"
    assert layout.menu_of(HERE) == PromptFormat().menu_of(HERE) == PromptFormat().menu_of(hall)


def test_listed_actions_are_shuffled_once_an_episode():
    layout = PromptFormat(labels="letters", shuffle=True, menu="first")
    hall = Observation("A hall.", tuple("abcxyz"), common=tuple("abcd"))
    menus = [[layout.menu_of(hall, seed, step) for step in range(20)] for seed in range(20)]
    assert all(len({menu.common for menu in episode}) == 1 for episode in menus)
    assert len({episode[0].common for episode in menus}) > 5
    assert all(len({menu.actions[3:] for menu in episode}) > 2 for episode in menus)
    assert all(layout.relabelled(menu.actions, hall, seed) == menu for seed in range(20) for menu in menus[seed])


def test_a_shuffled_menu_is_drawn_from_episode_and_step_alone():
    everywhere = random.getstate()
    assert PromptFormat().menu_of(HERE, 1, 2).actions == HERE.actions
    layout, hall = PromptFormat(labels="letters", shuffle=True), Observation("A hall.", ("go", "wait", "sing"))
    menus = [layout.menu_of(hall, seed, 3) for seed in range(30)]
    assert {menu.labels for menu in menus} == {("A", "B", "C")}
    assert len({menu.actions for menu in menus}) == 6
    assert {frozenset(menu.actions) for menu in menus} == {frozenset(hall.actions)}
    assert layout.menu_of(hall, 5, 3) == menus[5]
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


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_bare_prompt_becomes_the_other_prompts(place):
    layout = PromptFormat(instructions="Leave.", menu=place)
    menu = layout.menu_of(COMMON)
    bare, full = (policy_prompt_of(layout, COMMON, ["eat"], said, menu) for said in (None, " Good.\n Go on. "))
    assert before_reflection(bare) == reflector_prompt_of(layout, COMMON, ["eat"])
    assert with_reflection(bare, " Good.\n Go on. ") == full
