"""Runs on the terminal: a list of them, and one task of a run before and after RLFT, side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import zip_longest
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.origin import Ledger
from reflectrl.core.run_files import run_folders
from reflectrl.core.text import visible, visible_line
from reflectrl.report.follow import FollowedRuns
from reflectrl.report.progress import HEADS, progress_rows
from reflectrl.report.runs import RunData
from reflectrl.report.tables import plain_console, print_rows, rows_table
from reflectrl.report.verdict import judged_row
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import episodes_file

MAX_STEPS = 8
"""Number of an episode's first steps that are shown."""
WIDTH = 100
"""Width of the output in characters where it is not a terminal."""


def print_before_and_after(run: RunData) -> None:
    """Print an episode that failed after SFT beside one of the same task that succeeded after RLFT.

    If the evaluation replaced reflections by blank ones, what the policy did then stands beside both.

    Raises:
        InvalidInput: a file of episodes is damaged.

    """
    pair = telling_pair(_played(run, "sft"), _played(run, "rlft"))
    console = plain_console(WIDTH)
    if pair is None:
        console.print(f"{run.name} has no recorded task that failed before RLFT and succeeded after it.")
        return
    blank = [each for each in _played(run, "rlft", "blank") if each.task.id == pair[0].task.id and each.turns]
    heads = ("before RLFT", "after RLFT", "after RLFT, with blank reflections")
    shown = dict(zip(heads, (*pair, *blank[:1]), strict=False))
    console.print(f"\nThe task {visible_line(pair[0].task.id)}, before RLFT and after it. It begins with:")
    console.print(Text(visible(pair[0].turns[0].observation.text)))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    for when, episode in shown.items():
        end, count = "reaches its goal" if episode.success else "fails", len(episode.turns)
        table.add_column(f"{when}: {end}, {count} step{'s' if count > 1 else ''}", ratio=1, overflow="fold")
    for row in zip_longest(*map(_steps, shown.values()), fillvalue=Text()):
        table.add_row(*row)
    console.print(table)


def telling_pair(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> tuple[Trajectory, Trajectory] | None:
    """Return a failed and a successful episode of one task; ``None`` if there is no such pair.

    The pair is the longest success that can be shown with all its steps, and the shortest failure.
    """
    lost = [episode for episode in before if not episode.success and episode.turns]
    won = [episode for episode in after if episode.success and episode.turns]
    pairs = [(old, new) for old in lost for new in won if old.task.id == new.task.id]

    def rank(pair: tuple[Trajectory, Trajectory]) -> tuple[int, int, str]:
        old, new = (len(each.turns) for each in pair)
        return (new if new > MAX_STEPS else -new, old, pair[0].task.id)

    return min(pairs, key=rank, default=None)


def _played(run: RunData, policy: str, reflections: str | None = None) -> list[Trajectory]:
    """Return the recorded episodes of a policy that the verdict is about, by default with the recipe's reflections."""
    row = judged_row(run, policy, reflections)
    if row is None:
        return []
    name = episodes_file(row, len({each.split for each in run.rows}))
    if not (run.path / name).is_file():
        return []
    return read_trajectories(Ledger(run.path).verify(name))[1]


def _steps(episode: Trajectory) -> Iterator[Text]:
    for number, turn in enumerate(episode.turns[:MAX_STEPS], start=1):
        words = Text(f"{number}. {visible_line(turn.decision.action)}", "bold")
        if turn.reflection:
            words.append(f"  {visible_line(turn.reflection)}", "not bold italic")
        yield words
    if len(episode.turns) > MAX_STEPS:
        yield Text(f"and {len(episode.turns) - MAX_STEPS} more")


WATCHED_S = 2.0
"""Seconds between two looks at the runs that the terminal follows."""


def print_runs(folder: Path) -> None:
    """Print one line for each run folder in ``folder``, by name; for one that cannot be read, the reason.

    Raises:
        InvalidInput: there is no run folder.

    """
    if not run_folders(folder):
        raise InvalidInput(f"{folder} holds no run folder; expected a folder in which `reflectrl run` has made some.")
    followed = FollowedRuns([folder])
    followed.look()
    print_rows(HEADS, progress_rows(followed.runs, followed.unread), words=3)


def watch_runs(folder: Path) -> None:
    """Show the lines of ``print_runs`` until SIGINT, also of runs that begin later; a new table whenever they change.

    A terminal shows the runs that were written last, as many as fit.

    Raises:
        InvalidInput: there is no such folder.

    """
    followed, console = FollowedRuns([folder]), plain_console()
    drawn = console.is_terminal
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) if drawn else nullcontext() as live:
        while True:
            if followed.look():
                rows = progress_rows(followed.runs, followed.unread)
                if live:
                    live.update(latest_runs(rows, followed.written, console), refresh=True)
                else:
                    console.print(rows_table(HEADS, rows, words=3, drawn=False))
            time.sleep(WATCHED_S)


def latest_runs(rows: Sequence[tuple[str, ...]], written: Mapping[str, float], console: Console) -> Group:
    """Return a table of the runs that were written last, as many as the terminal has room for, and how many more are.

    Args:
        rows: a row of ``progress.HEADS`` for each run, in the order in which they are shown.
        written: by the name of a run, when it was written last.
        console: the terminal.

    """
    latest = sorted(rows, key=lambda row: written.get(row[0], 0.0), reverse=True)
    for count in range(min(len(rows), console.height), -1, -1):
        kept, more = set(latest[:count]), len(rows) - count
        table = rows_table(HEADS, [row for row in rows if row in kept], words=3, drawn=True)
        shown = Group(table, *([Text(f"and {more:,} more, which were written earlier")] if more else []))
        if len(console.render_lines(shown)) <= console.height:
            break
    return shown
