"""A few episodes of a run, step by step: what was seen, said, possible, done and earned."""

from __future__ import annotations

from collections.abc import Iterator

from reflectrl.core import Trajectory, Turn
from reflectrl.report.escape import escaped
from reflectrl.report.runs import Run
from reflectrl.rollout.record import read_trajectories

_EACH = 4
"""Successes, and as many failures, that are shown of the evaluation."""
_TRAINING = 2
"""Episodes that are shown of the first recorded iteration of training, and of the last."""
_MENU = 8
"""Actions that are shown of a menu: the chosen one and the most probable others."""


def episodes(run: Run) -> str:
    """The chosen episodes, under headings that say where they come from."""
    return "".join((*_evaluated(run), *_training(run)))


def _evaluated(run: Run) -> Iterator[str]:
    if not run.rows:
        return
    # The first row of a policy is its main one; greedy play and controls follow it.
    row = next((r for policy in ("rlft", "sft", "remote", "base") for r in run.rows if r.policy == policy), run.rows[0])
    yield f"<h3>Evaluation: {escaped(f'{row.policy}, {row.mode}, reflections by {row.reflections}')}</h3>"
    path = run.path / "trajectories" / f"eval-{row.policy}-{row.reflections}-{row.mode}.jsonl"
    if not path.is_file():
        yield f'<p class="note">These episodes are not here: {escaped(str(path))} is missing.</p>'
        return
    played = read_trajectories(path)[1]
    for kind, wanted in (("successes", True), ("failures", False)):
        found = [episode for episode in played if episode.success == wanted]
        yield f'<p class="note">{kind}: the first {min(len(found), _EACH)} of {len(found)}</p>'
        yield from map(_episode, found[:_EACH])


def _training(run: Run) -> Iterator[str]:
    recorded = sorted((run.path / "trajectories").glob("rlft-*.jsonl"))
    if run.points and not recorded:
        yield '<p class="note">No episodes of training are recorded here.</p>'
    for path in (*recorded[:1], *recorded[1:][-1:]):
        yield f"<h3>Training: iteration {escaped(path.stem[5:].lstrip('0') or '0')}</h3>"
        yield from map(_episode, read_trajectories(path)[1][:_TRAINING])


def _episode(trajectory: Trajectory) -> str:
    length = len(trajectory.turns)
    end = "success" if trajectory.success else "out of time" if trajectory.truncated else "failure"
    steps = "".join(_step(number, turn) for number, turn in enumerate(trajectory.turns, start=1))
    return (
        f'<details><summary><span class="{"won" if trajectory.success else "lost"}">{end}</span> '
        f"task {escaped(trajectory.task.id, 200)} <small>return {trajectory.episode_return:+.2f}, "
        f"{length} step{'' if length == 1 else 's'}</small></summary>{steps}</details>"
    )


def _step(number: int, turn: Turn) -> str:
    illegal = ' <span class="lost">illegal</span>' if turn.illegal else ""
    said = "" if turn.reflection is None else f'<p class="said"><b>Reflection:</b> {escaped(turn.reflection)}</p>'
    return (
        f'<section class="step"><h4>Step {number} <small>reward {turn.reward:+.2f}{illegal}</small></h4>'
        f"<pre>\n{escaped(turn.observation.full_text)}</pre>{said}{_menu(turn)}</section>"
    )


def _menu(turn: Turn) -> str:
    """The menu in the order in which the policy saw it, with the probability of each action where it has one."""
    chosen, odds = turn.decision.index, turn.decision.probabilities
    odds = odds if len(odds) == len(turn.menu) else ()
    ranked = sorted(range(len(turn.menu)), key=lambda at: (at != chosen, -odds[at] if odds else at))
    items = []
    for at in sorted(ranked[:_MENU]):
        bar = (
            f'<span class="bar"><i style="width:{odds[at]:.1%}"></i></span><span>{odds[at]:.1%}</span>' if odds else ""
        )
        items.append(
            f"<li{' class=chosen' if at == chosen else ''}><span>{escaped(turn.menu[at], 300)}</span>{bar}</li>"
        )
    hidden = ranked[_MENU:]
    rest = f", {sum(odds[at] for at in hidden):.1%} in all" if odds else ""
    more = f"<li><small>and {len(hidden)} more{rest}</small></li>" if hidden else ""
    return f'<ul class="menu">{"".join(items)}{more}</ul>'
