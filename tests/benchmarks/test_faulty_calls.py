from __future__ import annotations

from dataclasses import replace

import pytest
from faulty_calls import FAULTS, Outcome, measure, read, reply

from reflectrl.core.chat import BadReply


def test_faults_and_a_kill_lose_nothing_and_double_nothing() -> None:
    found = measure(calls=120, share=0.3, kills=1, seed=1, in_flight=8)
    assert (found.rejected, found.lost, found.doubled, found.wrong) == (0, 0, 0, 0)
    assert (found.calls, found.kills) == (120, 1)
    assert found.requests == found.calls + found.faults + found.bad_replies + found.asked_again
    assert found.asked_again <= 8
    assert found.faults > 20


@pytest.mark.parametrize("fault", ["rejected", "lost", "doubled", "wrong"])
def test_one_thing_wrong_is_not_fine(fault: str) -> None:
    fine = Outcome(10, 15, 1.5, 4, 1, 1, 0, 0, 0, 0, 0, 1.0)
    assert fine.fine
    assert not replace(fine, **{fault: 1}).fine
    assert not replace(fine, ratio=1.61).fine
    assert "| 10 | 15 | 1.50 |" in fine.table()


def test_few_questions_get_a_bad_reply_and_only_at_first() -> None:
    chats = [[{"role": "user", "content": str(number)}] for number in range(300)]
    bad = [chat for chat in chats if reply(chat).startswith("I would")]
    assert 0 < len(bad) < 30
    with pytest.raises(BadReply):
        read(reply(bad[0]))
    assert all(read(reply([*chat, *chat, *chat])) for chat in bad)


def test_no_fault_is_named_twice() -> None:
    assert len(set(FAULTS)) == len(FAULTS)
