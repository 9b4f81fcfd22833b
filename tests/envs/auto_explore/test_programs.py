"""Programs: python and pip run by bubblewrap on the copy, and are refused where it is missing; edits and diffs."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from bubblewrap import NEEDED, programs_work

from reflectrl.core import InvalidInput
from reflectrl.envs.auto_explore.commands import FORM, apply_edits
from reflectrl.envs.auto_explore.sandbox import Limits, Sandbox
from reflectrl.envs.auto_explore.writeback import diff

pytestmark = pytest.mark.usefixtures("copies")
needs_bubblewrap = pytest.mark.skipif(not programs_work(), reason=NEEDED)


@pytest.fixture
def sandbox(tmp_path):
    folder = tmp_path / "shop"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "prices.py").write_text("TEA = 3\n")
    (folder / "src" / "sell me.py").write_text("import sys, prices\nprint(sys.argv[1:], prices.TEA, __file__)\n")
    (folder / "README.md").write_text("tea")
    with Sandbox(folder, programs=True, limits=Limits(output=300, write_bytes=2_000_000)) as opened:
        yield opened
    assert (folder / "README.md").read_text() == "tea"


def python(sandbox, code):
    return sandbox.run(f"python -c {shlex.quote(code)}")


@pytest.mark.parametrize(
    ("bubblewrap", "facts"),
    [
        (None, ["'bubblewrap'"]),
        ("#!/bin/sh\necho 'bwrap: no namespaces for you'\nexit 1\n", ["'bwrap: no namespaces for you'"]),
    ],
)
def test_without_a_working_bubblewrap_a_sentence_says_so(sandbox, tmp_path, monkeypatch, bubblewrap, facts):
    (tmp_path / "bin").mkdir()
    if bubblewrap is not None:
        (tmp_path / "bin" / "bwrap").write_text(bubblewrap)
        (tmp_path / "bin" / "bwrap").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for command in ("python src/prices.py", "python -c 1", "pip list"):
        done = sandbox.run(command)
        assert done.failed
        assert all(fact in done.output for fact in facts)


@needs_bubblewrap
def test_without_libseccomp_a_sentence_names_the_packages(sandbox, tmp_path, monkeypatch):
    (tmp_path / "pyseccomp.py").write_text("raise RuntimeError('Unable to find libseccomp')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pyseccomp", raising=False)
    done = sandbox.run("python -c 1")
    assert done.failed
    for fact in ("Unable to find libseccomp", "'libseccomp2'", "'pyseccomp'"):
        assert fact in done.output


def test_only_files_of_the_repository_are_run(sandbox):
    for command in ("python", "python -c", "python missing.py", "python src", "python /etc/passwd", "python -m this"):
        assert sandbox.run(command).failed


@pytest.mark.slow
@needs_bubblewrap
def test_programs_run_in_the_working_directory_with_their_arguments_and_nothing_random(sandbox):
    sandbox.run("cd src")
    assert sandbox.run("python 'sell me.py' a 'b c'").output == "['a', 'b c'] 3 /repository/src/sell me.py\n"
    assert sandbox.run("python '/src/sell me.py' a 'b c'") == sandbox.run("python 'sell me.py' a 'b c'")
    code = "import os, tempfile; print(os.getcwd(), os.listdir('/tmp'), hash('tea')); tempfile.mkdtemp()"
    once, again = (python(sandbox, code) for _ in range(2))
    assert once == again  # equal hashes, and a temporary folder that does not last
    assert once.output.startswith("/repository/src [] ")
    assert sandbox.run("pip --version").output.startswith("pip ")


@needs_bubblewrap
def test_a_failure_shows_output_error_and_code_and_output_is_cut(sandbox):
    done = python(sandbox, "print('before'); raise ValueError('no tea')")
    assert done.failed
    assert done.output.startswith("before\nTraceback")
    assert done.output.endswith("ValueError: no tea\n(ended with code 1)")
    assert python(sandbox, "print('x' * 400)").output == "x" * 300 + "\n(cut after 300 characters)"
    done = python(sandbox, "while True: print('x' * 99)")
    assert done.failed
    assert done.output.endswith("(cut after 300 characters)\n(stopped: it printed more than 300 characters)")


@needs_bubblewrap
def test_changes_of_a_program_are_tracked(sandbox):
    code = "import prices, os; open('/repository/new.txt', 'w').write('new'); os.remove('/repository/README.md')"
    sandbox.run("cd src")
    for reader in (sandbox.view(), sandbox):
        assert python(reader, f"import sys; sys.path.append('src'); {code}").failed == (reader is not sandbox)
        assert sandbox.changes() == ({"README.md": None, "new.txt": b"new"} if reader is sandbox else {})
    assert list(sandbox.root.rglob("__pycache__")) == []


@needs_bubblewrap
def test_what_programs_write_counts_with_what_echo_writes(sandbox):
    code = "import time; open('a', 'wb').write(b'x' * 1_500_000); time.sleep(0.3)"
    assert not python(sandbox, code).failed
    assert not sandbox.run("echo " + "x" * 60_000 + " > b").failed
    assert python(sandbox, code).failed


# ---- edits and diffs -------------------------------------------------------------------------------------------------


def block(old: str, new: str) -> str:
    return f"<<<<<<< OLD\n{old}=======\n{new}>>>>>>> NEW\n"


@pytest.mark.parametrize(
    ("text", "blocks", "edited"),
    [
        ("a\nb\nc\n", block("b\n", ""), "a\nc\n"),
        ("a\nb\nc\n", block("a\n", "x\ny\n") + block("c\n", "3\n"), "x\ny\nb\n3\n"),
        ("b b\nb", block("b\n", "B\n"), "b b\nB"),
        ("  a\n", block("  a\n", "    a\n").rstrip("\n"), "    a\n"),
        ("lines that stand there once\n", FORM, "lines to stand there instead\n"),  # the form that is shown
    ],
)
def test_lines_are_replaced(text: str, blocks: str, edited: str) -> None:
    assert apply_edits(text, blocks) == edited


@pytest.mark.parametrize(
    ("text", "blocks", "fact"),
    [
        ("a\n", block("b\n", "c\n"), "block 1 stand 0 times"),
        ("a\na\n", block("a\n", "c\n"), "block 1 stand 2 times"),
        ("xa\n", block("a\n", "c\n"), "block 1 stand 0 times"),
        ("a\n", block("", "c\n"), "block 1 stand 0 times"),
        ("a\n", block("a\n", "b\n") + block("a\n", "c\n"), "block 2 stand 0 times"),
        *(("a\n", odd, FORM) for odd in ("", f"please\n{block('a', 'b')}", "<<<<<<< OLD\na\n>>>>>>> NEW\n")),
    ],
)
def test_edits_that_do_not_fit_are_refused(text: str, blocks: str, fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact):
        apply_edits(text, blocks)


def test_a_diff_shows_what_was_added_changed_and_removed() -> None:
    before = {"a": b"1\n2", "b": None, "c": b"x\n", "d": b"\xff", "e": None}
    after = {"a": b"1\n3", "b": b"new\n", "c": None, "d": b"\xfe\xff", "e": b""}
    assert "\n".join(diff(before, after)) == (
        "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n 1\n-2\n\\ No newline at end of file\n+3\n\\ No newline at end of file\n"
        "--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+new\n"
        "--- a/c\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "Binary file d: 1 bytes before, 2 now\n"
        "Empty file e added"
    )


def applied(before: dict[str, bytes], lines: list[str], folder: Path) -> dict[str, bytes]:
    """Return the files after git has applied a diff to them."""
    folder.mkdir()
    for name, content in before.items():
        (folder / name).write_bytes(content)
    patch = "".join(f"{line}\n" for line in lines)
    subprocess.run(["git", "apply", "--unidiff-zero", "-"], cwd=folder, input=patch.encode(), check=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("pairs", [0, 2_000_000])
def test_git_understands_a_diff_whatever_was_changed(tmp_path: Path, pairs: int) -> None:
    random = Random(0)
    before, after = {}, {}
    for name in map(str, range(30)):
        ends = ("\n", "\f\n", "\u2028\n", "\r\n")  # git ends lines at newlines only
        lines = [f"{random.randrange(9)}{random.choice(ends)}" for _ in range(random.randrange(60))]
        before[name] = "".join(lines).encode()
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(len(lines) + 1)
            lines[at : at + random.randrange(9)] = [f"new {random.random()}\n"] * random.randrange(1, 9)
        after[name] = "".join(lines).encode().removesuffix(random.choice([b"", b"\n"]))
    lines = list(diff(before, after, Limits(diff_pairs=pairs or 1)))
    assert applied(before, lines, tmp_path / "files") == after


def test_small_and_large_changes_of_a_long_file() -> None:
    lines = [f"{number}\n" for number in range(500_000)]
    changed = "".join([*lines[:400_000], "new\n", *lines[400_000:]])
    assert list(diff({"a": "".join(lines).encode()}, {"a": changed.encode()}, Limits(diff_bytes=10**8))) == [
        *("--- a/a", "+++ b/a", "@@ -399998,6 +399998,7 @@"),
        *(" 399997", " 399998", " 399999", "+new", " 400000", " 400001", " 400002"),
    ]
    # Equal lines at every second place: matching them takes time that grows with their cube.
    old, new = ("".join(f"{n % 99}\n{side} {n}\n" for n in range(4000)).encode() for side in ("old", "new"))
    shown = list(diff({"a": old}, {"a": new}))
    assert [shown[2], len(shown)] == ["@@ -1,8000 +1,8000 @@", 3 + 16_000]


def test_a_diff_names_what_is_too_large() -> None:
    after = {"a": b"x" * 30, "b": b"1\n" * 9, "c": b"1\n" * 4, "d": b"2\n", "e": b"3\n", "f": b"4\n"}
    limits = Limits(diff_bytes=25, diff_lines=8)
    assert list(diff(dict.fromkeys(after), after, limits)) == [
        "Large file a: 0 bytes before, 30 now",
        "Large change of b: 0 bytes before, 18 now",
        *("--- /dev/null", "+++ b/c", "@@ -0,0 +1,4 @@", "+1", "+1", "+1", "+1"),
        "Large change of d: 0 bytes before, 2 now",
        "Further files are not shown: 2",
    ]
