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


def watched(width: int = 80) -> tuple[Reporter, io.StringIO]:
    said = io.StringIO()
    return Reporter(Console(file=said, force_terminal=True, width=width, color_system=None)), said


def visible(said: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.getvalue())


def wait_for(text: str, said: io.StringIO) -> None:
    """Until the screen, which is drawn ten times a second, shows ``text``."""
    end = time.monotonic() + 120
    while text not in visible(said) and time.monotonic() < end:
        time.sleep(0.02)


def test_off_a_terminal_a_short_stage_prints_one_line_and_a_failed_one_none() -> None:
    reporter, said = piped()
    with pytest.raises(ZeroDivisionError), reporter.stage("rlft"):
        raise ZeroDivisionError
    assert said.getvalue() == ""
    with reporter.stage("rlft") as advance:
        for done in range(1, 101):
            advance(done, 100, f"success {done}%")
    assert re.fullmatch(r"rlft               done in +\d+\.\d s  success 100%\n", said.getvalue())


def test_off_a_terminal_a_long_stage_prints_a_line_each_tenth() -> None:
    reporter, said = piped(apart=0.0)
    with reporter.stage("rlft") as advance:
        for done in range(1, 101):
            advance(done, 100, f"success {done}%")
    *lines, last = said.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [f"rlft               {10 * tenth}/100" for tenth in range(1, 10)]
    assert re.fullmatch(r"rlft               10/100, \d:\d\d:\d\d left  success 10%", lines[0])
    assert "done in" in last


def test_off_a_terminal_lines_keep_their_distance() -> None:
    reporter, said = piped(apart=1.0)
    with reporter.stage("rlft") as advance:
        for done in (1, 2, 3):
            advance(done, 10, "")
        time.sleep(1.1)
        for done in (4, 5):
            advance(done, 10, "")
    assert [line.split(",")[0].split()[-1] for line in said.getvalue().splitlines()[:-1]] == ["4/10"]


def test_a_resumed_stage_estimates_from_where_it_resumed() -> None:
    reporter, said = piped(apart=0.0)
    with reporter.stage("rlft") as advance:
        advance(800, 1000, "")
        time.sleep(0.2)
        advance(900, 1000, "")
    (line, _) = said.getvalue().splitlines()
    assert re.fullmatch(r"rlft               900/1000, 0:00:\d\d left", line)


def test_a_stage_without_work_prints_its_note() -> None:
    reporter, said = piped(apart=0.0)
    with reporter.stage("gen-data") as advance:
        advance(0, 0, "")
        advance(0, 0, "nothing to do")
    assert said.getvalue().endswith("nothing to do\n")


def test_a_terminal_shows_bar_count_and_the_whole_note_on_eighty_columns() -> None:
    note = "all depths  success 84%  return +0.62  entropy 0.31  812 steps/s"
    reporter, said = watched()
    with reporter.stage("rlft") as advance:
        advance(11, 80, note)
        advance(12, 80, note)
        wait_for("12/80", said)
    text = visible(said)
    assert "12/80" in text
    assert "━" in text
    assert f"  {note}" in [line.rstrip() for line in text.splitlines()]
    assert re.search(r"\rrlft               done in +\d+\.\d s  all depths  success 84%", text)


def test_a_narrow_terminal_cuts_the_note_which_is_no_markup() -> None:
    reporter, said = watched(width=40)
    with reporter.stage("rlft") as advance:
        advance(1, 80, "[red]" + "x" * 100)
        wait_for("x…", said)
    assert "[red]" + "x" * 32 + "…" in visible(said)
