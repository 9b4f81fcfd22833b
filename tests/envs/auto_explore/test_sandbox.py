"""Sandbox: commands that look like a shell's in a private copy, views and changes."""

from __future__ import annotations

import os
import shutil

import pytest

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.envs.auto_explore.sandbox import Entry, Limits, Result, Sandbox
from reflectrl.envs.auto_explore.tree import shown

pytestmark = pytest.mark.usefixtures("copies")


@pytest.fixture
def sandbox(shop):
    with Sandbox(shop) as opened:
        yield opened


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
