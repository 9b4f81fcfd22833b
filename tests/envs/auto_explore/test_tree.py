"""Tree: paths are walked name by name, links are followed in user space, and nothing leads out of the folder."""

from __future__ import annotations

import gc
import os
import shutil
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.envs.auto_explore.tree import MAX_LINKS, WRITE, Entry, Tree, visible


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


def test_entries_are_folders_first_and_links_as_what_they_lead_to(tree):
    (tree.root / "B").mkdir()
    (tree.root / "a.txt").touch()
    (tree.root / "\udcff\udcfe").touch()
    (tree.root / "to_folder").symlink_to("docs")
    (tree.root / "to_file").symlink_to("docs/api/../guide.md")
    os.mkfifo(tree.root / "fifo")
    folders = [Entry(name, folder=True) for name in ("B", "docs", "to_folder")]
    files = [Entry(name, folder=False) for name in ("a.txt", "read me.txt", "to_file")]
    assert tree.entries(at(".")) == (*folders, *files)
    assert sorted(map(str, tree.files())) == ["a.txt", "docs/api/index.md", "docs/guide.md", "read me.txt"]


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "missing", "self", "docs/../../secret"])
def test_a_link_that_leads_nowhere_inside_is_not_listed(tree, target):
    (tree.root / "self").symlink_to(target)
    assert "self" not in {entry.name for entry in tree.entries(at("."))}


def test_links_are_followed_by_their_targets_and_named_by_themselves(tree):
    (tree.root / "short").symlink_to("docs/api")
    (tree.root / "docs" / "api" / "alias.md").symlink_to("../guide.md")
    assert read(tree, "short/index.md") == "index"
    assert read(tree, "short/../guide.md") == "guide"
    assert [real(tree, path) for path in ("short", "short/..", "docs/api/../..")] == ["docs/api", "docs", "."]
    assert tree.named(at("short/alias.md")) == at("docs/api/alias.md")
    assert tree.named(at("docs/../short/index.md")) == at("docs/api/index.md")


def test_forty_links_are_followed_and_no_more(tree):
    (tree.root / "link0").symlink_to("read me.txt")
    for number in range(1, MAX_LINKS + 1):
        (tree.root / f"link{number}").symlink_to(f"link{number - 1}")
    assert read(tree, f"link{MAX_LINKS - 1}") == "hello"
    with pytest.raises(InvalidInput, match=f"link{MAX_LINKS}"):
        read(tree, f"link{MAX_LINKS}")


@pytest.mark.parametrize(
    "path",
    ["missing", "docs/missing/x", "docs", ".", "read me.txt/x", "..", "docs/../../secret", "hard", "a\0b", "\udcff"]
    + ["x" * 256, "ä" * 128, "x/" * 2500, ".env", ".git/config", "docs/../.env", "to_hidden"],
)
def test_an_unusable_path_is_refused_with_a_short_sentence(tree, path):
    os.link(tree.root.parent / "secret", tree.root / "hard")
    (tree.root / ".git").mkdir()
    for hidden in (".env", ".git/config"):
        (tree.root / hidden).write_text("secret")
    (tree.root / "to_hidden").symlink_to(".env")
    with pytest.raises(InvalidInput) as caught:
        read(tree, path)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("names", "seen"),
    [
        ([".env", "..", ".", "a\nb", "a\x1bb", "a\x00b", "\udcff", "a\u202eb"], False),
        (["a b", "'quoted'", "naïve.txt", "日本語", "-rf", "~", "*"], True),
    ],
)
def test_hidden_and_unprintable_names_are_invisible(names, seen):
    assert {visible(name) for name in names} == {seen}


def test_writing_makes_a_file_or_opens_it_as_it_is_but_only_inside_and_visibly(tree):
    (tree.root / "in").symlink_to("docs/guide.md")
    (tree.root / "out").symlink_to("../made")
    for path, text in (("docs/new.md", b"new"), ("in", b"GU"), ("read me.txt", b"")):
        with tree.file(at(path), WRITE) as fd:
            os.write(fd, text)
    assert [read(tree, path) for path in ("docs/new.md", "docs/guide.md", "read me.txt")] == ["new", "GUide", "hello"]
    for path in ("out", ".new"):
        with pytest.raises(InvalidInput), tree.file(at(path), WRITE):
            pass
    assert not (tree.root.parent / "made").exists()
    assert not (tree.root / ".new").exists()


@pytest.mark.parametrize("path", [".", "docs", "docs/guide.md"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_has_gone_is_an_error_although_another_took_its_place(tree, path, replaced):
    shutil.rmtree(tree.root)
    if replaced:
        tree.root.mkdir()
    with pytest.raises(WorkFailed):
        tree.entries(at(path))


def test_nothing_stays_open(tree):
    (tree.root / "loop").symlink_to("loop")
    before = open_files()
    for path in ("docs/guide.md", "docs", "loop", "missing", "docs/../..", "docs/api/../guide.md"):
        with suppress(InvalidInput):
            tree.named(at(path))
        tree.entries(at("docs"))
    assert open_files() == before


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
