"""Edits of a text, and changes as a diff."""

from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput
from reflectrl.envs.auto_explore.edits import FORM, apply_edits
from reflectrl.envs.auto_explore.writeback import diff


def block(old: str, new: str) -> str:
    return f"<<<<<<< OLD\n{old}=======\n{new}>>>>>>> NEW\n"


@pytest.mark.parametrize(
    ("text", "blocks", "edited"),
    [
        ("a\nb\nc\n", block("b\n", ""), "a\nc\n"),
        ("a\nb\nc\n", block("a\n", "x\ny\n") + block("c\n", "3\n"), "x\ny\nb\n3\n"),
        ("b b\nb", block("b\n", "B\n"), "b b\nB"),
        ("a\nb\n", block("a\nb\n", "\n"), "\n"),
        ("  a\n", block("  a\n", "    a\n").rstrip("\n"), "    a\n"),
        ("lines that stand there once\n", FORM, "lines to stand there instead\n"),  # the form that is shown
    ],
)
def test_lines_are_replaced(text, blocks, edited):
    assert apply_edits(text, blocks) == edited


@pytest.mark.parametrize(
    ("text", "blocks", "fact"),
    [
        ("a\n", block("b\n", "c\n"), "block 1 stand 0 times"),
        ("a\na\n", block("a\n", "c\n"), "block 1 stand 2 times"),
        ("xa\n", block("a\n", "c\n"), "block 1 stand 0 times"),
        ("a\n", block("", "c\n"), "block 1 stand 0 times"),
        ("a\n", block("a\n", "b\n") + block("a\n", "c\n"), "block 2 stand 0 times"),
        *(("a\n", blocks, FORM) for blocks in ("", "please\n" + block("a\n", "b\n"), "<<<<<<< OLD\na\n>>>>>>> NEW\n")),
    ],
)
def test_what_does_not_fit_is_refused(text, blocks, fact):
    with pytest.raises(InvalidInput, match=fact):
        apply_edits(text, blocks)


def test_a_diff_says_what_was_added_changed_and_removed():
    before = {"a": b"1\n2", "b": None, "c": b"x\n", "d": b"\xff", "e": None}
    after = {"a": b"1\n3", "b": b"new\n", "c": None, "d": b"\xfe\xff", "e": b""}
    assert "\n".join(diff(before, after)) == (
        "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n 1\n-2\n\\ No newline at end of file\n+3\n\\ No newline at end of file\n"
        "--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+new\n"
        "--- a/c\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "Binary file d: 1 bytes before, 2 now\n"
        "Empty file e added"
    )
