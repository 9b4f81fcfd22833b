from __future__ import annotations

import random
from dataclasses import replace

import pytest
from records import chose, turn_of

from reflectrl.core import Observation, Task, Trajectory, Turn
from reflectrl.rollout import episode_metrics, wilson_interval
from reflectrl.rollout.iteration import independent_trials, wins_and_episodes


def turn(reward: float, entropy: float = 0.5, illegal: bool = False) -> Turn:
    return turn_of(Observation("s", ("a",)), ("a",), None, chose(0, "a", 0.0, entropy), reward, illegal)


def episode(success: bool, *turns: Turn) -> Trajectory:
    return Trajectory(Task("t"), 0, turns, terminated=True, truncated=False, success=success)


def test_wilson_interval_by_hand():
    # 8 of 10, z = 1.96: 0.490 to 0.943 (Brown, Cai and DasGupta 2001)
    assert wilson_interval(0.8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-3)
    for rate in (0.0, 0.3, 1.0):
        low, high = wilson_interval(rate, 5)
        assert 0.0 <= low < high <= 1.0
    wide, narrow = wilson_interval(0.5, 10), wilson_interval(0.5, 1000)
    assert narrow[1] - narrow[0] < (wide[1] - wide[0]) / 5


def repeated(outcomes: dict[str, list[bool]]) -> list[Trajectory]:
    return [replace(episode(win, turn(0.0)), task=Task(task)) for task, wins in outcomes.items() for win in wins]


@pytest.mark.parametrize(
    ("outcomes", "trials"),
    [
        ({f"t{i}": [i % 4 > 0] * 3 for i in range(20)}, 20),  # repeating a deterministic policy adds no certainty
        ({f"t{i}": [(i + j) % 2 == 0 for j in range(10)] for i in range(10)}, 10),  # no task differs: the cautious end
        # wins 4, 2 and 1 of 4: the mean over tasks has variance v = (42/9 / 12^2) * 3/2, and (7/12 * 5/12) / v is 5
        ({"a": [True] * 4, "b": [True, True, False, False], "c": [True, False, False, False]}, 5),
    ],
)
def test_the_effective_number_of_trials_by_hand(outcomes, trials):
    assert independent_trials(repeated(outcomes)) == pytest.approx(trials)


def test_repetitions_that_differ_as_much_as_tasks_count_in_full():
    rng = random.Random(0)
    drawn = repeated({f"t{i}": [rng.random() < 0.5 for _ in range(50)] for i in range(40)})
    assert independent_trials(drawn) > 1000
    once = repeated({f"t{i}": [i % 2 == 0] for i in range(30)})
    assert independent_trials(once) == pytest.approx(30, rel=0.05)


def test_metrics_are_means_over_episodes_and_over_steps():
    metrics = episode_metrics(
        [episode(True, turn(-0.5, 0.0), turn(1.0, 1.0)), episode(False, turn(-1.0, 0.2, illegal=True))]
    )
    assert metrics.episodes == 2
    assert metrics.success == 0.5
    assert metrics.episode_return == pytest.approx(-0.25)
    assert metrics.length == 1.5
    assert metrics.illegal == pytest.approx(1 / 3)
    assert metrics.entropy == pytest.approx(0.4)


def test_success_is_counted_by_group_of_tasks():
    tasks = (
        Task("1", {"group": "red"}),
        Task("2", {"group": "blue"}),
        Task("3", {"group": "red"}),
        Task("4", {"state": 5}),
    )
    won = (True, False, False, True)
    played = [replace(episode(success), task=task) for success, task in zip(won, tasks, strict=True)]
    assert wins_and_episodes(played, "red") == (1, 2)
    assert wins_and_episodes(played, "blue") == (0, 1)
    assert wins_and_episodes(played, "red", [0.5, 1.0, 2.0, 1.0]) == (0.5, 2.5)
