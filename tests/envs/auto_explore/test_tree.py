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

ROOT = PurePosixPath(".")


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    (root / "docs" / "api").mkdir(parents=True)
    (root / "read me.txt").write_text("hello")
    (root / "docs" / "guide.md").write_text("guide")
    (root / "docs" / "api" / "index.md").write_text("index")
    return Tree(root)


def read(tree: Tree, path: str) -> str:
    with tree.file(PurePosixPath(path)) as fd:
        return os.read(fd, 100).decode()


def test_links_are_followed_by_their_targets_and_named_by_themselves(tree):
    (tree.root / "short").symlink_to("docs/api")
    (tree.root / "docs" / "api" / "alias.md").symlink_to("../guide.md")
    assert read(tree, "short/index.md") == "index"
    assert read(tree, "short/../guide.md") == "guide"
    for path, real in {"short": "docs/api", "short/..": "docs", "docs/api/../..": "."}.items():
        with tree.folder(PurePosixPath(path)) as (_, found):
            assert str(found) == real
    assert tree.named(PurePosixPath("short/alias.md")) == PurePosixPath("docs/api/alias.md")
    assert sorted(map(str, tree.files())) == ["docs/api/index.md", "docs/guide.md", "read me.txt"]


def test_forty_links_are_followed_and_no_more(tree):
    (tree.root / "link0").symlink_to("read me.txt")
    for number in range(1, MAX_LINKS + 1):
        (tree.root / f"link{number}").symlink_to(f"link{number - 1}")
    assert read(tree, f"link{MAX_LINKS - 1}") == "hello"
    with pytest.raises(InvalidInput, match=f"link{MAX_LINKS}"):
        read(tree, f"link{MAX_LINKS}")


def test_hidden_and_unprintable_names_are_invisible():
    assert not any(map(visible, [".env", "..", ".", "a\nb", "a\x1bb", "a\x00b", "\udcff", "a\u202eb"]))
    assert all(map(visible, ["a b", "'quoted'", "naïve.txt", "日本語", "-rf", "~", "*"]))


def test_writing_makes_a_file_or_opens_it_as_it_is_but_only_inside_and_visibly(tree):
    (tree.root / "in").symlink_to("docs/guide.md")
    (tree.root / "out").symlink_to("../made")
    for path, text in (("docs/new.md", b"new"), ("in", b"GU")):
        with tree.file(PurePosixPath(path), WRITE) as fd:
            os.write(fd, text)
    assert [read(tree, path) for path in ("docs/new.md", "docs/guide.md")] == ["new", "GUide"]
    for path, made in (("out", tree.root.parent / "made"), (".new", tree.root / ".new")):
        with pytest.raises(InvalidInput), tree.file(PurePosixPath(path), WRITE):
            pass
        assert not made.exists()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_has_gone_is_an_error_although_another_took_its_place(tree, replaced):
    shutil.rmtree(tree.root)
    if replaced:
        tree.root.mkdir()
    for path in (".", "docs", "docs/guide.md"):
        with pytest.raises(WorkFailed):
            tree.entries(PurePosixPath(path))


def test_nothing_stays_open(tree):
    def open_files() -> int:
        gc.collect()  # or what other tests left behind is closed while this one counts
        return len(list(Path("/proc/self/fd").iterdir()))

    (tree.root / "loop").symlink_to("loop")
    before = open_files()
    for path in ("docs/guide.md", "docs", "loop", "missing", "docs/../..", "docs/api/../guide.md"):
        with suppress(InvalidInput):
            tree.named(PurePosixPath(path))
        tree.entries(PurePosixPath("docs"))
    assert open_files() == before


def test_a_folder_is_listed_whole_while_another_process_lists_it(tree):
    """Forked processes share the root's descriptor, and with it how far it was read."""
    with tree.folder(ROOT) as (fd, _), os.scandir(fd) as listing:
        next(listing)
        assert tree.entries(ROOT) == (Entry("docs", folder=True), Entry("read me.txt", folder=False))
