"""Progress of the stages: a bar with rate and time left on a terminal and in notebooks with widgets, else a few lines.

Elsewhere (a log, a pipe), a stage prints one line at its end, and a long stage also prints its progress: at each tenth
of the way, and at most once a minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from reflectrl.core.text import visible, visible_line

Advance = Callable[[int, int, str], None]
"""(done, total, note): progress of a stage, and a note to print."""

LABEL_WIDTH = 18
"""Width of the column with the stage that a line is about."""
MIN_SECONDS_APART = 60.0
"""Minimum seconds between the lines of a stage where the output is not a terminal."""


def labelled(label: str, text: str) -> str:
    """Return a line of a stage, with its label in a column of its own."""
    return f"{label:<{LABEL_WIDTH}} {text}".rstrip()


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.1f}/s" if speed else "", style="dim")


class _Board(Progress):
    """Progress bar with the note on a separate line, so that both fit on a narrow terminal."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if task.fields["note"]:
                yield Text(visible_line(f"  {task.fields['note']}"), no_wrap=True, overflow="ellipsis")


class _Log:
    """Progress lines of a stage where the output is not a terminal."""

    def __init__(self, name: str, write: Callable[[str], None], apart: float) -> None:
        self._name = name
        self._write = write
        self._apart = apart
        self._last_line = time.monotonic()
        self._tenth = self._done = self._total = 0
        self._first: tuple[int, float] | None = None

    def advance(self, done: int, total: int, note: str) -> None:
        """Print the progress if it is time to; work with another total, or less of it done, is a new part."""
        now = time.monotonic()
        tenth = 10 * done // max(total, 1)
        if self._first is None or total != self._total or done < self._done:  # a resumed stage does not begin with 0
            self._first, self._tenth = (done, now), tenth
        self._done, self._total = done, total
        begun, began = self._first
        if done == begun or not self._tenth < tenth < 10 or now - self._last_line < self._apart:
            return
        self._last_line, self._tenth = now, tenth
        left = timedelta(seconds=round((now - began) / (done - begun) * (total - done)))
        self._write(labelled(self._name, f"{done}/{total}, {left} left  {note}"))


class Reporter:
    """Writes to stderr, so that stdout holds results only.

    Where the output is not a terminal, ``apart`` is the minimum of seconds between the lines of a stage.
    """

    def __init__(self, console: Console | None = None, *, apart: float = MIN_SECONDS_APART) -> None:
        self.console = console or Console(file=sys.stderr)
        self._apart = apart

    def line(self, text: str) -> None:
        """Print one plain line."""
        self.console.print(visible(text), highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def stage(self, name: str) -> Iterator[Advance]:
        """Show a stage; the last note is kept in its closing line."""
        began, last_note = time.monotonic(), [""]
        widgets = self.console.is_jupyter and find_spec("ipywidgets") is not None
        watched = widgets or (self.console.is_terminal and not self.console.is_dumb_terminal)
        log = _Log(name, self.line, self._apart)
        with _Board(
            TextColumn(f"{{task.description:<{LABEL_WIDTH}}}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(compact=True),
            console=self.console,
            transient=True,
            disable=not watched,
        ) as progress:
            task = progress.add_task(name, total=None, note="")

            def advance(done: int, total: int, note: str) -> None:
                last_note[0] = note or last_note[0]
                progress.update(task, completed=done, total=total, note=last_note[0])
                if not watched:
                    log.advance(done, total, last_note[0])

            yield advance
        self.line(labelled(name, f"done in {time.monotonic() - began:5.1f} s  {last_note[0]}"))
