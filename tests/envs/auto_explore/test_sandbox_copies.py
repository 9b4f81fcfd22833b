"""Copies of a sandbox: what they hold, and that none stays behind, even after a kill."""

from __future__ import annotations

import codecs
import gc
import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest

from reflectrl.core import InvalidInput
from reflectrl.envs.auto_explore.files import readable_files
from reflectrl.envs.auto_explore.sandbox import Entry, Limits, Sandbox
from reflectrl.envs.auto_explore.scratch import PREFIX, Scratch
from reflectrl.envs.auto_explore.tree import Tree

pytestmark = pytest.mark.usefixtures("copies")


TARGETS = {"inside": "README.md", "folder": "people/leave", "through": "people/../README.md", "second": "inside"}
LOST = {"absolute": "/README.md", "outside": "../copies", "chain": "outside", "broken": "missing", "hidden": ".env"}


def test_a_copy_holds_readable_files_and_links_that_stay_inside(shop, monkeypatch):
    os.mkfifo(shop / "fifo")
    os.link(shop / "README.md", shop / "again.md")
    (shop / "tool.py").touch(0o555)
    monkeypatch.chdir(shop)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    for name in ("line\nbreak", "\udcff", ".hidden"):
        (shop / name).touch()
    for name, target in {**TARGETS, **LOST, "loop": "loop"}.items():
        (shop / name).symlink_to(target)
    with Sandbox(shop) as sandbox:
        files = {"README.md", "again.md", "people", "tool.py"}
        assert {path.name for path in sandbox.root.iterdir()} == {*files, *TARGETS}
        assert sandbox.run("cat folder/athens.md").output == "sick notes go to Wanda\n"
        assert sandbox.run("id folder/../leave/athens.md").answer == "people/leave/athens.md"
        # hard links become files of their own, read-only files can be written and run
        assert (sandbox.root / "tool.py").stat().st_mode & 0o777 == 0o700
        assert not sandbox.run("echo x > tool.py").failed
        assert not sandbox.run("echo x > again.md").failed
        assert not sandbox.run("echo y > second").failed
        assert sandbox.run("cat README.md").output == "y\n"


def test_unreadable_files_and_the_copies_themselves_are_left_out():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        for name in ("closed", "copies"):
            (root / name).mkdir()
        (root / "readable").write_text("text")
        (root / "unreadable").touch(0o000)
        (root / "closed").chmod(0o000)
        for path in (root, root / "copies"):
            path.chmod(0o777)
        tempfile.tempdir = str(root / "copies")
        codecs.lookup("utf-8-sig")  # while Python's own files may be read
        former = os.geteuid()
        if former == 0:
            os.seteuid(65534)  # root may read everything
        try:
            with Sandbox(root) as sandbox:
                assert [entry.name for entry in sandbox.entries()] == ["copies", "readable"]
                sandbox.run("cd copies")
                assert sandbox.entries() == ()
            files = readable_files(root)
        finally:
            os.seteuid(former)
            (root / "closed").chmod(0o700)
    assert (files.readable, files.skipped) == ((("readable", "text"),), {"unreadable": 2})


def test_holes_in_files_take_no_space_in_the_copy(shop):
    with (shop / "sparse").open("wb") as file:
        file.seek(20 << 20)
        file.write(b"end")
        file.truncate(30 << 20)
    with Sandbox(shop) as sandbox:
        copied = sandbox.root / "sparse"
        assert copied.stat().st_size == 30 << 20
        assert copied.stat().st_blocks * 512 < 5 << 20
        assert copied.read_bytes() == (shop / "sparse").read_bytes()
        assert sandbox.changes() == {}


def test_what_is_no_repository_or_too_large_is_refused_and_leaves_nothing(tmp_path, shop, copies):
    for place in (tmp_path / "missing", shop / "README.md"):
        with pytest.raises(InvalidInput, match=place.name):
            Sandbox(place)
    for limits, fact in ((Limits(copy_files=4), "copy_files"), (Limits(copy_bytes=20), "copy_bytes")):
        with pytest.raises(InvalidInput, match=fact):
            Sandbox(shop, limits=limits)
    with pytest.raises(InvalidInput, match="output=0"):
        Limits(output=0)
    with pytest.raises(ZeroDivisionError), Sandbox(shop):
        len(list(copies.iterdir())) / 0
    assert list(copies.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with Sandbox(tmp_path / "empty") as sandbox:
        assert (sandbox.entries(), sandbox.changes()) == ((), {})
        assert not sandbox.run("ls").failed


def test_folders_without_number_that_were_made_later_are_removed_too(shop, copies):
    with Sandbox(shop) as sandbox:
        fd = os.open(sandbox.root, os.O_RDONLY)
        for _ in range(1100):  # deeper than Python recurses, and longer than a path may be
            os.mkdir("deep", dir_fd=fd)
            inner = os.open("deep", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = inner
        os.close(fd)
        assert sandbox.changes() == {}
        assert [line.split(":")[0] for line in sandbox.left_out()] == ["folders deeper than 100"]
        (sandbox.root / "1").mkdir()
        (sandbox.root / "1" / "file").touch()
        (sandbox.root / "people").chmod(0o000)
        sandbox.root.chmod(0o000)
    assert list(copies.iterdir()) == []


# ---- nothing stays behind --------------------------------------------------------------------------------------------


def test_a_copy_goes_with_its_last_user(shop, copies):
    view = Sandbox(shop).view()
    assert not view.run("ls").failed  # the owner has gone out of scope, the copy has not
    del view
    gc.collect()
    assert list(copies.iterdir()) == []


# ---- not even after a SIGKILL ----------------------------------------------------------------------------------------

HOLDER = """
import os, sys
from pathlib import Path
from reflectrl.envs.auto_explore.sandbox import Sandbox
sandbox = Sandbox(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    sys.exit(0)  # runs what a process does at its end, as its parent will
os.waitpid(child, 0)
print(sandbox.root, flush=True)
input()
raise RuntimeError("the end")
"""


@pytest.fixture
def holder(shop, copies):
    """A program with a sandbox, and its root."""
    env = {**os.environ, "TMPDIR": str(copies)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(shop)], stdin=-1, stdout=-1, stderr=-1, text=True, env=env
    ) as held:
        yield held, Path(held.stdout.readline().strip())
        held.kill()


def test_a_copy_goes_with_the_interpreter_and_not_with_a_forked_child(copies, holder):
    program, root = holder
    assert (root / "README.md").exists()
    _, said = program.communicate("\n")
    assert said.endswith("RuntimeError: the end\n")
    assert list(copies.iterdir()) == []


def test_the_copy_of_a_killed_program_is_removed_later(shop, copies, holder):
    program, root = holder
    (root / "people" / "leave").chmod(0o000)
    with Sandbox(shop) as sandbox:
        assert {sandbox.root.parent, root.parent} == set(copies.iterdir())
    program.kill()
    program.wait()
    assert list(copies.iterdir()) == [root.parent]
    with Sandbox(shop) as sandbox:
        assert list(copies.iterdir()) == [sandbox.root.parent]


def test_a_removal_that_was_killed_is_finished(shop, copies):
    left = copies / f"{PREFIX}left"
    for folder in (".1/deep", ".3/deep/deeper", ".12", "copy/deep"):
        (left / folder).mkdir(parents=True)
        (left / folder / "file").touch()
    with Sandbox(shop):
        assert not left.exists()


def test_what_others_may_have_made_is_left_alone(shop, copies):
    elsewhere, theirs = copies.parent / "elsewhere", copies / f"{PREFIX}theirs"
    for folder in (elsewhere, copies / "reflectrl-abc", copies / PREFIX.rstrip("-"), theirs):
        folder.mkdir()
        (folder / "kept").touch()
    (copies / f"{PREFIX}file").touch()
    (copies / f"{PREFIX}link").symlink_to(elsewhere)
    if os.geteuid() == 0:
        os.chown(theirs, 65534, 65534)
    before = {*copies.rglob("*"), *elsewhere.iterdir()}
    with Sandbox(shop):
        pass
    gone = {theirs, theirs / "kept"} if os.geteuid() != 0 else set()
    assert {*copies.rglob("*"), *elsewhere.iterdir()} == before - gone


def test_many_may_start_at_once(open_files):
    def use(_):
        scratch = Scratch()
        (scratch.folder / "file").write_text("mine")
        read = (scratch.folder / "file").read_text()
        scratch.close()
        return read

    before = open_files()
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(use, range(200))) == {"mine"}
    assert open_files() == before


# ---- the tree of files -----------------------------------------------------------------------------------------------


@pytest.fixture
def tree(shop):
    return Tree(shop)


def test_nothing_stays_open(tree, open_files):
    (tree.root / "loop").symlink_to("loop")
    before = open_files()
    for path in ("README.md", "people", "loop", "missing", "people/../..", "people/leave/../it's.md"):
        with suppress(InvalidInput):
            tree.named(PurePosixPath(path))
        tree.entries(PurePosixPath("people"))
    assert open_files() == before


def test_a_folder_is_listed_whole_while_another_process_lists_it(tree):
    """Forked processes share the root's descriptor, and with it how far it was read."""
    with tree.folder(PurePosixPath(".")) as (fd, _), os.scandir(fd) as listing:
        next(listing)
        assert tree.entries(PurePosixPath(".")) == (Entry("people", folder=True), Entry("README.md", folder=False))
