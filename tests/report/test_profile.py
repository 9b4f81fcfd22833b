from __future__ import annotations

import pytest

from reflectrl.core.profile import Part, profiling
from reflectrl.report.profile import mean_iteration, print_profile


def test_the_first_iteration_warms_up_and_is_left_out():
    iterations = [{"act": Part(9, 9.0)}, {"act": Part(2, 1.0)}, {"act": Part(4, 2.0), "reset": Part(2, 5.0)}]
    assert mean_iteration(iterations) == {"reset": Part(1, 2.5), "act": Part(3, 1.5)}
    assert list(mean_iteration(iterations)) == ["reset", "act"]  # the most expensive first
    assert mean_iteration(iterations[:1]) == {"act": Part(9, 9.0)}


def test_the_table_has_calls_seconds_and_shares(capsys):
    with profiling() as profile:
        profile.iterations = [{}, {"policy: act": Part(15, 1.5), "rollout": Part(1, 0.5)}]
    print_profile(profile)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["policy:", "act", "15", "1.500", "75%"] in lines
    assert ["rollout", "1", "0.500", "25%"] in lines
    assert ["all", "2.000", "100%"] in lines


@pytest.mark.parametrize("iterations", [[], [{}]])
def test_a_run_without_iterations_has_no_table(capsys, iterations):
    with profiling() as profile:
        profile.iterations = iterations
    print_profile(profile)
    assert "seconds" not in capsys.readouterr().out
