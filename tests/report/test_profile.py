from __future__ import annotations

from reflectrl.core.profile import Timed, profiling
from reflectrl.report.tables import print_profile


def printed(capsys, *iterations):
    with profiling() as profile:
        profile.iterations = [*iterations]
    print_profile(profile)
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_the_table_leaves_out_the_warm_up(capsys):
    first, second = {"policy: act": Timed(99, 9.0)}, {"policy: act": Timed(10, 1.0), "rollout": Timed(1, 1.0)}
    lines = printed(capsys, first, second, {"policy: act": Timed(20, 2.0)})
    assert lines[1:4] == [
        ["policy:", "act", "15", "1.500", "75%"],  # the most expensive first
        ["rollout", "0.500", "25%"],
        ["all", "2.000", "100%"],
    ]
    assert ["policy:", "act", "99", "9.000", "100%"] in printed(capsys, first)
    for nothing in ([], [{}]):
        assert not any("seconds" in line for line in printed(capsys, *nothing))
