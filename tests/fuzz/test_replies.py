"""Any reply of a model is parsed or rejected, and ``BadReply`` is the only error."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reflectrl.core import Hints
from reflectrl.core.messages import BadReply
from reflectrl.core.text import holds
from reflectrl.envs.auto_explore.draft import read_questions
from reflectrl.prompts import Menu, labels
from reflectrl.prompts.chats import read_label, read_reflection
from reflectrl.prompts.teacher import read_discreet

TEXT = st.text(st.characters())  # surrogates too
WORDS = st.sampled_from(
    ("QUESTION", "ANSWER", "1", "2", "٣", ":", "**", "\n", " ", "- ", "#", "read.md", "What?", "0. ")
)
MAX_SECONDS = 120
"""Processor time for long replies, where it once grew with the square of their length, to hours."""
SPOKEN = TEXT | st.lists(WORDS | TEXT, max_size=30).map("".join)


@given(reply=SPOKEN)
def test_a_reflection_is_one_line(reply: str):
    said = read_reflection(reply)
    assert len(said.splitlines()) <= 1
    assert said.split() == reply.split()


@given(reply=SPOKEN, actions=st.lists(TEXT, min_size=1, max_size=6), kind=st.sampled_from(("numbers", "added")))
def test_a_label_is_a_place_in_the_menu(reply: str, actions: list[str], kind: str):
    menu = Menu(labels(kind, len(actions)), tuple(actions))
    with contextlib.suppress(BadReply):
        assert 0 <= read_label(reply, menu) < len(actions)
    for place, label in enumerate(menu.labels):
        assert read_label(f" **{label}**.\n", menu) == place


@given(reply=SPOKEN, path=TEXT, count=st.integers(1, 5))
@example(reply="QUESTION 1: What?\nANSWER 1: This.", path="a/read.md", count=1)
def test_questions_are_pairs_of_lines_that_do_not_name_the_file(reply: str, path: str, count: int):
    with contextlib.suppress(BadReply):
        pairs = read_questions(reply, path, count)
        assert 1 <= len(pairs) <= count
        assert all(side.strip() and len(side.splitlines()) == 1 for pair in pairs for side in pair)


@given(reply=SPOKEN, hidden=st.tuples(TEXT, TEXT), reflection=st.none() | TEXT, menu=st.lists(TEXT, max_size=4))
def test_a_reflection_keeps_the_secret(reply: str, hidden: tuple[str, str], reflection: str | None, menu: list[str]):
    spoiler, secret = hidden
    hints = Hints(None, reflection, spoiler, secrets=(secret,))
    with contextlib.suppress(BadReply):
        assert read_discreet(reply, hints, menu, "") == read_reflection(reply)
        assert not holds(reply, secret)


@pytest.mark.slow
def test_long_replies_are_read_in_seconds():
    began = time.process_time()
    menu = Menu(labels("numbers", 3), ("a", "b", "c"))
    for unit in ("*", " ", "QUESTION", "QUESTION 1:\n", "ANSWER 1: a\n", "\n#", "(", "a. ", "`"):
        reply = unit * 50_000
        for read in (
            lambda reply: read_label(reply, menu),
            lambda reply: read_questions(reply, "a.md", 3),
            lambda reply: read_discreet(reply, Hints(None, None, "The file is /a. Go."), menu.actions, ""),
        ):
            with contextlib.suppress(BadReply):
                read(reply)
    assert time.process_time() - began < MAX_SECONDS
