from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from run_folders import episode

from reflectrl.core import Utterance, Written
from reflectrl.rollout.iteration import episode_metrics
from reflectrl.rollout.thoughts import known, self_bleu, template, thought_means


def thinking(*thoughts, legal=True):
    """Return an episode with a step for each thought, which has as many tokens as letters."""
    played = episode()
    (turn,) = played.turns
    written = [Written(text, (0,) * len(text), (), len(text), legal) for text in thoughts]
    choices = [replace(turn.decision.choice, written=each) for each in written]
    turns = tuple(replace(turn, decision=replace(turn.decision, choice=choice)) for choice in choices)
    return replace(played, turns=turns)


def numbers(tokens, distinct, repeated, bleu, templates):
    named = {"tokens": tokens, "distinct": distinct, "repeated": repeated, "bleu": bleu, "templates": templates}
    unknown = dict.fromkeys(("misread", "consistent", "corrected"), math.nan)
    return {f"thought_{name}": value for name, value in {**named, **unknown}.items()}


def test_equal_thoughts_have_collapsed():
    same = thought_means([thinking("go up", "go up"), thinking("go up")])
    assert same == pytest.approx(numbers(5, 1 / 3, 1, 1, 1 / 3), nan_ok=True)
    varied = thought_means([thinking("go up", "left then down"), thinking("the door is shut")])
    assert varied == pytest.approx(numbers(35 / 3, 1, 0, 0, 1), nan_ok=True)
    assert thought_means([thinking("go up")]) == pytest.approx(numbers(5, 1, 0, 1, 1), nan_ok=True)


def test_g9_of_a_text_in_json_the_thought_alone_is_measured():
    texts = [json.dumps({"thoughts": "Go on.", "action": action}) for action in ("+", "-", "+", "-")]
    found = thought_means([thinking(*texts)])
    assert found == pytest.approx(numbers(len(texts[0]), 1 / 4, 1, 1, 1 / 4), nan_ok=True)


def test_bleu_by_hand():
    assert self_bleu(["a b c"]) == 1
    assert self_bleu(["", ""]) == 1
    assert self_bleu(["a b c", "a b d"]) == pytest.approx((2 / 3 * 1 / 2) ** 0.5)
    assert self_bleu(["a b", "a b c"]) == pytest.approx(
        (2.718281828 ** (1 - 3 / 2) + (2 / 3 * 1 / 2) ** 0.5) / 2, abs=1e-6
    )


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("The target 3 is\n above 2.5. Go to Rome.", "The target # is above #. Go to #."),
        ('{"thoughts": "Take apple 12.", "action": "take apple 12"}', "Take apple #."),
    ],
)
def test_a_template_is_the_thought_without_its_numbers_and_names(text, masked):
    assert template(text) == masked


def test_judgements_of_thoughts_are_averaged():
    played = thinking("a", "b", "c", "d  e")
    judged = ({"agreement": 0.0, "consistency": 1.0}, {"agreement": 1.0}, {}, {})
    turns = tuple(
        replace(turn, rewards={"env": 0.0, **rewards}, said={"corrector": Utterance(words)})
        for turn, rewards, words in zip(played.turns, judged, ("", "B", "C", "d e"), strict=True)
    )
    means = known(thought_means([replace(played, turns=turns)]))
    assert (means["thought_misread"], means["thought_consistent"]) == (0.5, 1.0)
    assert means["thought_corrected"] == 0.5
    assert known(thought_means([played]))["thought_misread"] is None


def test_silent_policies_and_illegal_texts_are_counted():
    assert thought_means([episode()]) == {}
    assert episode_metrics([thinking("?", "!", legal=False), episode()]).illegal == pytest.approx(2 / 3)
    assert episode_metrics([thinking("?"), episode()]).illegal == 0
