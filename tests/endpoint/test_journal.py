from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reflectrl.core import InvalidInput
from reflectrl.endpoint.account import Tokens
from reflectrl.endpoint.journal import REJECTED, REPLIES, Journal, PaidReply, RejectedReply

CHAT = [{"role": "user", "content": "hello"}]


def paid(asked: str, text: str | None = "fine") -> PaidReply:
    return PaidReply(asked, text, Tokens(7, 5), batch=False)


def test_a_reply_is_on_disk_as_soon_as_it_is_added(tmp_path: Path) -> None:
    Journal(tmp_path / "calls").add(paid("a"))
    [line] = (tmp_path / "calls" / REPLIES).read_text().splitlines()
    tokens = {"prompt": 7, "completion": 5, "cached": 0}
    assert json.loads(line) == {
        "asked": "a",
        "text": "fine",
        "tokens": tokens,
        "batch": False,
        "cut": False,
        "words": "",
        "sent": False,
    }
    again = Journal(tmp_path / "calls")
    assert (again.known("a"), again.known("b")) == ("fine", None)
    again.add(paid("b", None))  # an empty reply is paid for too
    assert Journal(tmp_path / "calls").known("b") is None
    assert Journal(tmp_path / "calls").paid == [(Tokens(7, 5), False)] * 2


def test_a_torn_last_line_is_dropped_and_another_bad_line_refused(tmp_path: Path) -> None:
    Journal(tmp_path).add(paid("a"))
    whole = (tmp_path / REPLIES).read_bytes()
    for torn in ('{"asked": "b", "te', '{"asked": "b", "text": "x"}', "\x00\x00"):
        (tmp_path / REPLIES).write_bytes(whole + torn.encode())
        journal = Journal(tmp_path)
        assert journal.known("b") is None
        assert (tmp_path / REPLIES).read_bytes() == whole + torn.encode()  # another process may be writing it
        journal.add(paid("a"))
        assert (tmp_path / REPLIES).read_bytes() == whole + whole
    (tmp_path / REPLIES).write_bytes(whole + b'{"asked": "b"\n' + whole)
    with pytest.raises(InvalidInput, match=r"replies.jsonl, line 2"):
        Journal(tmp_path)


def test_a_request_counts_as_spent_until_its_reply(tmp_path: Path) -> None:
    most = Tokens(20, 200)
    journal = Journal(tmp_path)
    journal.send({"a": most})
    journal.send({"b": most})
    journal.add(paid("b"))
    assert Journal(tmp_path).paid == [(most, False), (Tokens(7, 5), False)]
    later = Journal(tmp_path)
    later.send({"a": most})  # no more is known of the first
    later.add(paid("a"))
    known = Journal(tmp_path)
    assert (known.known("a"), known.replies) == ("fine", 2)
    assert known.paid == [(most, False), (Tokens(7, 5), False), (Tokens(7, 5), False)]


def test_lines_that_several_threads_write_at_the_same_time_stay_whole(tmp_path: Path) -> None:
    def write(thread: int) -> None:
        journal = Journal(tmp_path)
        for number in range(20):
            journal.send({f"{thread} {number}": Tokens(20, 200)})
            journal.add(paid(f"{thread} {number}", "word " * 4000))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert (Journal(tmp_path).replies, len(Journal(tmp_path).paid)) == (80, 80)


def test_a_rejected_call_stays_so_until_its_line_is_deleted(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for asked in ("a", "a again", "b"):
        journal.add(paid(asked))
    journal.reject("a", CHAT, "it said no", bad=["a", "a again"])
    [line] = (tmp_path / REJECTED).read_text().splitlines()
    assert json.loads(line) == {"asked": "a", "reason": "it said no", "chat": CHAT}
    for known in (journal, Journal(tmp_path)):
        assert (known.rejected, known.rejected_path) == (1, tmp_path / REJECTED)
        with pytest.raises(RejectedReply, match="it said no"):
            known.known("a")
    (tmp_path / REJECTED).unlink()
    for later in (Journal(tmp_path), Journal(tmp_path)):
        assert [later.known(asked) for asked in ("a", "a again", "b")] == [None, None, "fine"]
        assert sum(tokens.prompt for tokens, _ in later.paid) == 3 * 7


def test_a_read_only_journal_writes_nothing(tmp_path: Path) -> None:
    Journal(tmp_path).add(paid("a"))
    before = (tmp_path / REPLIES).read_bytes()
    journal = Journal(tmp_path, read_only=True)
    journal.add(paid("b"))
    journal.reject("c", CHAT, "it said no", bad=["b"])
    assert [journal.known(asked) for asked in ("a", "b")] == ["fine", None]
    assert (journal.rejected, journal.rejected_path) == (1, None)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == {tmp_path / REPLIES: before}


def test_without_a_folder_rejections_are_counted_and_nothing_is_remembered() -> None:
    journal = Journal()
    journal.add(paid("a"))
    journal.reject("b", CHAT, "it said no")
    assert (journal.known("a"), journal.known("b"), journal.rejected) == (None, None, 1)
