"""Experiment trackers, which are ``accelerate``'s: each stage is a run, with its metrics and some of its episodes.

``accelerate`` leaves to its caller what makes a tracker worth opening after a kill: that the resumed stage continues
the same run, that iterations which are repeated are not shown twice, and that everything is written to the run folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import os
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectrl.config import Recipe, dump_recipe
from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.files import write_text
from reflectrl.core.run_files import TRACKERS
from reflectrl.core.stop import tell_user
from reflectrl.core.text import first_line

PROJECT = "reflectrl"
"""Project in the tracker, unless a variable such as WANDB_PROJECT names another."""
_TITLE = {"mlflow": "run_name", "swanlab": "experiment_name", "clearml": "task_name"}
"""Argument with the name of a run, of trackers whose first argument is the project."""
MAX_EPISODES = 3
"""Maximum number of episodes of an iteration that are sent."""
_MAX_CHARACTERS = 20_000
"""Maximum number of characters of an episode that are sent."""
_COLUMNS = ("step", "stage", "task", "outcome", "episode_return", "text")
"""Columns of the table of episodes."""


class Tracking:
    """A run of a tracker, or of none.

    Args:
        tracker: a ``GeneralTracker`` of ``accelerate``; ``None`` to send nothing.

    """

    def __init__(self, tracker: Any = None) -> None:
        self._tracker = tracker

    def log(self, step: int, numbers: Mapping[str, float | None]) -> None:
        """Send the numbers that are known at a step."""
        if self._tracker is not None and not self._was_sent(step):
            self._tracker.log({name: number for name, number in numbers.items() if number is not None}, step=step)
            if self._tracker.name == "tensorboard":
                self._tracker.tracker.flush()

    def show(self, step: int, stage: str, episodes: Sequence[Trajectory]) -> None:
        """Send episodes to a tracker that can show texts: tensorboard, trackio, wandb or clearml."""
        tracker, name = self._tracker, getattr(self._tracker, "name", "")
        rows: list[list[Any]] = [
            [step, stage, each.task.id, each.outcome, each.episode_return, transcript(each)]
            for each in episodes[:MAX_EPISODES]
        ]
        if not rows or self._was_sent(step):
            return
        if name == "tensorboard":
            for number, (_, _, task, outcome, episode_return, text) in enumerate(rows):
                head = f"{stage}, task {task}: {outcome}, return {episode_return:+.2f}"
                tracker.tracker.add_text(f"episodes/{number}", _as_code(f"{head}\n\n{text}"), step)
            tracker.tracker.flush()
        elif name == "trackio":
            import trackio

            shown = [[*values, _as_code(text)] for *values, text in rows]
            tracker.log({"episodes": trackio.Table(columns=[*_COLUMNS], data=shown)}, step=step)
        elif hasattr(tracker, "log_table"):
            tracker.log_table("episodes", columns=[*_COLUMNS], data=rows, step=step)

    def _was_sent(self, step: int) -> bool:
        """Return whether wandb, which refuses to change a step, has received a later one before the run was killed."""
        return getattr(self._tracker, "name", "") == "wandb" and step < self._tracker.tracker.step


def check_tracker(recipe: Recipe) -> None:
    """Refuse a recipe whose tracker is not installed or wants a login, for which wandb asks in a terminal.

    Raises:
        InvalidInput: the tracker is not installed, or there is no login that its server accepts.

    """
    name = recipe.report_to
    if name == "none":
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:  # a plain folder of that name, such as ./wandb, has no origin
        raise InvalidInput(
            f"report_to is {name!r}, but {name} is not installed; run pip install {name}, or set report_to=none."
        )
    if name == "wandb":
        import wandb

        with _starts(name):
            wandb.login(verify=True)


@contextlib.contextmanager
def _starts(name: str) -> Iterator[None]:
    """Turn the refusal of a tracker to start into a sentence."""
    advice = "; log in with `wandb login` or WANDB_API_KEY, keep the run here with WANDB_MODE=offline"
    try:
        yield
    except (InvalidInput, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001 - each tracker has its own errors
        raise InvalidInput(
            f"{name} does not start ({first_line(error)}){advice if name == 'wandb' else '; fix that'}, or set "
            "report_to=none."
        ) from error


@contextlib.contextmanager
def tracking(recipe: Recipe, run: Path, part: str, first: int = 0) -> Iterator[Tracking]:
    """Open the tracker that a recipe names, if any; it writes below ``trackers`` of the run folder.

    Args:
        recipe: the recipe, which is sent to the tracker as well.
        run: the run folder, which gives the tracker's run its name, along with ``part``.
        part: the stage, such as ``rlft``.
        first: the step with which the stage starts or resumes.

    Raises:
        InvalidInput: the tracker refuses to start.

    """
    name, place = recipe.report_to, run.resolve()
    if name == "none":
        yield Tracking()
        return
    folder, title = place / TRACKERS, f"{place.name}-{part}"
    folder.mkdir(parents=True, exist_ok=True)
    with _quiet_trackio(name, folder) as said, _starts(name):
        tracker = _started(name, folder, title, part, recipe, first)
    failed = True
    try:
        yield Tracking(tracker)
        failed = False
    finally:
        with contextlib.redirect_stdout(said):
            if name == "wandb":
                tracker.tracker.finish(exit_code=int(failed))
            else:
                tracker.finish()


def _started(name: str, folder: Path, title: str, part: str, recipe: Recipe, first: int) -> Any:
    """Return a started tracker of ``accelerate``."""
    import torch
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState(cpu=not torch.cuda.is_available())  # the trackers' own log needs it
    made = LOGGER_TYPE_TO_CLASS[name]
    project = os.environ.get(f"{name.upper()}_PROJECT") or PROJECT
    plain = recipe.model_dump(mode="json")
    if name == "tensorboard":  # repeated steps are hidden in the old file
        tracker = made(title, str(folder / name), purge_step=first)
    elif name == "wandb":
        import wandb

        kept = folder / f"wandb-id-{part}"
        if not kept.is_file():
            write_text(kept, secrets.token_hex(4))
        tracker = made(
            project,
            name=title,
            id=kept.read_text(encoding="utf-8").strip(),
            dir=folder,
            resume="allow",
            settings=wandb.Settings(console="off"),
        )
    elif name == "trackio":
        tracker = made(project, name=title, resume="allow", embed=False, config=plain)
    elif made.requires_logging_directory:
        tracker = made(title, str(folder / name))
    elif name == "dvclive":
        tracker = made(dir=str(folder / name / title))
    else:
        tracker = made(project, **({_TITLE[name]: title} if name in _TITLE else {}))
    tracker.main_process_only = False  # only the main process opens one
    tracker.start()
    if name == "tensorboard":
        tracker.tracker.add_text("recipe", _as_code(dump_recipe(recipe)), first)
    elif name != "trackio":
        tracker.store_init_configuration(plain)
    return tracker


@contextlib.contextmanager
def _quiet_trackio(name: str, folder: Path) -> Iterator[io.TextIOBase | Any]:
    """Keep trackio's database in the run folder unless TRACKIO_DIR names another place, and say how to show it."""
    if name != "trackio":
        yield sys.stderr
        return
    os.environ.setdefault("TRACKIO_DIR", str(folder / "trackio"))
    is_here = not any(map(os.environ.get, ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")))
    # stdout holds results only; and the command that trackio prints would look in another folder
    said = io.StringIO() if is_here else sys.stderr
    with contextlib.redirect_stdout(said):
        yield said
    if is_here:
        import trackio

        place = shlex.quote(str(trackio.utils.TRACKIO_DIR))  # the first run of a process has set it
        project = os.environ.get("TRACKIO_PROJECT") or PROJECT
        tell_user(f"trackio shows this run: TRACKIO_DIR={place} trackio show --project {shlex.quote(project)}")


def transcript(episode: Trajectory) -> str:
    """Return an episode as plain text, step by step, cut to ``_MAX_CHARACTERS`` characters."""
    lines = []
    for number, turn in enumerate(episode.turns, start=1):
        lines += [f"step {number}", turn.observation.full_text]
        lines += [] if turn.reflection is None else [f"reflection: {turn.reflection}"]
        written, better = turn.decision.choice.written, turn.said.get("corrector")
        lines += [] if written is None else [f"wrote: {written.text}"]
        lines += [] if better is None or not better.text else [f"corrected: {better.text}"]
        odds = f"{math.exp(turn.decision.logprob):.0%}"
        lines += [
            f"action: {turn.decision.action} ({odds}), reward {turn.reward:+.2f}{', illegal' if turn.illegal else ''}",
            "",
        ]
    text = "\n".join(lines)
    over = len(text) - _MAX_CHARACTERS
    return text if over <= 0 else f"{text[:_MAX_CHARACTERS]}\n[{over} more characters]"


def _as_code(text: str) -> str:
    """Return the text as a Markdown code block, in which no character is markup."""
    return "\n".join(f"    {line}" for line in text.splitlines())
