from __future__ import annotations

import pytest

from reflectrl.core import Decision, Observation, Task, Trajectory, Turn
from reflectrl.rollout import episode_metrics, wilson_interval


def turn(reward: float, entropy: float = 0.5, illegal: bool = False) -> Turn:
    return Turn(Observation("s", ("a",)), ("a",), None, Decision(0, "a", 0.0, entropy), reward, illegal)


def episode(success: bool, *turns: Turn) -> Trajectory:
    return Trajectory(Task("t"), 0, turns, terminated=True, truncated=False, success=success)


def test_wilson_interval_matches_the_textbook():
    # 8 of 10, z = 1.96: 0.490 to 0.943 (Brown, Cai and DasGupta 2001)
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-3)


@pytest.mark.parametrize(("wins", "trials"), [(0, 5), (5, 5), (0, 0)])
def test_wilson_interval_stays_within_zero_and_one(wins, trials):
    low, high = wilson_interval(wins, trials)
    assert 0.0 <= low < high <= 1.0


def test_wilson_interval_narrows_with_trials():
    wide, narrow = wilson_interval(5, 10), wilson_interval(500, 1000)
    assert narrow[1] - narrow[0] < (wide[1] - wide[0]) / 5


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
