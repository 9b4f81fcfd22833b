"""The scale: the level read from a reply, and the reward for a level."""

from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput
from reflectrl.core.messages import BadReply
from reflectrl.prompts.rating import Scale, level_of

SCALE = Scale()


@pytest.mark.parametrize(
    ("reply", "level"),
    [
        ("3", 3),
        ("Rating: 2", 2),
        ("**Rating:** 3.", 3),
        ("rating = 2 out of 3", 2),
        ("First I thought of a rating of 1. Rating: 0", 0),
        ("Score: 2", 2),
        ("My score is 1", 1),
        ("Rating: 0. Only a flawless episode would get a rating of 3.", 0),
        ("Rating: 2. My confidence score: 1", 2),
        ("Score: 3\nRating: 1", 1),
        ("Very good", 3),
        ("`1. bad`", 1),
        *((reply, None) for reply in ("4", "2.5", "-1", "", "Rating: 7", "Rating: 1.5", "Rating: -1", "not good")),
        *((reply, None) for reply in ("Rating (0-3): 2", "rating from 0 to 3: 2", "Rating: 0 – 3")),
        ("Rating: 1 or 2", None),
        ("The agent did 2 of 3 things", None),
        ("It took 3 steps.", None),
    ],
)
def test_a_reply_is_a_level_or_is_asked_for_again(reply: str, level: int | None) -> None:
    if level is not None:
        assert SCALE.read(reply) == level
        return
    with pytest.raises(BadReply, match=r"0 \(very bad\), 1 \(bad\), 2 \(good\), 3 \(very good\)"):
        SCALE.read(reply)


@pytest.mark.parametrize(("reward", "scores"), [("raw", (2, 3)), ("unit", (2 / 3, 1)), ("max_only", (0, 1))])
def test_the_reward_of_a_rating_is_that_of_the_last_step_alone(reward, scores) -> None:
    scale = Scale(reward=reward)
    assert (scale.score(2), scale.score(3)) == scores
    assert scale.rated(2, 3, "").scores == (None, None, scores[0])


def test_an_unrated_episode_has_no_scores() -> None:
    assert SCALE.rated(None, 3, "It turned left.").scores == ()
    assert level_of(SCALE.rated(None, 3, "Rating: 3").text) is None
    assert level_of(SCALE.rated(0, 3, "Rating: 3").text) == 0


def test_labels_that_tell_nothing_apart_are_refused() -> None:
    for labels in (("good",), ("good", "Good")):
        with pytest.raises(InvalidInput, match="at least two, all different"):
            Scale(labels)
