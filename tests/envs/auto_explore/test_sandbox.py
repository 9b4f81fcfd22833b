"""Sandbox: a private copy, commands that look like a shell's, views, changes, and a copy that never stays behind."""

from __future__ import annotations

import codecs
import gc
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.envs.auto_explore.files import readable_files
from reflectrl.envs.auto_explore.sandbox import Entry, Limits, Result, Sandbox
from reflectrl.envs.auto_explore.scratch import PREFIX, Scratch
from reflectrl.envs.auto_explore.tree import Tree, shown

pytestmark = pytest.mark.usefixtures("copies")


@pytest.fixture
def shop(tmp_path):
    folder = tmp_path / "shop"
    for path, text in {
        "README.md": "# shop\nsells\ntea\n",
        "people/leave/athens.md": "sick notes go to Wanda\n",
        "people/two words.md": "spaced\n",
        "people/it's.md": "quoted\n",
        ".env": "hidden",
        ".git/config": "hidden",
    }.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.fixture
def sandbox(shop):
    with Sandbox(shop) as opened:
        yield opened


@pytest.fixture
def open_files():
    """Counts the open files of this process; what other tests left behind is not closed meanwhile."""
    gc.disable()
    yield lambda: len(list(Path("/proc/self/fd").iterdir()))
    gc.enable()


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("ls", "people/\nREADME.md"),
        ("ls people", "leave/\nit's.md\ntwo words.md"),
        ("ls /people/leave", "athens.md"),
        ("cat README.md people/leave/athens.md", "# shop\nsells\ntea\nsick notes go to Wanda\n"),
        ("cat 'people/two words.md'", "spaced\n"),
        *(
            (f"cat {path}", "quoted\n")
            for path in ("people//it\\'s.md", "people/./it\\'s.md", "people/leave/../it\\'s.md")
        ),
        *((f"head {option} README.md", "# shop\nsells") for option in ("-n 2", "-n2", "-2")),
        ("head -n 0 README.md", ""),
        ("head README.md", "# shop\nsells\ntea\n"),
        ("tail -n 2 README.md", "sells\ntea"),
        ("tail -n 999999999 README.md", "# shop\nsells\ntea"),
        ("tail -n 0 README.md", ""),
        ("echo  several   words 'and  quoted'", "several words and  quoted"),
        ("echo 'a > b' \\> \">>\"", "a > b > >>"),
        ('echo * ? [a] $HOME ${PATH} ~ {a,b} !x #y "$(ls) `ls`"', "* ? [a] $HOME ${PATH} ~ {a,b} !x #y $(ls) `ls`"),
    ],
)
def test_commands_look_like_a_shell_s_that_expands_nothing(sandbox, command, output):
    assert sandbox.run(command) == Result(output)
    assert sandbox.changes() == {}


def test_a_session_moves_writes_and_names_files(sandbox):
    for command, result, cwd in (
        ("cd people/leave", Result(""), "people/leave"),
        ("cd ..", Result(""), "people"),
        ("echo one > new.md", Result(""), "people"),
        ("echo two>>/people/new.md", Result(""), "people"),
        ("cat new.md", Result("one\ntwo\n"), "people"),
        ("id leave/athens.md", Result("", ended=True, answer="people/leave/athens.md"), "people"),
        ("id 'two words.md'", Result("", ended=True, answer="people/two words.md"), "people"),
        ("cd", Result(""), "."),
        ("cd people", Result(""), "people"),
        ("cd /", Result(""), "."),
        ("echo x > people/new.md", Result(""), "."),
        ("cat people/new.md", Result("x\n"), "."),
        ("exit", Result("", ended=True), "."),
    ):
        assert (sandbox.run(command), str(sandbox.cwd)) == (result, cwd), command


@pytest.mark.parametrize(
    ("fact", "commands"),
    [
        ("''", [""]),
        ("'ls'", ["sl"]),
        ("'rm'", ["rm -rf /"]),
        ("'python'", ["python x.py"]),
        ("-n", ["head", "head -n README.md", "tail -n x README.md", "head -n -1 README.md", "tail a b"]),
        ("id", ["id", "id README.md people"]),
        ("people", ["id people"]),
        ("missing", ["id missing", "cd missing", "ls missing"]),
        ("exit", ["exit 1"]),
        ("cat", ["cat"]),
        ("quote", ["cat 'open"]),
        ("ls", ["ls a b"]),
        ("-la", ["ls -la"]),
        ("README.md", ["ls README.md", "cd README.md", "ls README.md/x"]),
        ("..", ["cd ..", "cd people/../.."]),
        ("echo", ["ls > x"]),
        (">", ["echo x >", "echo x > a b", "echo x > a > b"]),
        ("70,005", ["echo " + "x" * 70_000]),
        *((repr(sign), [f"ls{sign}ls"]) for sign in ";|&<`(\n"),
    ],
)
def test_a_wrong_command_is_answered_with_one_sentence(sandbox, fact, commands):
    for command in commands:
        result = sandbox.run(command)
        assert (result.failed, result.ended, result.answer) == (True, False, None)
        assert fact in result.output
        assert "\n" not in result.output
        assert "python" not in result.output or "python" in command  # nothing that cannot be run here is offered


# ---- output ----------------------------------------------------------------------------------------------------------


def test_long_output_is_cut_and_says_so(shop):
    (shop / "long.txt").write_text("€" * 5000 + "\nthe end\n", encoding="utf-8")
    (shop / "lines.txt").write_text("".join(f"{number}\n" for number in range(30)))
    with Sandbox(shop, limits=Limits(output=50)) as sandbox:
        for command in ("cat long.txt", "head long.txt", "echo " + "€" * 51):
            assert sandbox.run(command).output == "€" * 50 + "\n(cut after 50 characters)"
        assert sandbox.run("echo " + "€" * 50).output == "€" * 50
        assert sandbox.run("tail long.txt").output == "€" * 42 + "\nthe end\n(only the last 50 characters)"
        assert sandbox.run("tail -n 1 long.txt").output == "the end"
        assert sandbox.run("head lines.txt").output.split() == [str(number) for number in range(10)]
        assert sandbox.run("tail lines.txt").output.split() == [str(number) for number in range(20, 30)]


@pytest.mark.parametrize("content", [b"a\0b", b"caf\xe9", b"x" * 100 + b"\xc3"])
def test_binary_files_are_named_and_not_shown(shop, content):
    (shop / "data").write_bytes(content)
    with Sandbox(shop) as sandbox:
        for command in ("cat data", "head data", "tail data"):
            assert sandbox.run(command).output.strip() == f"data is binary, {len(content)} bytes"


def test_output_has_no_control_characters_but_newline_and_tab_and_whole_letters(shop):
    (shop / "ansi.txt").write_bytes(b"\x1b[31mred\x1b[0m\ttab\r\nbell\x07 \xc2\x9b2J back\x08\x7f")
    (shop / "empty").touch()
    (shop / "border").write_bytes(b"x" * 8191 + "é".encode() * 10)  # where binary content is no longer looked for
    with Sandbox(shop, limits=Limits(output=20_000)) as sandbox:
        assert sandbox.run("cat ansi.txt").output == "�[31mred�[0m\ttab\nbell� �2J back��"
        assert sandbox.run("echo '\x1b[2J\udcff'").output == "�[2J�"
        assert sandbox.run("cat empty") == sandbox.run("tail empty") == Result("")
        assert sandbox.run("cat border").output == "x" * 8191 + "é" * 10


# ---- entries and views -----------------------------------------------------------------------------------------------


def test_entries_are_those_of_the_working_directory(shop):
    for name in ("B", "日本語"):
        (shop / name).mkdir()
    (shop / "to_folder").symlink_to("people")
    (shop / "to_file").symlink_to("people/../README.md")
    with Sandbox(shop) as sandbox:
        folders = [Entry(name, folder=True) for name in ("B", "people", "to_folder", "日本語")]
        assert sandbox.entries() == (*folders, Entry("README.md", False), Entry("to_file", False))
        sandbox.run("cd to_folder/leave")
        assert (str(sandbox.cwd), sandbox.entries()) == ("people/leave", (Entry("athens.md", False),))
        shutil.rmtree(sandbox.root / "people")
        with pytest.raises(InvalidInput, match="people/leave"):
            sandbox.entries()


def test_views_share_files_for_reading_and_not_the_working_directory(sandbox):
    sandbox.run("cd people")
    with sandbox.view() as first:
        second = sandbox.view()
        first.run("cd people/leave")
        assert [str(one.cwd) for one in (sandbox, first, second)] == ["people", "people/leave", "."]
        sandbox.run("echo shared > /new")
        assert second.run("cat new").output == "shared\n"
        assert first.run("echo x > athens.md").failed
        assert first.run("echo x >> /README.md").failed
    assert sandbox.changes() == {"new": b"shared\n"}
    assert not first.run("cat /README.md").failed  # a view does not close the copy
    sandbox.close()
    sandbox.close()
    for one in (sandbox, first):
        for use in (lambda one=one: one.run("ls"), one.entries, one.view, one.changes):
            with pytest.raises(WorkFailed):
                use()


def test_what_is_missing_among_others_is_a_sentence_beside_them(sandbox):
    partly = sandbox.run("cat missing README.md")
    assert partly.failed
    assert partly.output.startswith("missing ")
    assert partly.output.endswith("\n# shop\nsells\ntea\n")


# ---- changes ---------------------------------------------------------------------------------------------------------


def test_changes_are_new_changed_and_removed_files_since_the_copy_was_made(shop, sandbox):
    (shop / "README.md").write_text("changed since")
    (sandbox.root / "link").symlink_to("README.md")
    (sandbox.root / ".hidden").touch()
    os.mkfifo(sandbox.root / "fifo")
    assert sandbox.changes() == {}
    before = (sandbox.root / "people/it's.md").stat()
    sandbox.run("echo QUOTED > people/it\\'s.md")  # of equal size and time
    os.utime(sandbox.root / "people/it's.md", ns=(before.st_atime_ns, before.st_mtime_ns))
    sandbox.run("echo new > people/new.md")
    sandbox.run("echo more >> README.md")
    (sandbox.root / "people/two words.md").unlink()
    assert list(sandbox.changes().items()) == [
        ("README.md", b"# shop\nsells\ntea\nmore\n"),
        ("people/it's.md", b"QUOTED\n"),
        ("people/new.md", b"new\n"),
        ("people/two words.md", None),
    ]
    sandbox.run("echo quoted > people/it\\'s.md")
    assert "people/it's.md" not in sandbox.changes()
    assert (shop / "people/it's.md").read_text() == "quoted\n"


def test_changes_and_writing_are_limited_in_all(shop):
    with Sandbox(shop, limits=Limits(write_bytes=10, changed_bytes=10_000)) as sandbox:
        assert not sandbox.run("echo 1234 > a").failed
        assert not sandbox.run("echo 678 >> a").failed
        assert sandbox.run("echo 1 > b").failed
        assert sandbox.changes() == {"a": b"1234\n678\n"}
        with (sandbox.root / "sparse").open("wb") as file:
            file.truncate(10_000)
        with pytest.raises(WorkFailed, match="10,000"):
            sandbox.changes()
    (shop / "large").write_bytes(b"x" * 10_001)
    with Sandbox(shop, limits=Limits(changed_bytes=10_000)) as sandbox:
        assert sandbox.changes() == {}
        (sandbox.root / "large").unlink()  # a diff would read what it was
        with pytest.raises(WorkFailed, match="10,000"):
            sandbox.changes()


def test_what_changes_do_not_hold_is_named_by_kind(shop):
    (shop / "link").symlink_to("README.md")
    (shop / "removed").symlink_to("README.md")
    (shop / "tool").touch(0o700)
    with Sandbox(shop) as sandbox:
        root = sandbox.root
        assert sandbox.left_out() == ()
        for name in ("a", "b", "c", "d", ".hidden", "new\nline", "first"):
            (root / name).touch()
        for number in range(4):
            (root / f"link{number}").symlink_to("README.md")
        os.link(root / "first", root / "second")
        os.mkfifo(root / "pipe")
        (root / "removed").unlink()
        (root / "people/it's.md").unlink()
        (root / "people/it's.md").symlink_to("two words.md")
        (root / "people/two words.md").unlink()
        os.mkfifo(root / "people/two words.md")
        (root / "people/leave").rename(root / "people/left")
        (root / "people/leave").symlink_to("left")
        for name, mode in {"a": 0o700, "tool": 0o600, "README.md": 0o640}.items():
            (root / name).chmod(mode)
        (root / "/".join(["f"] * 101)).mkdir(parents=True)
        assert sorted(sandbox.left_out()) == [
            "files with further names (hard links): first, second",
            f"folders deeper than 100: {shown('/'.join(['f'] * 101))}",
            "hidden names: .hidden",
            "links that were added, changed or removed: link0, link1, link2 and 2 more",
            "links, pipes and sockets in the place of files, which stay: "
            "people/it's.md, people/leave, people/two words.md",
            "names that are not printable: 'new\\nline'",
            "permission to execute, given or taken: a, tool",
            "pipes and sockets: pipe",
        ]
        kept = {"people/left/athens.md": b"sick notes go to Wanda\n", **dict.fromkeys("abcd", b"")}
        assert sandbox.changes() == kept  # and no file is taken for a removed one


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(sandbox):
    (sandbox.root / "closed").mkdir(0)
    (sandbox.root / "file").touch(0)
    assert sandbox.left_out() == ("what may not be read: closed, file",)


# ---- the copy --------------------------------------------------------------------------------------------------------


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
