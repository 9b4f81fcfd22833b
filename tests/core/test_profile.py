from __future__ import annotations

import time

import pytest

from reflectrl.core.profile import REST, active_profile, part, profiling


def test_parts_add_up_to_an_iteration_and_exclude_what_is_within_them():
    waits = []
    with profiling() as profile:
        profile.synchronize = lambda: waits.append(len(waits))  # an accelerator's
        profile.begin_iteration()
        began = time.perf_counter()
        with part("outer"):
            time.sleep(0.02)
            for _ in range(2):
                with part("inner"):
                    assert len(waits) in (3, 5)
                    time.sleep(0.02)
        with pytest.raises(KeyError), part("broken"):
            raise KeyError
        time.sleep(0.01)
        whole = time.perf_counter() - began
        profile.begin_iteration()
        around = time.perf_counter() - began
        with part("next"):
            pass
    parts = profile.iterations[0]
    assert {name: each.calls for name, each in parts.items()} == {"outer": 1, "inner": 2, "broken": 1, REST: 0}
    assert parts["inner"].seconds >= 0.04
    assert 0.02 <= parts["outer"].seconds <= around - 0.05
    assert parts[REST].seconds >= 0.01
    assert whole <= sum(each.seconds for each in parts.values()) <= around + 0.01
    assert list(profile.iterations[1]) == [REST, "next"]


def test_parts_count_for_their_iteration():
    with profiling() as profile:
        with part("before"):
            profile.begin_iteration()
        with part("first"):
            pass
    assert [list(parts) for parts in profile.iterations] == [["before", REST, "first"]]
    with part("unseen"):
        assert active_profile() is None
