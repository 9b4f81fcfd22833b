from __future__ import annotations

import json
from pathlib import Path

import pytest

from reflectrl.core import InvalidInput
from reflectrl.endpoint.account import Tokens
from reflectrl.endpoint.journal import REJECTED, REPLIES, Journal, PaidReply, RejectedReply

CHAT = [{"role": "user", "content": "hello"}]


def paid(asked: str, text: str | None) -> PaidReply:
    return PaidReply(asked, text, Tokens(7, 5), batch=False)


def test_a_reply_is_in_the_file_as_soon_as_it_is_added_and_known_to_the_next_process(tmp_path: Path) -> None:
    Journal(tmp_path / "calls").add(paid("a", "fine"))
    [line] = (tmp_path / "calls" / REPLIES).read_text().splitlines()
    tokens = {"prompt": 7, "completion": 5, "cached": 0}
    assert json.loads(line) == {"asked": "a", "text": "fine", "tokens": tokens, "batch": False, "cut": False}
    again = Journal(tmp_path / "calls")
    assert (again.known("a"), again.known("b")) == ("fine", None)
    assert again.paid == [(Tokens(7, 5), False)]
    again.add(paid("b", None))  # an empty reply is paid for too
    assert Journal(tmp_path / "calls").known("b") is None
    assert Journal(tmp_path / "calls").paid == [(Tokens(7, 5), False)] * 2


@pytest.mark.parametrize("torn", ['{"asked": "b", "te', '{"asked": "b", "text": "x"}', "\x00\x00"])
def test_a_torn_last_line_is_taken_off_at_the_start(tmp_path: Path, torn: str) -> None:
    Journal(tmp_path).add(paid("a", "fine"))
    whole = (tmp_path / REPLIES).read_bytes()
    (tmp_path / REPLIES).write_bytes(whole + torn.encode())
    journal = Journal(tmp_path)
    assert (journal.known("a"), journal.known("b")) == ("fine", None)
    assert (tmp_path / REPLIES).read_bytes() == whole


def test_a_line_in_the_middle_that_is_none_is_refused_by_its_number(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add(paid("a", "fine"))
    with (tmp_path / REPLIES).open("a") as file:
        file.write('{"asked": "b"\n')
    journal.add(paid("c", "fine"))
    with pytest.raises(InvalidInput, match=r"replies.jsonl, line 2"):
        Journal(tmp_path)


def test_a_call_that_is_set_aside_is_so_until_its_line_is_taken_out(tmp_path: Path) -> None:
    Journal(tmp_path).reject("a", CHAT, "it said no")
    [line] = (tmp_path / REJECTED).read_text().splitlines()
    assert json.loads(line) == {"asked": "a", "reason": "it said no", "chat": CHAT}
    journal = Journal(tmp_path)
    assert (journal.rejected, journal.rejected_path) == (1, tmp_path / REJECTED)
    with pytest.raises(RejectedReply, match="it said no"):
        journal.known("a")
    (tmp_path / REJECTED).write_text("")
    assert Journal(tmp_path).known("a") is None


def test_the_bad_replies_of_a_call_that_is_set_aside_are_forgotten(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for asked in ("a", "a again", "b"):
        journal.add(paid(asked, "fine"))
    journal.reject("a", CHAT, "it said no", bad=["a", "a again"])
    (tmp_path / REJECTED).unlink()
    for later in (Journal(tmp_path), Journal(tmp_path)):
        assert [later.known(asked) for asked in ("a", "a again", "b")] == [None, None, "fine"]
        assert sum(tokens.prompt for tokens, _ in later.paid) == 3 * 7


def test_without_a_folder_nothing_is_kept_but_what_was_set_aside() -> None:
    journal = Journal()
    journal.add(paid("a", "fine"))
    journal.reject("b", CHAT, "it said no")
    assert journal.known("a") is None
    with pytest.raises(RejectedReply):
        journal.known("b")
