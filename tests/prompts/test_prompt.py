from __future__ import annotations

from dataclasses import replace

import pytest
from records import policy_prompt_of

from reflectrl.core import InvalidInput, Observation
from reflectrl.prompts import Menu, Prompt, PromptFormat

MENU = Menu(("0", "1"), ("go", "wait"))
PROMPT = Prompt("Rules.\n", ("Past: go\n", "Past: wait\n", "Past: go\n"), f"State.\n{MENU.text}Action:\n", MENU)


def test_the_text_is_head_history_tail():
    assert PROMPT.text == "Rules.\nPast: go\nPast: wait\nPast: go\nState.\n0. go\n1. wait\nAction:\n"


def test_a_prompt_that_fits_stays_as_it_is():
    assert PROMPT.fit(len, len(PROMPT.text)) is PROMPT


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_a_long_prompt_loses_its_oldest_history_first_and_as_little_as_possible(lines):
    kept = PROMPT.history[len(PROMPT.history) - lines :]
    limit = len("Rules.\n" + "".join(kept) + PROMPT.tail)
    fitted = PROMPT.fit(len, limit)
    assert (fitted.head, fitted.history, fitted.tail, fitted.menu) == (PROMPT.head, kept, PROMPT.tail, MENU)


def test_the_count_of_the_caller_decides():
    words = PROMPT.fit(lambda text: len(text.split()), len(PROMPT.text.split()) - 1)
    assert words.history == PROMPT.history[1:]


LONG = policy_prompt_of(
    PromptFormat("Rules.", history=2),
    Observation("The path so far: " + "north, " * 20 + "here.", MENU.actions, task="Find it."),
    ["go", "wait"],
    "Good. The path is " + "very " * 10 + "long.",
    Menu(("0", "1"), ("go " + "on " * 10, "wait")),
)
SHORTEST = "Rules.\nFind it.\n[...]\nReflection: [...]\n0. [...]\n1. wait\nAction:\n"


def fitted(limit):
    return LONG.fit(len, limit).text


def test_without_history_the_middle_of_the_state_goes_and_a_mark_says_so():
    bare = len(replace(LONG, history=()).text)
    assert "[...]" not in fitted(bare)
    for limit in range(bare - 1, bare - 100, -1):
        text = fitted(limit)
        assert limit - 1 <= len(text) <= limit
        assert "Past:" not in text
        begin, end = text.split("[...]")
        assert LONG.text.startswith(begin.replace("Find it.\n", "Find it.\nPast: go\nPast: wait\n"))
        assert LONG.text.endswith(end)
    assert fitted(bare - 142).startswith("Rules.\nFind it.\nThe path[...], here.\nReflection: Good. The path is very")


def test_then_the_end_of_the_reflection_then_the_ends_of_actions():
    steps = [fitted(limit) for limit in range(len(LONG.text), len(SHORTEST) - 1, -1)]
    assert any("\n[...]\nReflection: Good. The path is ve[...]\n0. go on on " in text for text in steps)
    assert any("\n[...]\nReflection: [...]\n0. go on [...]\n1. wait\n" in text for text in steps)
    assert steps[-1] == LONG.shortest.text == SHORTEST


def test_a_prompt_that_fits_nowhere_is_refused_with_the_numbers():
    with pytest.raises(InvalidInput) as caught:
        LONG.fit(len, len(SHORTEST) - 1)
    assert str(caught.value).startswith(
        f"a prompt with a menu of 2 actions has {len(SHORTEST)} tokens without anything that may be cut, but the model "
        f"takes {len(SHORTEST) - 1};"
    )


def test_a_text_without_parts_is_never_cut():
    with pytest.raises(InvalidInput, match="a prompt has 12 tokens without anything that may be cut"):
        Prompt("", ("Past: go\n",), "A long state").fit(len, 5)


@pytest.mark.parametrize("limit", range(len(SHORTEST), 250, 7))
def test_what_is_cut_is_decided_by_the_prompt_alone(limit):
    again = replace(LONG)
    assert again.fit(len, limit).text == fitted(limit)


def test_equal_prompts_are_one_cache_key():
    again = Prompt(PROMPT.head, tuple(PROMPT.history), PROMPT.tail, Menu(("0", "1"), ("go", "wait")))
    assert len({PROMPT, again}) == 1
