from __future__ import annotations

import time

import pytest

from reflectrl.core.profile import REST, active_profile, part, profiling


def spend(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_parts_add_up_to_an_iteration_and_exclude_what_is_within_them():
    with profiling() as profile:
        before = time.perf_counter()
        profile.begin_iteration()
        began = time.perf_counter()
        with part("outer"):
            spend(0.02)
            for _ in range(2):
                with part("inner"):
                    spend(0.02)
        spend(0.01)
        whole = time.perf_counter() - began
        profile.begin_iteration()
        around = time.perf_counter() - before
    parts = profile.iterations[0]
    assert {name: each.calls for name, each in parts.items()} == {"outer": 1, "inner": 2, REST: 0}
    assert parts["inner"].seconds >= 0.04
    assert 0.02 <= parts["outer"].seconds <= around - 0.05
    assert parts[REST].seconds >= 0.01
    assert whole <= sum(each.seconds for each in parts.values()) <= around


def test_a_part_counts_for_the_iteration_it_is_in_and_nothing_before_the_first():
    with profiling() as profile:
        with part("before"):
            profile.begin_iteration()
        with part("first"):
            pass
        profile.begin_iteration()
        with part("second"):
            pass
    assert [list(parts) for parts in profile.iterations] == [["before", REST, "first"], [REST, "second"]]


def test_a_part_that_fails_is_over():
    with profiling() as profile:
        profile.begin_iteration()
        with pytest.raises(KeyError), part("broken"):
            raise KeyError
        with part("next"):
            pass
    assert [profile.iterations[0][name].calls for name in ("broken", "next")] == [1, 1]


def test_without_a_profile_nothing_is_measured():
    assert active_profile() is None
    with part("unseen"):
        assert active_profile() is None


def test_an_accelerator_is_waited_for_where_parts_begin_and_end():
    waits = []
    with profiling() as profile:
        profile.synchronize = lambda: waits.append(len(waits))
        profile.begin_iteration()
        with part("one"):
            assert len(waits) == 2
        assert len(waits) == 3
