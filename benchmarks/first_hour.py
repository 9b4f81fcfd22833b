"""Follow the README to the letter, from a clone to a watched run of an environment of one's own, and time it.

    python benchmarks/first_hour.py

Makes an empty folder, clones this repository into it, and does what the section "Your own environment" says: writes
its class to the file that it names, runs its commands, and has the page of ``watch`` show the run while it trains. What
is not committed is not cloned. Prints the commands with their minutes, of which pip's depend on the network.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from arms import HERE, table

README = HERE.parent / "README.md"
ELSEWHERE = "# in another terminal"
"""Begins the comment of a command that is given while the one before it works."""
PAGE = "http://127.0.0.1:8090"
WAIT_S = 1200.0
"""Time in which a run has to begin, and in which the page has to show it."""


@dataclass(frozen=True)
class Section:
    """What a reader does who follows the section."""

    file: str
    code: str
    commands: tuple[str, ...]
    elsewhere: str
    """Command for another terminal."""
    run: str
    """Name of the run folder."""


def read_section(readme: str) -> Section:
    """Return what the section "Your own environment" says."""
    _, _, text = readme.partition("## Your own environment\n")
    text = text.partition("\n## ")[0]
    [code] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    [block] = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    [file] = re.findall(r"class in `(\w+\.py)`", text)
    [run] = re.findall(r"^reflectrl train \w+:(\w+)", block, re.MULTILINE)
    [elsewhere] = [line for line in block.splitlines() if ELSEWHERE in line]
    commands = tuple(line for line in block.splitlines() if line != elsewhere)
    return Section(file, code, commands, elsewhere.partition("#")[0].strip(), run)


@contextmanager
def terminal(folder: Path, *lines: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shell that runs lines until one fails; it ends with this block, and what it has started with it."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    script = "\n".join(["set -e", *lines])
    process = subprocess.Popen(["bash", "-c", script], cwd=folder, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def wait_until(done: Callable[[], bool], working: subprocess.Popen[bytes], what: str) -> None:
    """Wait until something is done; exit if that takes too long, or a shell has failed."""
    end = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > end or working.poll() is not None:
            sys.exit(f"{what} did not come")
        time.sleep(0.2)


def shows(name: str) -> bool:
    """Return whether the page is there and shows a run."""
    try:
        with urllib.request.urlopen(PAGE, timeout=60) as reply:
            return name in reply.read().decode()
    except OSError:
        return False


def follow(section: Section, folder: Path) -> list[list[str]]:
    """Follow the section in an empty folder; return rows of commands and minutes."""
    clone, stamps = folder / HERE.parent.name, folder / "stamps"
    began = time.time()
    subprocess.run(["git", "clone", "--quiet", str(HERE.parent), str(clone)], check=True)
    stamps.write_text(f"{time.time()}\n")
    (clone / section.file).write_text(section.code, encoding="utf-8")
    stamped = [f"{line}\ndate +%s.%N >>'{stamps}'" for line in section.commands]
    with terminal(clone, *stamped) as first:
        wait_until((clone / "runs" / section.run).is_dir, first, f"the run {section.run}")
        with terminal(clone, section.elsewhere) as other:
            wait_until(lambda: shows(section.run), other, "the page")
            seen = time.time()
            if code := first.wait():
                sys.exit(code)
    ends = [float(line) for line in stamps.read_text().split()]
    done = ["git clone", *section.commands]
    rows = [[f"`{line}`", _minutes(end - start)] for line, start, end in zip(done, [began, *ends], ends, strict=False)]
    rows.append([f"`{section.elsewhere}`, until it shows the run: minutes since the beginning", _minutes(seen - began)])
    return [*rows, [f"{len(done) + 1} commands, until the run has ended", _minutes(ends[-1] - began)]]


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(
        prog=Path(__file__).name, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(table(("command", "minutes"), follow(read_section(README.read_text(encoding="utf-8")), Path(folder))))


if __name__ == "__main__":
    main()
