from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from reflectrl.pipeline.console import Reporter


def piped(**options: float) -> tuple[Reporter, io.StringIO]:
    said = io.StringIO()
    return Reporter(Console(file=said), **options), said


def visible(said: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.getvalue())


def watched(width: int, text: str, *notes: tuple[int, str]) -> str:
    """Return the text on a terminal after its screen, which is drawn ten times per second, has shown ``text``."""
    said = io.StringIO()
    reporter = Reporter(Console(file=said, force_terminal=True, width=width, color_system=None))
    end = time.monotonic() + 120
    with reporter.stage("rlft") as advance:
        for done, note in notes:
            advance(done, 80, note)
        while text not in visible(said) and time.monotonic() < end:
            time.sleep(0.02)
    return visible(said)


def test_off_a_terminal_a_short_stage_prints_one_line() -> None:
    reporter, said = piped()
    with pytest.raises(ZeroDivisionError), reporter.stage("rlft"):
        raise ZeroDivisionError
    assert said.getvalue() == ""
    with reporter.stage("rlft") as advance:
        for done in range(1, 101):  # lines are still a minute apart
            advance(done, 100, f"success {done}%")
    assert re.fullmatch(r"rlft               done in +\d+\.\d s  success 100%\n", said.getvalue())


@pytest.mark.parametrize("first", [1, 70])
def test_off_a_terminal_a_long_stage_prints_each_tenth(first: int) -> None:
    reporter, said = piped(apart=0.0)
    with reporter.stage("rlft") as advance:
        for done in range(first, 101):
            advance(done, 100, f"success {done}%")
    *lines, last = said.getvalue().splitlines()
    tenths = range(first // 10 + 1, 10)
    assert [line.split(",")[0] for line in lines] == [f"rlft               {10 * tenth}/100" for tenth in tenths]
    assert re.fullmatch(r"rlft               \d0/100, \d:\d\d:\d\d left  success \d0%", lines[0])
    assert "done in" in last


def test_off_a_terminal_each_part_has_lines_of_its_own() -> None:
    reporter, said = piped(apart=0.0)
    with reporter.stage("eval") as advance:
        for row, total in enumerate((100, 4, 100)):
            for done in range(1, total + 1):
                advance(done, total, f"row {row}")
    *lines, _ = said.getvalue().splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["0"] * 9 + ["1"] * 2 + ["2"] * 9
    assert all(re.search(r" \d:\d\d:\d\d left ", line) for line in lines)


def test_a_stage_without_work_prints_its_note() -> None:
    reporter, said = piped(apart=0.0)
    with reporter.stage("gen-data") as advance:
        advance(0, 0, "")
        advance(0, 0, "nothing to do")
    assert said.getvalue().endswith("nothing to do\n")


def test_a_terminal_shows_bar_count_and_note() -> None:
    note = "all depths  success 84%  return +0.62  entropy 0.31  812 steps/s"
    text = watched(80, "12/80", (11, note), (12, note))
    assert "━" in text
    assert f"  {note}" in [line.rstrip() for line in text.splitlines()]
    assert re.search(r"\rrlft               done in +\d+\.\d s  all depths  success 84%", text)
    assert "[red]" + "x" * 32 + "…" in watched(40, "x…", (1, "[red]" + "x" * 100))
