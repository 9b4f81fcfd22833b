"""What values show of themselves in a notebook: tables and curves of the report, in its style."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from reflectrl.core import InvalidInput, Trajectory, Turn
from reflectrl.core.origin import Ledger
from reflectrl.report.compare import Summary, as_markdown
from reflectrl.report.curves import curves
from reflectrl.report.markup import asset, escaped, prose, table
from reflectrl.report.page import comparison_table, drawn_rows, results_table
from reflectrl.report.runs import RunData, read_runs
from reflectrl.report.verdict import verdict
from reflectrl.rollout.iteration import Iteration
from reflectrl.rollout.results import EvalRow

MAX_CHOICES = 4
"""Number of a menu's actions that are shown at a step: the chosen one and the most probable others."""


def framed(*parts: str) -> str:
    """Return HTML in the style of the report, which changes nothing else of the page that it is in."""
    style = asset("style.css").replace(":root", "&").replace("html:not(.light)", "&:not(.light)")
    own = "color:var(--ink); background:var(--back); padding:.25rem .5rem"
    return f'<style>.reflectrl {{ {own}; {style} }}</style><div class="reflectrl">{"".join(parts)}</div>'


class Results(list[EvalRow]):
    """Rows of an evaluation."""

    def _repr_html_(self) -> str:
        return framed(drawn_rows([("", row) for row in self], main=[row.policy == "rlft" for row in self]))


@dataclass(frozen=True, repr=False)
class Comparison:
    """Groups of runs side by side."""

    summaries: Sequence[Summary]
    """The groups, in the order of the runs."""
    remarks: Sequence[str]
    """Sentences about runs that are left out, and about what cannot be told."""

    def __repr__(self) -> str:
        """Return the table and the sentences below it."""
        return "\n".join([as_markdown(self.summaries), *self._sentences, *self.remarks])

    @property
    def _sentences(self) -> list[str]:
        return [f"{each.group}: {each.verdict}" for each in self.summaries]

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{prose(sentence)}</p>" for sentence in self._sentences)
        return framed(comparison_table(self.summaries, self.remarks), said)


def run_html(path: Path, name: str) -> str:
    """Return verdict, results and curves of the run in a folder, so far as they are there."""
    if not Ledger(path).recipe().exists():
        return framed(f"<p>{escaped(name)}: not begun yet.</p>")
    try:
        runs = read_runs([path])
    except InvalidInput as error:
        return framed(f"<p>{escaped(str(error))}</p>")
    said = "".join(f"<p>{prose(sentence)}</p>" for sentence in verdict(runs))
    return framed(f"<h3>{escaped(runs[0].name, 200)}</h3>", said, results_table(runs), curves(runs))


def agent_html(who: str, how: str, players: Mapping[str, str]) -> str:
    """Return who an agent is, how it plays, and its players by role."""
    rows = [(escaped(role), escaped(player)) for role, player in players.items()]
    return framed(f"<p>{escaped(who)}: {escaped(how)}.</p>", table("Players", ("role", "player"), rows, words=2))


class Trains(Protocol):
    """A trainer."""

    @property
    def iterations(self) -> Sequence[Iteration]:
        """Records of its iterations."""


def drawn(value: Trajectory | Trains) -> str:
    """Return a value of a lower room as HTML."""
    if isinstance(value, Trajectory):
        return _episode(value)
    points = tuple(value.iterations)
    return framed(curves([RunData("training", Path(), "", (), points, ())]) or "<p>No iteration of training yet.</p>")


_STEP: Mapping[str, Callable[[Turn], str]] = {
    "state": lambda turn: f"<pre>{escaped(turn.observation.full_text)}</pre>",
    "reflection": lambda turn: escaped(turn.reflection or ""),
    "wrote": lambda turn: escaped("" if turn.decision.choice.written is None else turn.decision.choice.written.text),
    "action": lambda turn: f"<strong>{escaped(turn.decision.action)}</strong>{' (illegal)' if turn.illegal else ''}",
    "probabilities": lambda turn: _choices(turn),
    "reward": lambda turn: f"{turn.reward:+.2f}",
}
"""HTML of each column of an episode."""


def _episode(played: Trajectory) -> str:
    rows = [[cell(turn) for cell in _STEP.values()] for turn in played.turns]
    shown = [at for at, name in enumerate(_STEP) if name in ("action", "reward") or any(row[at] for row in rows)]
    head = f"{played.task.id}: {played.outcome}, return {played.episode_return:+.2f}"
    columns = ("step", *([*_STEP][at] for at in shown))
    lines = [[str(number), *(row[at] for at in shown)] for number, row in enumerate(rows, start=1)]
    return framed(f"<p>{escaped(head)}</p>", table("Episode", columns, lines, words=len(columns) - 1))


def _choices(turn: Turn) -> str:
    """Return the most probable actions of a step; empty where the probabilities are unknown."""
    odds = turn.decision.choice.probabilities
    if len(odds) != len(turn.menu):
        return ""
    ranked = sorted(range(len(odds)), key=lambda at: -odds[at])[:MAX_CHOICES]
    return ", ".join(f"{escaped(turn.menu[at], 60)} {odds[at]:.0%}" for at in ranked)
