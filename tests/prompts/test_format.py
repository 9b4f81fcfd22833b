from __future__ import annotations

import random

import pytest
from records import policy_prompt_of, reflector_prompt_of

from reflectrl.core import Observation
from reflectrl.prompts import PromptFormat

HERE = Observation("A hall.", ("go", "wait"))
ORDERED = random.Random(0)


def menu(layout):
    return layout.menu(HERE, ORDERED)


def test_the_whole_of_both_prompts():
    layout = PromptFormat("Leave the house.", history=2)
    assert reflector_prompt_of(layout, HERE, ["go", "wait", "go"]).text == (
        "Leave the house.\nPast: wait\nPast: go\nA hall.\nReflection:"
    )
    assert policy_prompt_of(layout, HERE, ["go", "wait", "go"], "Good so far.", menu(layout)).text == (
        "Leave the house.\nPast: wait\nPast: go\nA hall.\nReflection: Good so far.\n0. go\n1. wait\nAction:\n"
    )


def test_the_task_stands_before_the_history_and_is_never_cut():
    asked = Observation("A hall.", ("go", "wait"), task="Find the door.")
    prompt = reflector_prompt_of(PromptFormat("Leave the house.", history=2), asked, ["go", "wait"])
    assert prompt.text == "Leave the house.\nFind the door.\nPast: go\nPast: wait\nA hall.\nReflection:"
    assert prompt.fit(lambda text: text.count("\n"), 3).text == "Leave the house.\nFind the door.\nA hall.\nReflection:"


@pytest.mark.parametrize("past", [[], ["go"], ["go", "wait"]])
@pytest.mark.parametrize("history", [0, 1, 20])
@pytest.mark.parametrize("instructions", ["", "Rules."])
@pytest.mark.parametrize("reflection", ["", "Good so far."])
def test_the_policys_prompt_begins_with_the_reflectors_and_its_words(past, history, instructions, reflection):
    layout = PromptFormat(instructions, history=history)
    said = reflector_prompt_of(layout, HERE, past).text + layout.completion(reflection)
    assert policy_prompt_of(layout, HERE, past, reflection, menu(layout)).text.startswith(f"{said}\n")


def test_no_reflection_leaves_no_trace_but_a_blank_one_leaves_the_cue():
    layout = PromptFormat(history=0)
    assert policy_prompt_of(layout, HERE, [], None, menu(layout)).text == "A hall.\n0. go\n1. wait\nAction:\n"
    assert (
        policy_prompt_of(layout, HERE, [], "", menu(layout)).text == "A hall.\nReflection:\n0. go\n1. wait\nAction:\n"
    )


def test_a_reflection_stays_on_its_line():
    layout = PromptFormat(history=0)
    text = policy_prompt_of(layout, HERE, [], "Good.\n\n0. fly\n", menu(layout)).text
    assert text == "A hall.\nReflection: Good. 0. fly\n0. go\n1. wait\nAction:\n"


def test_the_reflector_never_sees_the_menu():
    prompt = reflector_prompt_of(PromptFormat(), HERE)
    assert prompt.menu is None
    assert not any(action in prompt.text for action in HERE.actions)


@pytest.mark.parametrize(
    ("history", "past", "shown"),
    [
        (2, ["a", "b", "c"], ("Past: b\n", "Past: c\n")),
        (2, ["a"], ("Past: a\n",)),
        (2, [], ("Past: none\n",)),
        (0, ["a"], ()),
        (0, [], ()),
    ],
)
def test_the_newest_actions_are_shown_newest_last(history, past, shown):
    assert reflector_prompt_of(PromptFormat(history=history), HERE, past).history == shown


def test_the_generator_is_used_only_when_shuffling():
    rng = random.Random(1)
    before = rng.getstate()
    assert PromptFormat().menu(HERE, rng).actions == HERE.actions
    assert rng.getstate() == before
    PromptFormat(shuffle=True).menu(HERE, rng)
    assert rng.getstate() != before


def test_a_shuffled_menu_is_the_generators():
    layout = PromptFormat(labels="letters", shuffle=True)
    drawn = {layout.menu(HERE, random.Random(seed)).text for seed in range(20)}
    assert drawn == {"A. go\nB. wait\n", "A. wait\nB. go\n"}
    assert layout.menu(HERE, random.Random(5)) == layout.menu(HERE, random.Random(5))
