"""The rule as a rater: right with its accuracy, silent if it cannot know, and deterministic by seed."""

from __future__ import annotations

import pytest

from reflectrl.core import NatLangEnv, Observation, Outcome, Task, Trajectory
from reflectrl.envs.number_line import NumberLine
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.rating import Scale
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.agreement import agreement, ratings_of
from reflectrl.seats.others import RandomPolicy
from reflectrl.seats.rater import RuleRater
from reflectrl.seats.table import Seat


def played(rater: RuleRater, env: NatLangEnv, episodes: int, split: str = "train") -> list[Trajectory]:
    tasks = env.tasks(split)
    seats = [Seat("rater", rater)]
    wanted = [Episode(tasks[number % len(tasks)], number) for number in range(episodes)]
    return rollout([env], wanted, policy=RandomPolicy(), seats=seats, layout=PromptFormat())


@pytest.mark.parametrize("accuracy", [1.0, 0.9, 0.0])
def test_it_is_as_often_right_as_it_is_told_to_be(accuracy: float) -> None:
    found = played(RuleRater([NumberLine(size=5)], Scale(), accuracy), NumberLine(size=5), 100)
    assert 20 < sum(each.success for each in found) < 90
    measured = agreement([ratings_of(0, 3, found)])
    assert (measured.episodes, measured.unrated) == (100, 0)
    assert measured.accuracy == pytest.approx(accuracy, abs=0.08)
    again = played(RuleRater([NumberLine(size=5)], Scale(), accuracy), NumberLine(size=5), 20)
    assert again == found[:20]


def test_episodes_of_other_options_are_known_by_their_end() -> None:
    both = RuleRater([NumberLine(size=9), NumberLine(size=5)], Scale(), 1.0)
    for size in (5, 9):
        found = played(both, NumberLine(size=size), 20)
        assert [turn.rewards["rater"] for turn in (each.turns[-1] for each in found)] == [
            each.success for each in found
        ]
    [unknown] = played(RuleRater([NumberLine(size=9)], Scale(), 1.0), NumberLine(size=5), 1, "test")
    assert "rater" not in unknown.turns[-1].rewards


class Dice(NatLangEnv):
    """Environment with a new random number at each step."""

    name = "dice"

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-0")]

    def start(self, task: Task) -> None:  # noqa: ARG002
        self.number = 0

    def observe(self) -> Observation:
        return Observation(f"{self.number}", ("roll", "shake"))

    def act(self, action: str) -> Outcome:  # noqa: ARG002
        self.number = int(self.np_random.integers(10**6))
        return Outcome(0.0, success=False)


class Hidden(NatLangEnv):
    """Environment whose two tasks differ in what the states do not show: where the thing is."""

    name = "hidden"

    def tasks(self, split: str) -> list[Task]:  # noqa: ARG002
        return [Task("left"), Task("right")]

    def start(self, task: Task) -> None:
        self.place, self.text = task.id, "A hall."

    def observe(self) -> Observation:
        return Observation(self.text, ("left", "right"))

    def act(self, action: str) -> Outcome:
        found = action == self.place
        self.text = "It is here." if found else "Nothing here."
        return Outcome(float(found), ended=found, success=found)


def test_the_end_tells_tasks_apart_that_begin_alike() -> None:
    found = played(RuleRater([Hidden(horizon=1)], Scale(), 1.0), Hidden(horizon=1), 20)
    assert {each.success for each in found} == {True, False}
    assert [each.turns[-1].rewards["rater"] for each in found] == [float(each.success) for each in found]


def test_an_environment_whose_states_are_drawn_is_not_rated() -> None:
    *_, after = played(RuleRater([Dice(horizon=3)], Scale(), 1.0), Dice(horizon=3), 2)
    assert "rater" not in after.turns[-1].rewards
