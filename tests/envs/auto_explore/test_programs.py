"""Programs: python and pip run by bubblewrap on the copy, and are refused where it is missing."""

from __future__ import annotations

import sys
import tempfile

import pytest
from bubblewrap import NEEDED, programs_work

from reflectrl.envs.auto_explore.sandbox import Limits, Sandbox, quote

needs_bubblewrap = pytest.mark.skipif(not programs_work(), reason=NEEDED)


@pytest.fixture
def shop(tmp_path, monkeypatch):
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    folder = tmp_path / "shop"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "prices.py").write_text("TEA = 3\n")
    (folder / "src" / "sell me.py").write_text("import sys, prices\nprint(sys.argv[1:], prices.TEA, __file__)\n")
    (folder / "fail.py").write_text("import sys\nprint('before')\nraise ValueError('no tea')\n")
    (folder / "README.md").write_text("tea")
    return folder


@pytest.fixture
def sandbox(shop):
    with Sandbox(shop, programs=True) as opened:
        yield opened


@pytest.mark.parametrize("command", ["python fail.py", "python -c 1", "pip list"])
def test_without_bubblewrap_a_sentence_names_the_package(sandbox, tmp_path, monkeypatch, command):
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    done = sandbox.run(command)
    assert done.failed
    assert "'bubblewrap'" in done.output


@needs_bubblewrap
def test_without_libseccomp_a_sentence_names_the_packages(sandbox, tmp_path, monkeypatch):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pyseccomp.py").write_text("raise RuntimeError('Unable to find libseccomp')")
    monkeypatch.syspath_prepend(tmp_path / "broken")
    monkeypatch.delitem(sys.modules, "pyseccomp", raising=False)
    done = sandbox.run("python -c 1")
    assert done.failed
    for fact in ("Unable to find libseccomp", "'libseccomp2'", "'pyseccomp'"):
        assert fact in done.output


def test_a_bubblewrap_that_does_not_work_is_quoted(sandbox, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    broken = tmp_path / "bin" / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: no namespaces for you'\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    done = sandbox.run("python -c 1")
    assert done.failed
    assert "'bwrap: no namespaces for you'" in done.output


@pytest.mark.parametrize(
    "command", ["python", "python -c", "python missing.py", "python src", "python /etc/passwd", "python -m this"]
)
def test_only_files_of_the_repository_are_run(sandbox, command):
    assert sandbox.run(command).failed


@needs_bubblewrap
def test_programs_run_in_the_working_directory_with_their_arguments_and_nothing_random(sandbox):
    sandbox.run("cd src")
    assert sandbox.run("python 'sell me.py' a 'b c'").output == "['a', 'b c'] 3 /repository/src/sell me.py\n"
    assert sandbox.run("python '/src/sell me.py' a 'b c'") == sandbox.run("python 'sell me.py' a 'b c'")
    code = "import os, tempfile; print(os.getcwd(), os.listdir('/tmp'), hash('tea')); tempfile.mkdtemp()"
    once, again = (sandbox.run(f"python -c {quote(code)}") for _ in range(2))
    assert once == again  # equal hashes, and a temporary folder that does not last
    assert once.output.startswith("/repository/src [] ")
    assert sandbox.run("pip --version").output.startswith("pip ")


@needs_bubblewrap
def test_a_failure_shows_output_error_and_code(sandbox):
    done = sandbox.run("python fail.py")
    assert done.failed
    assert done.output.startswith("before\nTraceback")
    assert done.output.endswith("ValueError: no tea\n(ended with code 1)")


@needs_bubblewrap
def test_what_a_program_changes_is_tracked_without_its_compiled_files(sandbox, shop):
    code = "import prices; open('/repository/new.txt', 'w').write('new'); import os; os.remove('/repository/README.md')"
    sandbox.run("cd src")
    assert not sandbox.run(f"python -c {quote(code)}").failed
    assert sandbox.changes() == {"README.md": None, "new.txt": b"new"}
    assert list(sandbox.root.rglob("__pycache__")) == []
    assert (shop / "README.md").read_text() == "tea"


@needs_bubblewrap
def test_a_program_of_a_view_does_not_write(sandbox):
    done = sandbox.view().run("""python -c "print(open('README.md').read()); open('README.md', 'w')" """)
    assert done.output.startswith("tea\nTraceback")
    assert "Read-only file system" in done.output
    assert sandbox.changes() == {}


@needs_bubblewrap
def test_output_is_cut_and_a_program_that_goes_on_printing_is_stopped(shop):
    with Sandbox(shop, programs=True, limits=Limits(output=100)) as sandbox:
        assert sandbox.run("""python -c "print('x' * 150)" """).output == "x" * 100 + "\n(cut after 100 characters)"
        done = sandbox.run("""python -c "while True: print('x' * 99)" """)
        assert done.failed
        assert done.output.endswith("(cut after 100 characters)\n(stopped: it printed more than 100 characters)")


@needs_bubblewrap
def test_what_programs_write_counts_with_what_echo_writes(shop):
    with Sandbox(shop, programs=True, limits=Limits(write_bytes=2_000_000)) as sandbox:
        code = "import time; open('a', 'wb').write(b'x' * 1_500_000); time.sleep(0.3)"
        assert not sandbox.run(f"python -c {quote(code)}").failed
        assert not sandbox.run("echo " + "x" * 60_000 + " > b").failed
        assert sandbox.run(f"python -c {quote(code)}").failed
