"""What a person sees while stages run: progress with rate and time left on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

Advance = Callable[[int, int, str], None]
"""(done, total, note): how far a stage is, and what it would like to say."""


class _Rate(ProgressColumn):
    """Units a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.1f}/s" if speed else "", style="dim")


class Reporter:
    """Writes to stderr, so that stdout holds results only."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)

    def line(self, text: str) -> None:
        """One plain line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def stage(self, name: str) -> Iterator[Advance]:
        """Show a stage; the last note is kept in its closing line."""
        began, said = time.monotonic(), [""]
        with Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        ) as progress:
            task = progress.add_task(name, total=None, note="")

            def advance(done: int, total: int, note: str) -> None:
                said[0] = note or said[0]
                progress.update(task, completed=done, total=total, note=said[0])

            yield advance
        self.line(f"{name:<18} done in {time.monotonic() - began:5.1f} s  {said[0]}".rstrip())
