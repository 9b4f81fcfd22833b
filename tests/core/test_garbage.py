from __future__ import annotations

import gc

import pytest

from reflectrl.core.garbage import living_objects_left_out


@pytest.mark.parametrize("before", [False, True])
def test_what_is_alive_is_left_out_and_searched_again_unless_it_was_left_out_before(before):
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    if before:
        gc.freeze()
    alive = [[] for _ in range(9)]
    try:
        with living_objects_left_out():
            assert gc.get_freeze_count() > len(alive)
            assert not any(each is alive for each in gc.get_objects())
        assert any(each is alive for each in gc.get_objects()) != before
    finally:
        gc.unfreeze()
        if frozen:
            gc.freeze()
