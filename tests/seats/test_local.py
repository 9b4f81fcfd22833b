"""A local model as the rater: its levels are single tokens, and long episodes are cut until they fit."""

from __future__ import annotations

import pytest
from tiny import LAYOUT, gpt2, tokenizer

from reflectrl.core import InvalidInput
from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.writer import LocalModel
from reflectrl.prompts.rating import Questions, Scale, level_of
from reflectrl.rollout import Episode, rollout
from reflectrl.seats.others import RandomPolicy
from reflectrl.seats.rater import Rater
from reflectrl.seats.table import Seat

SCALE = Scale(("bad", "good"), "raw")
MAX_LENGTH = 512
"""Model length in tokens, into which the longer questions about three steps do not fit with their summary."""


def tiny() -> LanguageModel:
    return LanguageModel(gpt2(spread=0.3, n_positions=MAX_LENGTH), tokenizer())


def rated(segment: int) -> list[tuple[float, str]]:
    model = LocalModel(tiny(), SCALE, max_length=MAX_LENGTH)
    seats = [Seat("rater", Rater(model, Questions("Walk.", segment, scale=SCALE)))]
    env = NumberLine(size=8)
    episodes = [Episode(task, seed) for seed, task in enumerate(env.tasks("train")[:6])]
    played = rollout([env], episodes, policy=RandomPolicy(), seats=seats, layout=LAYOUT)
    return [(each.turns[-1].rewards["rater"], each.turns[-1].said["rater"].text) for each in played]


@pytest.mark.slow
def test_every_episode_gets_a_level_and_equal_models_give_equal_ones() -> None:
    found = rated(segment=3)
    assert {score for score, _ in found} <= {0.0, 1.0}
    assert [score for score, _ in found] == [level_of(words) for _, words in found]
    assert rated(segment=3) == found


def test_levels_that_are_no_tokens_of_the_model_are_refused() -> None:
    with pytest.raises(InvalidInput):
        LocalModel(tiny(), Scale(tuple(map(str, range(200)))), max_length=MAX_LENGTH)
