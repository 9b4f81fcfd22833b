from __future__ import annotations

from dataclasses import replace

import pytest
from run_folders import episode

from reflectrl.core import Written
from reflectrl.rollout.metrics import episode_metrics
from reflectrl.rollout.thoughts import self_bleu, thought_means


def thinking(*thoughts, legal=True):
    """An episode with a step for each thought, of as many tokens as it has letters."""
    played = episode()
    (turn,) = played.turns
    written = [Written(text, (0,) * len(text), (), len(text), legal) for text in thoughts]
    choices = [replace(turn.decision.choice, written=each) for each in written]
    turns = tuple(replace(turn, decision=replace(turn.decision, choice=choice)) for choice in choices)
    return replace(played, turns=turns)


def numbers(tokens, distinct, repeated, bleu):
    named = {"tokens": tokens, "distinct": distinct, "repeated": repeated, "bleu": bleu}
    return {f"thought_{name}": value for name, value in named.items()}


def test_thoughts_that_are_all_the_same_have_collapsed_and_different_ones_have_not():
    same = thought_means([thinking("go up", "go up"), thinking("go up")])
    assert same == pytest.approx(numbers(5, 1 / 3, 1, 1))
    varied = thought_means([thinking("go up", "left then down"), thinking("the door is shut")])
    assert varied == pytest.approx(numbers(12, 1, 0, 0), abs=0.5)
    assert varied["thought_bleu"] == 0


def test_bleu_of_a_text_counts_words_and_pairs_that_the_others_have_and_punishes_short_ones():
    assert self_bleu(["a b c"]) == 1
    assert self_bleu(["", ""]) == 1
    assert self_bleu(["a b c", "a b d"]) == pytest.approx((2 / 3 * 1 / 2) ** 0.5)
    assert self_bleu(["a b", "a b c"]) == pytest.approx(
        (2.718281828 ** (1 - 3 / 2) + (2 / 3 * 1 / 2) ** 0.5) / 2, abs=1e-6
    )


def test_a_policy_that_writes_nothing_has_no_thoughts_and_text_that_names_no_action_counts_as_illegal():
    assert thought_means([episode()]) == {}
    assert episode_metrics([thinking("?", "!", legal=False), episode()]).illegal == pytest.approx(2 / 3)
    assert episode_metrics([thinking("?"), episode()]).illegal == 0
