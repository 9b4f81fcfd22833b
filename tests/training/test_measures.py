"""Counts that an iteration reports about its frozen players, and iterations whose ratings teach nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from remembered import OneHot, past
from tiny_rlft import Run, run

from reflectrl.prompts.rating import Scale
from reflectrl.seats.memory import Memory
from reflectrl.seats.retriever import Retriever
from reflectrl.seats.table import Seat

RATED = {"rewards": {"rater": 1.0, "env": 0.0}, "gamma": 0.97}


class Rates:
    """Rater that gives these levels in turn."""

    def __init__(self, *levels):
        self.levels = levels
        self.asked = 0

    def say(self, views, draws):  # noqa: ARG002
        said = []
        for view in views:
            said.append(Scale().rated(self.levels[self.asked % len(self.levels)], len(view.past), ""))
            self.asked += 1
        return said


def rated(folder: Path, *levels: int | None, **options) -> tuple[Run, bool]:
    """Train for two iterations of four episodes; return the run, and whether the weights changed."""
    trained = run(folder, seats=[Seat("rater", Rates(*levels))], **{**RATED, **options})
    before = trained.weights
    trained.train()
    return trained, not all(weight.equal(before[name]) for name, weight in trained.weights.items())


def test_an_iteration_whose_ratings_are_all_equal_has_no_update(tmp_path: Path) -> None:
    """Section 3.9: with a discount, their returns differ by the length of the episodes alone."""
    trained, learned = rated(tmp_path, 2)
    assert not learned
    assert len({len(each.turns) for episodes in trained.episodes for each in episodes}) > 1
    for each in trained.iterations:
        assert (each.rater_std, each.rater_invalid) == (0, 0)
        assert (each.loss, each.kl, each.clipped, each.grad_norm, each.logprob_gap) == (0, 0, 0, 0, 0)


def test_ratings_that_differ_or_do_not_stand_alone_are_learned_from(tmp_path: Path) -> None:
    trained, learned = rated(tmp_path / "different", 0, 3)
    assert learned
    assert [each.rater_std for each in trained.iterations] == [0.5, 0.5]
    assert rated(tmp_path / "beside", 2, rewards={"rater": 1.0, "env": 1.0})[1]
    assert rated(tmp_path / "audited", 2, rewards={"rater": 0.0, "env": 1.0})[1]


def test_episodes_without_a_rating_are_counted(tmp_path: Path) -> None:
    trained, learned = rated(tmp_path, 0, 3, None, 0)
    assert learned
    assert [each.rater_invalid for each in trained.iterations] == [0.25, 0.25]
    assert trained.iterations[0].rater_std == pytest.approx(2**0.5 / 3)


class Planner:
    """Planner that answers every reflection with the same words."""

    def __init__(self, words):
        self.words = words

    def keys(self, thoughts, draws):  # noqa: ARG002
        return [self.words] * len(thoughts)


@pytest.mark.parametrize(
    ("key", "words", "misses"),
    [
        ("planner", "I would rather not say.", 1),
        ("planner", "action: add", 0),
        ("action", "", None),
    ],
)
def test_steps_for_which_the_planner_gave_no_key_are_counted(key, words, misses, tmp_path: Path) -> None:
    """R7: the examples stay as they are, and the misses are counted."""
    memory = Memory(Retriever([past("go", ("add one", "Number 1"))], OneHot()), key=key, planner=Planner(words))
    trained = run(tmp_path, seats=[Seat("memory", memory)], max_length=128).train()
    assert [each.memory_key_misses for each in trained.iterations] == [misses, misses]
    assert trained.iterations[0].rater_std is None
