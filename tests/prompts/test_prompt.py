from __future__ import annotations

from dataclasses import replace

import pytest
from records import policy_prompt_of

from reflectrl.core import InvalidInput, Observation
from reflectrl.prompts import Menu, Prompt, PromptFormat

MENU = Menu(("0", "1"), ("go", "wait"))
PROMPT = Prompt("Rules.\n", ("Past: go\n", "Past: wait\n", "Past: go\n"), f"State.\n{MENU.text}Action:\n", MENU)
LONG = policy_prompt_of(
    PromptFormat("Rules.", history=2),
    Observation("The path so far: " + "north, " * 20 + "here.", MENU.actions, task="Find it."),
    ["go", "wait"],
    "Good. The path is " + "very " * 10 + "long.",
    Menu(("0", "1"), ("go " + "on " * 10, "wait")),
)
SHORTEST = "Rules.\nFind it.\n[...]\nReflection: [...]\n0. [...]\n1. wait\nAction:\n"


def length(prompt):
    return len(prompt.text)


def fitted(limit):
    return LONG.fit(length, limit).text


def test_a_prompt_loses_its_oldest_history_first():
    assert PROMPT.text == "Rules.\nPast: go\nPast: wait\nPast: go\nState.\n0. go\n1. wait\nAction:\n"
    assert PROMPT.fit(length, len(PROMPT.text)) is PROMPT
    for lines in range(3):
        kept = PROMPT.history[3 - lines :]
        limit = len("Rules.\n" + "".join(kept) + PROMPT.tail)
        assert PROMPT.fit(length, limit) == replace(PROMPT, history=kept)
    words = PROMPT.fit(lambda prompt: len(prompt.text.split()), len(PROMPT.text.split()) - 1)
    assert words.history == PROMPT.history[1:]


def test_without_history_the_middle_of_the_state_is_cut():
    bare = len(replace(LONG, history=()).text)
    assert "[...]" not in fitted(bare)
    for limit in range(bare - 1, bare - 100, -7):
        text = fitted(limit)
        assert limit - 1 <= len(text) <= limit
        assert "Past:" not in text
        begin, end = text.split("[...]")
        assert LONG.text.startswith(begin.replace("Find it.\n", "Find it.\nPast: go\nPast: wait\n"))
        assert LONG.text.endswith(end)
        assert replace(LONG).fit(length, limit).text == text  # determined by the prompt only
    assert fitted(bare - 142).startswith("Rules.\nFind it.\nThe path[...], here.\nReflection: Good. The path is very")


def test_then_the_end_of_the_reflection_then_the_ends_of_actions():
    steps = [fitted(limit) for limit in range(len(LONG.text), len(SHORTEST) - 1, -1)]
    assert any("\n[...]\nReflection: Good. The path is ve[...]\n0. go on on " in text for text in steps)
    assert any("\n[...]\nReflection: [...]\n0. go on [...]\n1. wait\n" in text for text in steps)
    assert steps[-1] == LONG.shortest.text == SHORTEST


def test_a_list_in_the_head_is_cut_like_a_menu():
    menu = Menu(("0", "2"), ("go " + "on " * 10, "wait"), ("go " + "on " * 10, "sing " * 9), ("0", "1"))
    here = Observation("Here and " + "there and " * 9, menu.actions, task="Find it.")
    prompt = policy_prompt_of(PromptFormat("Rules.", history=2), here, ["go"], "Good. The path is long.", menu)
    steps = [prompt.fit(length, limit) for limit in range(len(prompt.text), len(prompt.shortest.text) - 1, -1)]
    listed = f"0. {menu.common[0]}\n1. {menu.common[1]}\n"
    whole = [listed in step.text for step in steps]
    assert whole == sorted(whole, reverse=True)
    assert {step.said for step, kept in zip(steps, whole, strict=True) if not kept} == {"Reflection: [...]\n"}
    assert steps[-1].text == (
        "Rules.\nFind it.\n0. [...]\n1. [...]\n[...]\nReflection: [...]\n2. wait\nNot now: 1\nAction:\n"
    )
    assert all("".join(label + text for label, text in step.lines) == step.text for step in steps)
    assert {tuple(label for label, _ in step.lines if label) for step in steps} == {("0", "1", "2", "1")}


REMEMBERING = replace(
    LONG,
    said="Plan: Go north.\nMemory: Done before: Find it. [...] > go: north > sit > go: south > wait "
    "Tried before: Find me. A room. > go: a room > wait: dark\nReflection: Good.\n",
)


def test_2_9_memories_are_cut_before_the_present():
    present = replace(REMEMBERING, said="Plan: Go north.\nMemory:\nReflection: Good.\n")
    limits = range(len(REMEMBERING.text), len(present.text) - 1, -1)
    steps = list(dict.fromkeys(REMEMBERING.fit(length, limit) for limit in limits))
    assert {replace(each, said="") for each in steps} == {replace(LONG, said="")}
    assert [each.said.splitlines()[1] for each in steps] == [
        REMEMBERING.said.splitlines()[1],
        "Memory: Done before: Find it. [...] > go: north > sit > go: south > wait",
        "Memory: Done before: Find it. [...] > sit > go: south",
        "Memory:",
    ]
    assert REMEMBERING.fit(length, len(present.text) - 1) == replace(present, history=LONG.history[1:])
    assert REMEMBERING.shortest.said == "Plan: [...]\nMemory:\nReflection: Good.\n"
    begun = replace(REMEMBERING, said="Memory: Tried before: A room. > go: a room > wait: dark\n")
    assert begun.fit(length, len(begun.text) - 1).said == "Memory: Tried before: A room. > go: a room\n"


@pytest.mark.parametrize(
    ("prompt", "limit", "facts"),
    [
        (LONG, len(SHORTEST) - 1, f"2 actions.* {len(SHORTEST)} tokens.*takes {len(SHORTEST) - 1};"),
        (Prompt("", ("Past: go\n",), "A long state"), 5, "12 tokens"),
    ],
)
def test_a_prompt_that_cannot_fit_is_refused(prompt, limit, facts):
    with pytest.raises(InvalidInput, match=facts):
        prompt.fit(length, limit)
