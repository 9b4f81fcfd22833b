"""The share of tokens that no earlier prompt begins with, on real prompts and for each prompt layout."""

from __future__ import annotations

import re

import pytest
from engine_prompts import new_tokens, set_up


def new_share(recipe: str, place: str) -> float:
    """Return the share of new words in the policy's prompts of 8 episodes."""
    with set_up(recipe, [f"prompt.menu={place}"]) as scene:
        episodes = scene.steps(scene.play(8))
    rows = [re.findall(r"\w+|\W", step.policy.prompt.text) for episode in episodes for step in episode]
    known = {word: number for number, word in enumerate({word for row in rows for word in row})}
    return new_tokens([[known[word] for word in row] for row in rows]) / sum(map(len, rows))


@pytest.mark.parametrize(
    ("recipe", "less"), [("dangerous_taxi/paper", 0.85), pytest.param("alfworld/paper", 0.6, marks=pytest.mark.slow)]
)
def test_listing_common_actions_first_leaves_less_to_compute(recipe, less):
    first, last = new_share(recipe, "first"), new_share(recipe, "last")
    assert first < less * last
