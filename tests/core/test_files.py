import pytest

from reflectrl.core.files import append_text, in_one_move, write_text


def test_a_file_appears_complete(tmp_path):
    path = tmp_path / "file"
    with in_one_move(path) as fresh:
        fresh.write_text("half")
        assert not path.exists()
        fresh.write_text("whole")
    assert path.read_text() == "whole"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_folder_replaces_another_one(tmp_path):
    path = tmp_path / "model"
    for content in ("old", "new"):
        with in_one_move(path) as fresh:
            fresh.mkdir()
            (fresh / content).touch()
    assert [entry.name for entry in path.iterdir()] == ["new"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def write_half(path, error):
    with in_one_move(path) as fresh:
        fresh.write_text("half")
        raise error


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_an_error_what_was_there_is_there_still(tmp_path, error):
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(error):
        write_half(path, error)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path):
    for name in (".model.fresh", ".model.stale"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
    with in_one_move(tmp_path / "model") as fresh:
        fresh.mkdir()
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_text_is_written_as_utf_8_with_plain_line_ends(tmp_path):
    write_text(tmp_path / "file", "ä\n")
    append_text(tmp_path / "file", "ö\n")
    assert (tmp_path / "file").read_bytes() == "ä\nö\n".encode()
