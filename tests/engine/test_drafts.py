"""Drafts are the tokens that followed the same tokens before, as long as they are likely enough to be worth it."""

from __future__ import annotations

import random

import pytest
from tiny import language_model

from reflectrl.engine.drafts import Drafts, pass_tokens

EAGER = 1e9
"""Number of tokens that cost as much as a forward pass, so large that each guess is worth it."""
TEXT = [7, 3, 9, 4, 3, 8, 1]


def drafts(*texts, pass_tokens=EAGER):
    made = Drafts(pass_tokens)
    for text in texts:
        made.learn(text, 0)
    return made


def test_a_text_goes_on_as_it_did_before():
    made = drafts(TEXT)
    assert made.guess([[], [7], TEXT[:3], [5, 9], TEXT], [9] * 5) == [TEXT, TEXT[1:], TEXT[3:], [4, 3, 8, 1], []]
    assert made.guess([[], [7], [7]], [2, 0, 9]) == [TEXT[:2], [], TEXT[1:]]
    made.clear()
    assert made.guess([[7]], [9]) == [[]]


def test_the_longest_known_context_decides_and_of_what_followed_it_the_last():
    made = drafts([7, 3, 9, 4], [5, 3, 9, 6])
    assert made.guess([[7, 3, 9], [5, 3, 9], [8, 3, 9]], [1] * 3) == [[4], [6], [6]]
    made.learn([7, 3, 9, 2], 3)
    assert made.guess([[7, 3, 9]], [1]) == [[2]]


def test_a_text_may_be_learned_piece_by_piece():
    made = Drafts(EAGER)
    for start in range(0, len(TEXT), 2):
        made.learn(TEXT[: start + 2], start)
    assert made._followers == drafts(TEXT)._followers


def test_guesses_grow_with_what_a_pass_costs_and_with_how_often_they_held_and_shrink_with_the_number_of_texts():
    text = list(range(40))

    def length(pass_tokens, times=1, others=0):
        made = drafts(*[text] * times, pass_tokens=pass_tokens)
        return len(made.guess([text[:1], *[[99]] * others], [40] * (1 + others))[0])

    assert length(0) == 0
    assert 0 < length(4) < length(50) < length(1000)
    assert length(4) < length(4, times=5) < length(4, times=50)
    assert length(50, others=3) < length(50)
    assert length(50, others=200) == 0  # a column has a place for each text


def test_memory_is_bounded():
    made, rng = Drafts(EAGER), random.Random(0)
    most = 0
    for _ in range(20):
        made.learn([rng.randrange(1000) for _ in range(10_000)], 0)
        most = max(most, len(made._followers))
    assert 100_000 < most < 300_000
    assert len(made._followers) < most


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_pass_costs_as_much_as_some_tokens_the_more_the_smaller_the_model(architecture):
    small, large = (language_model(architecture, hidden_size=width) for width in (32, 256))
    assert 12 < pass_tokens(large) < pass_tokens(small)
