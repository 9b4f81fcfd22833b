import os

import pytest

from reflectrl.core import InvalidInput
from reflectrl.core.files import append_text, in_one_move, write_text
from reflectrl.core.jsonl import append_jsonl


def test_files_and_folders_appear_complete_and_replace_what_was_there(tmp_path):
    for name in (".model.fresh", ".model.stale"):  # left by a process that was killed
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
    for content in ("old", "new"):
        with in_one_move(tmp_path / "model") as fresh:
            fresh.mkdir()
            (fresh / content).touch()
    with in_one_move(tmp_path / "file") as fresh:
        fresh.write_text("half")
        assert not (tmp_path / "file").exists()
        fresh.write_text("whole")
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        *("file", "model", "model/new")
    ]
    assert (tmp_path / "file").read_text() == "whole"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_an_error_what_was_there_is_there_still(tmp_path, error):
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(error), in_one_move(path) as fresh:  # noqa: PT012 - the block is what fails
        fresh.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_text_is_written_as_utf_8_with_plain_line_ends(tmp_path):
    write_text(tmp_path / "file", "ä\n")
    append_text(tmp_path / "file", "ö\n")
    assert (tmp_path / "file").read_bytes() == "ä\nö\n".encode()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_nothing_is_appended_through_a_link_or_to_a_pipe(tmp_path, kind):
    outside, there = tmp_path / "outside", tmp_path / "lines.jsonl"
    outside.write_text("precious")
    if kind == "link":
        there.symlink_to(outside)
    else:
        os.mkfifo(there)
    for write in (lambda: append_text(there, "more"), lambda: append_jsonl(there, [1])):
        with pytest.raises(InvalidInput, match=f"is a {kind}, which is not written"):
            write()
    assert outside.read_text() == "precious"
