"""Tree: paths are walked name by name, links are followed in user space, and nothing leads out of the folder."""

from __future__ import annotations

import gc
import os
import shutil
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.envs.auto_explore.tree import LINKS, WRITE, Entry, Tree, visible


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    (root / "docs" / "api").mkdir(parents=True)
    (root / "read me.txt").write_text("hello")
    (root / "docs" / "guide.md").write_text("guide")
    (root / "docs" / "api" / "index.md").write_text("index")
    (tmp_path / "secret").write_text("secret")
    return Tree(root)


def at(path: str) -> PurePosixPath:
    return PurePosixPath(path)


def read(tree: Tree, path: str) -> str:
    with tree.file(at(path)) as fd:
        return os.read(fd, 100).decode()


def real(tree: Tree, path: str) -> str:
    with tree.folder(at(path)) as (_, found):
        return str(found)


def open_files() -> int:
    gc.collect()  # or what other tests left behind is closed while this one counts
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    "path",
    ["docs/guide.md", "/docs/guide.md", "docs//guide.md", "docs/./guide.md", "docs/api/../guide.md", "//docs/guide.md"],
)
def test_a_path_is_relative_to_the_root_however_it_is_written(tree, path):
    assert read(tree, path) == "guide"


def test_folders_come_first_and_each_part_is_sorted(tree):
    (tree.root / "B").mkdir()
    (tree.root / "a.txt").touch()
    names = [Entry("B", True), Entry("docs", True), Entry("a.txt", False), Entry("read me.txt", False)]
    assert tree.entries(at(".")) == tuple(names)


def test_a_link_is_listed_as_what_it_leads_to(tree):
    (tree.root / "to_folder").symlink_to("docs")
    (tree.root / "to_file").symlink_to("docs/api/../guide.md")
    listed = tree.entries(at("."))
    assert Entry("to_folder", True) in listed
    assert Entry("to_file", False) in listed


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "missing", "self", "docs/../../secret"])
def test_a_link_that_leads_nowhere_inside_is_not_listed(tree, target):
    (tree.root / "self").symlink_to(target)
    assert "self" not in {entry.name for entry in tree.entries(at("."))}


def test_the_parent_of_a_linked_folder_is_that_of_the_folder_it_leads_to(tree):
    (tree.root / "short").symlink_to("docs/api")
    assert read(tree, "short/index.md") == "index"
    assert read(tree, "short/../guide.md") == "guide"
    assert real(tree, "short/..") == "docs"


def test_folders_have_a_path_without_links(tree):
    (tree.root / "short").symlink_to("docs/api")
    assert real(tree, "short") == "docs/api"
    assert real(tree, "docs/api/../..") == "."


def test_a_named_file_keeps_its_own_name_in_a_folder_without_links(tree):
    (tree.root / "short").symlink_to("docs/api")
    (tree.root / "docs" / "api" / "alias.md").symlink_to("../guide.md")
    assert tree.named(at("short/alias.md")) == at("docs/api/alias.md")
    assert tree.named(at("docs/../short/index.md")) == at("docs/api/index.md")


def chain(tree: Tree, length: int) -> str:
    (tree.root / "link0").symlink_to("read me.txt")
    for number in range(1, length):
        (tree.root / f"link{number}").symlink_to(f"link{number - 1}")
    return f"link{length - 1}"


def test_forty_links_are_followed_and_no_more(tree):
    last = chain(tree, LINKS)
    assert read(tree, last) == "hello"
    (tree.root / "one_more").symlink_to(last)
    with pytest.raises(InvalidInput, match="one_more leads through more than 40 links"):
        read(tree, "one_more")


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("missing", "missing does not exist"),
        ("docs/missing/x", "docs/missing/x does not exist"),
        ("docs", "docs is a folder; expected a file"),
        (".", "is a folder; expected a file"),
        ("read me.txt/x", "read me.txt/x is not a folder"),
        ("..", r"\.\. leads out of the repository"),
        ("docs/../../secret", "leads out of the repository"),
        ("x" * 256, "too long for the name of a file"),
        ("ä" * 128, "too long for the name of a file"),
        ("x/" * 2500, "at most 4,096 characters"),
        ("a\0b", "does not exist"),
        ("\udcff", "does not exist"),
    ],
)
def test_an_unusable_path_is_refused_with_a_short_sentence(tree, path, sentence):
    with pytest.raises(InvalidInput, match=sentence) as caught:
        read(tree, path)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", [".env", "..", ".", "a\nb", "a\x1bb", "a\x00b", "\udcff", "a\u202eb"])
def test_hidden_and_unprintable_names_are_invisible(name):
    assert not visible(name)


@pytest.mark.parametrize("name", ["a b", "'quoted'", "naïve.txt", "日本語", "-rf", "~", "*"])
def test_other_names_are_visible(name):
    assert visible(name)


def test_what_cannot_be_seen_cannot_be_opened_or_written(tree):
    (tree.root / ".env").write_text("secret")
    (tree.root / ".git").mkdir()
    (tree.root / ".git" / "config").write_text("secret")
    (tree.root / "to_hidden").symlink_to(".env")
    for path in (".env", ".git/config", "docs/../.env", "to_hidden"):
        with pytest.raises(InvalidInput, match="does not exist"):
            read(tree, path)
    with pytest.raises(InvalidInput, match="does not exist"), tree.file(at(".new"), WRITE):
        pass
    assert not (tree.root / ".new").exists()


def test_names_that_are_not_utf8_are_passed_over(tree):
    (tree.root / "\udcff\udcfe").touch()
    assert [entry.name for entry in tree.entries(at("."))] == ["docs", "read me.txt"]


def test_writing_makes_a_file_and_does_not_empty_an_old_one(tree):
    with tree.file(at("docs/new.md"), WRITE) as fd:
        os.write(fd, b"new")
    with tree.file(at("read me.txt"), WRITE):
        pass
    assert read(tree, "docs/new.md") == "new"
    assert read(tree, "read me.txt") == "hello"


def test_writing_through_a_link_stays_inside(tree):
    (tree.root / "in").symlink_to("docs/guide.md")
    (tree.root / "out").symlink_to("../made")
    with tree.file(at("in"), WRITE) as fd:
        os.write(fd, b"GUIDE")
    assert read(tree, "docs/guide.md") == "GUIDE"
    with pytest.raises(InvalidInput, match="leads out"), tree.file(at("out"), WRITE):
        pass
    assert not (tree.root.parent / "made").exists()


def test_a_file_with_a_second_name_is_refused(tree):
    os.link(tree.root.parent / "secret", tree.root / "hard")
    with pytest.raises(InvalidInput, match="hard has other names too"):
        read(tree, "hard")


def test_files_are_all_regular_visible_files(tree):
    os.mkfifo(tree.root / "fifo")
    (tree.root / ".hidden").touch()
    (tree.root / "link").symlink_to("docs")
    assert sorted(map(str, tree.files())) == ["docs/api/index.md", "docs/guide.md", "read me.txt"]


def test_nothing_stays_open(tree):
    (tree.root / "loop").symlink_to("loop")
    before = open_files()
    for path in ("docs/guide.md", "docs", "loop", "missing", "docs/../..", "docs/api/../guide.md"):
        with suppress(InvalidInput):
            tree.named(at(path))
        tree.entries(at("docs"))
    assert open_files() == before


@pytest.mark.parametrize("path", [".", "docs", "docs/guide.md"])
def test_a_folder_that_has_gone_is_said_to_have_gone(tree, path):
    shutil.rmtree(tree.root)
    with pytest.raises(WorkFailed, match="the copy of the repository has gone"):
        tree.entries(at(path))


def test_another_folder_in_its_place_is_not_taken_for_it(tree):
    shutil.rmtree(tree.root)
    tree.root.mkdir()
    with pytest.raises(WorkFailed, match="has gone"):
        tree.entries(at("."))


def test_the_root_itself_is_not_reached_through_a_link(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with pytest.raises(OSError, match="Not a directory"):
        Tree(Path(tmp_path / "link"))


def test_a_folder_is_listed_whole_while_somebody_else_lists_it(tree):
    """Forked processes share the root's descriptor, and with it how far it was read."""
    with tree.folder(at(".")) as (fd, _), os.scandir(fd) as listing:
        next(listing)
        assert tree.entries(at(".")) == (Entry("docs", folder=True), Entry("read me.txt", folder=False))
