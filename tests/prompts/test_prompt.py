from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput
from reflectrl.prompts import Menu, Prompt

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


def test_the_menu_is_never_cut():
    with pytest.raises(InvalidInput) as caught:
        PROMPT.fit(len, 10)
    assert str(caught.value).startswith(
        "a prompt with a menu of 2 actions has 36 tokens without any history, but the model takes 10;"
    )


def test_a_reflectors_prompt_that_is_too_long_is_said_to_be_a_state():
    with pytest.raises(InvalidInput, match="a prompt with a state has 12 tokens"):
        Prompt("", ("Past: go\n",), "A long state").fit(len, 5)


def test_equal_prompts_are_one_cache_key():
    again = Prompt(PROMPT.head, tuple(PROMPT.history), PROMPT.tail, Menu(("0", "1"), ("go", "wait")))
    assert len({PROMPT, again}) == 1
