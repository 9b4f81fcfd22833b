"""Every known way out of a sandbox by paths, links and races: nothing outside is read or written."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from sandbox_world import TOKEN

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.envs.auto_explore.sandbox import Entry, Sandbox

pytestmark = pytest.mark.usefixtures("deadline")


@pytest.fixture
def trapped(world, monkeypatch):
    """A world with traps in the copy itself, as a program or a race would lay them: a copy takes none over."""
    world.open()
    root = world.sandbox.root
    monkeypatch.chdir(root)  # the path of a socket is short
    for name, target in {
        "out_file": f"{world.outside}/secret.txt",
        "out_folder": world.up,
        "chain0": "chain1",
        "chain1": "src/../chain2",
        "chain2": f"{world.up}/secret.txt",
        "src/up": "../..",
        "above": "..",
        "loop": "loop",
        "ping": "pong",
        "pong": "ping",
        "etc": "/etc",
        "system": "/proc/self/root",
        "myself": "/proc/self/cwd",
        "to_hidden": ".env",
        "dangling": f"{world.up}/made.txt",
        "absolute_inside": f"{root}/a.txt",
    }.items():
        (root / name).symlink_to(target)
    (root / ".env").write_text(TOKEN)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text(TOKEN)
    os.link(world.outside / "secret.txt", root / "hard")
    os.mkfifo(root / "fifo")
    (root / "ansi.txt").write_text("\x1b]0;title\x07\x1b[2J\x1b[8mhidden\r\n\x9b31m")
    for name in ("\x1b[31mred", "\udcff\udcfe", "line\nbreak"):
        (root / name).write_text("x")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    if os.geteuid() == 0:
        os.mknod("zero", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    else:
        (root / "zero").symlink_to("/dev/zero")
    return world


PLAIN = r"""
{up} {up}/secret.txt {up}/new.txt src/../{up}/secret.txt missing/../../{up}/secret.txt '{up}/secret.txt' \.\./{up}
.. /../{up}/secret.txt {outside} {outside}/secret.txt '{outside}/secret.txt /etc/passwd //etc/passwd ///etc//passwd
/proc/self/root/etc/passwd /proc/self/environ /dev/zero /dev/stdin /tmp/x ~/.ssh/id_rsa ~root/.bashrc {up}/*
$HOME/../{up}/secret.txt %2e%2e/%2e%2e/etc/passwd ．．/secret.txt '..\..\etc\passwd' file:///etc/passwd
out_file out_folder out_folder/secret.txt out_folder/new.txt src/../out_file src/up chain0 loop ping above
above/secret.txt above/copy/a.txt etc/passwd system/etc/passwd myself to_hidden dangling absolute_inside hard
fifo socket zero .env src/../.env .git .git/config src/.profile
"""
"""Parents, absolute paths and what other programs expand; links; what is not a file, and hidden files."""
PATHS = [
    *PLAIN.split(),
    *("../" * 60 + "etc/passwd", "src/../" * 700 + "{up}/secret.txt", "x/" * 2500 + "a.txt", "x" * 256, "日" * 86),
    *("'{up}/secret.txt\0.txt'", "a.txt\0{up}/secret.txt", "\udcff\udcfe", "\udcff\udcfe/../{up}/secret.txt"),
    *("'\x1b[31mred'", "'line\nbreak'"),
]


@pytest.mark.parametrize("verb", ["cat", "head -n 1", "tail", "id", "cd", "ls", "echo written >", "echo written >>"])
def test_no_path_leads_out(trapped, verb):
    before = trapped.sandbox.changes()
    for path in PATHS:
        result = trapped.run(f"{verb} {path}")
        assert (result.failed, result.ended, result.answer) == (True, False, None), path
        assert trapped.sandbox.cwd == PurePosixPath("."), path
    assert trapped.sandbox.changes() == before


SHELL = r"""
cat${IFS}{outside}/secret.txt
cat 'a.txt;cat {outside}/secret.txt'
sh -c 'cat {outside}/secret.txt'
python -c 'print(open("{outside}/secret.txt").read())'
/bin/cat {outside}/secret.txt
cat `echo {outside}/secret.txt`
echo x > a > {outside}/x
echo x | tee {outside}/x
"""
NO_FILES = ("", "''", "src", "/", ".", "missing/x", "'a\nb'", "'\x1b[2J'", "'a\0b'")


def test_shell_syntax_and_names_of_no_file_are_refused(trapped):
    before = trapped.sandbox.changes()
    commands = SHELL.strip().splitlines()
    for command in (*commands, "ls\ncat {outside}/secret.txt", "cd -", *(f"echo x > {name}" for name in NO_FILES)):
        assert trapped.run(command).failed, command
    assert trapped.sandbox.changes() == before


def test_the_traps_lead_out_but_none_is_listed(trapped):
    root = trapped.sandbox.root
    for path in (f"{trapped.up}/secret.txt", "out_file", "out_folder/secret.txt", "chain0", "hard", "to_hidden"):
        assert (root / path).read_text() == TOKEN
    files = {Entry("a.txt", False), Entry("ansi.txt", False), Entry("hard", False), Entry("src", True)}
    assert set(trapped.sandbox.entries()) == files
    assert trapped.run("ls").output == "src/\na.txt\nansi.txt\nhard"
    assert trapped.run("ls src").output == "b.txt"
    ansi = trapped.run("cat ansi.txt").output  # codes for terminals are shown and not obeyed
    assert "title" in ansi
    assert {"\x1b", "\x9b"}.isdisjoint(ansi)


# ---- races -----------------------------------------------------------------------------------------------------------


@contextmanager
def moving(place: Path, *others: Path) -> Iterator[None]:
    """Let ``place`` be each of ``others`` in turns."""
    stop = threading.Event()

    def move() -> None:
        while not stop.is_set():
            for one in others:
                one.rename(place)
                place.rename(one)

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["cat place/f.txt", "echo x > place/f.txt", "cat f.txt", "cat place/../f.txt"])
def test_a_race_does_not_lead_out(world, command):
    world.open()
    root = world.sandbox.root
    (root / "folder").mkdir()
    (root / "folder" / "f.txt").write_text("inside")
    (root / "file").write_text("inside")
    (root / "link").symlink_to(world.outside)
    (root / "file_link").symlink_to(world.outside / "secret.txt")
    if "place" not in command:
        race = moving(root / "f.txt", root / "file", root / "file_link")
    elif ".." in command:  # what is moved out is not followed up, to a folder where f.txt is
        (root / "f.txt").write_text("inside")
        race = moving(world.folder / "copies" / "out", root / "place")
        (root / "folder").rename(root / "place")
        (world.folder / "copies" / "f.txt").write_text(TOKEN)
    else:
        race = moving(root / "place", root / "folder", root / "link")
    begun, failed = time.monotonic(), set()
    with race:
        while (took := time.monotonic() - begun) < 0.4 or (len(failed) < 2 and took < 30):
            failed.add(world.run(command).failed)
    (world.folder / "copies" / "f.txt").unlink(missing_ok=True)
    assert failed == {True, False}, "the race never took place"


# ---- large things ----------------------------------------------------------------------------------------------------


def test_what_is_huge_is_neither_read_nor_copied_nor_listed_whole(world):
    with (world.repository / "huge").open("wb") as file:
        file.truncate(10 * 1024**3)
    with pytest.raises(InvalidInput, match="10,737,418,240"):
        Sandbox(world.repository)
    (world.repository / "huge").unlink()
    world.open()
    root = world.sandbox.root
    with (root / "huge").open("wb") as file:
        file.write(b"text\n" * 10_000)
        file.truncate(10 * 1024**3)
    assert world.run("cat huge").output.startswith("text\ntext\n")
    assert world.run("head -n 1 huge").output == "text"
    world.run("tail huge")
    with pytest.raises(WorkFailed):
        world.sandbox.changes()
    (root / "many").mkdir()
    for number in range(1000):
        (root / "many" / f"file{number:03d}").touch()
    world.run("cd many")
    assert len(world.sandbox.entries()) == 1000
    assert world.run("ls").output.endswith("(cut after 4,000 characters)")
