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
from reflectrl.pipeline.launch import is_main_process

PROJECT = "reflectrl"
"""Project in the tracker, unless a variable such as WANDB_PROJECT names another."""
_ID_LENGTHS = {"comet_ml": 32, "swanlab": 21, "wandb": 8}
"""Number of characters of a run's id, of trackers that let their caller choose it."""
MAX_EPISODES = 3
"""Maximum number of episodes of an iteration that are sent."""
_MAX_CHARACTERS = 20_000
"""Maximum number of characters of an episode that are sent."""
_COLUMNS = ("step", "lesson", "task", "outcome", "episode_return", "text")


class Tracking:
    """The run of a stage in each of several ``GeneralTracker`` objects of ``accelerate``; none to send nothing."""

    def __init__(self, trackers: Sequence[Any] = ()) -> None:
        self._trackers = trackers

    def log(self, step: int, numbers: Mapping[str, float | None]) -> None:
        """Send the numbers that are known at a step."""
        known = {name: number for name, number in numbers.items() if number is not None}
        for tracker in self._receiving(step):
            tracker.log(known, step=step)
            if tracker.name == "tensorboard":
                tracker.tracker.flush()

    def show(self, step: int, lesson: str, episodes: Sequence[Trajectory]) -> None:
        """Send episodes to the trackers that can show texts: tensorboard, trackio, wandb or clearml."""
        rows: list[list[Any]] = [
            [step, lesson, each.task.id, each.outcome, each.episode_return, transcript(each)]
            for each in episodes[:MAX_EPISODES]
        ]
        for tracker in self._receiving(step) if rows else ():
            _show(tracker, step, lesson, rows)

    def _receiving(self, step: int) -> Iterator[Any]:
        """Yield the trackers, but not wandb, which changes no step, if it was sent a later one before a kill."""
        yield from (each for each in self._trackers if each.name != "wandb" or step >= each.tracker.step)


def _show(tracker: Any, step: int, lesson: str, rows: Sequence[Sequence[Any]]) -> None:
    if tracker.name == "tensorboard":
        for number, (_, _, task, outcome, episode_return, text) in enumerate(rows):
            head = f"{lesson}, task {task}: {outcome}, return {episode_return:+.2f}"
            tracker.tracker.add_text(f"episodes/{number}", _as_code(f"{head}\n\n{text}"), step)
        tracker.tracker.flush()
    elif tracker.name == "trackio":
        import trackio

        shown = [[*values, _as_code(text)] for *values, text in rows]
        tracker.log({"episodes": trackio.Table(columns=[*_COLUMNS], data=shown)}, step=step)
    elif hasattr(tracker, "log_table"):
        tracker.log_table("episodes", columns=[*_COLUMNS], data=rows, step=step)


def check_trackers(recipe: Recipe) -> None:
    """Refuse a recipe with a tracker that is not installed or wants a login, for which wandb asks in a terminal.

    The others are asked by the first stage, which opens its run before it does anything.

    Raises:
        InvalidInput: a tracker is not installed, or there is no login that its server accepts.
    """
    for name in recipe.report_to.trackers:
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
    """Open a run in the trackers that a recipe names, if any; they write below ``trackers`` of the run folder.

    Only the main process of a launch sends anything. The run folder gives the trackers' runs their name, along with
    ``part``, the stage, such as ``rlft``, which starts or resumes with the step ``first``.

    Raises:
        InvalidInput: a tracker refuses to start.
    """
    with contextlib.ExitStack() as stack:
        names = dict.fromkeys(recipe.report_to.trackers if is_main_process() else ())
        yield Tracking([stack.enter_context(_opened(name, recipe, run.resolve(), part, first)) for name in names])


@contextlib.contextmanager
def _opened(name: str, recipe: Recipe, run: Path, part: str, first: int) -> Iterator[Any]:
    """Open a stage's run in one tracker."""
    folder = run / TRACKERS
    folder.mkdir(parents=True, exist_ok=True)
    named = recipe.report_to.name or run.name
    if name == "trackio" and named != run.name:  # it finds runs by their names, which those of a sweep would share
        named = f"{named}-{run.name}"
    with _quiet_trackio(name, folder) as said, _starts(name):
        tracker = _started(name, folder, f"{named}-{part}", part, recipe, first)
    failed = True
    try:
        yield tracker
        failed = False
    finally:
        with contextlib.redirect_stdout(said):
            if name == "wandb":
                tracker.tracker.finish(exit_code=int(failed))
            else:
                tracker.finish()


def _started(name: str, folder: Path, title: str, part: str, recipe: Recipe, first: int) -> Any:
    """Return a started tracker of ``accelerate``, which continues the run that the same stage has begun."""
    import torch
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState(cpu=not torch.cuda.is_available())  # the trackers' own log needs it
    kept = folder / f"{name}-id-{part}"
    if name in _ID_LENGTHS and not kept.is_file():
        write_text(kept, secrets.token_hex(_ID_LENGTHS[name])[: _ID_LENGTHS[name]])
    known = kept.read_text(encoding="utf-8").strip() if kept.is_file() else None
    plain = recipe.model_dump(mode="json")
    tracker = LOGGER_TYPE_TO_CLASS[name](**_settings(name, folder, title, known, recipe, first))
    tracker.main_process_only = False  # only the main process opens one
    tracker.start()
    if known is None and (chosen := _id_of(tracker)) is not None:
        write_text(kept, chosen)
    if name == "aim":
        for tag in _tags(recipe):
            tracker.tracker.add_tag(tag)
    if name == "tensorboard":
        tracker.tracker.add_text("recipe", _as_code(dump_recipe(recipe)), first)
    elif name != "trackio":
        tracker.store_init_configuration(plain)
    return tracker


def _settings(name: str, folder: Path, title: str, known: str | None, recipe: Recipe, first: int) -> dict[str, Any]:
    """Return the arguments of a tracker of ``accelerate``; ``known`` is the id of the run to continue."""
    project = os.environ.get(f"{name.upper()}_PROJECT") or PROJECT
    group, tags = recipe.report_to.group, _tags(recipe)
    if name == "tensorboard":  # repeated steps are hidden in the old file
        return {"run_name": title, "logging_dir": str(folder / name), "purge_step": first}
    if name == "trackio":
        plain = recipe.model_dump(mode="json")
        return {"run_name": project, "name": title, "group": group, "resume": "allow", "embed": False, "config": plain}
    if name == "aim":
        named = {"run_name": title, "logging_dir": str(folder), "run_hash": known, "experiment": group or project}
        # what it captures of stdout ends in a recursion at the second stage of a process
        return {**named, "capture_terminal_logs": False, "system_tracking_interval": None}
    if name == "mlflow":
        named = {"group": group} if group else {}
        return {"experiment_name": project, "run_name": title, "run_id": known, "tags": named | dict.fromkeys(tags, "")}
    if name == "clearml":
        return {"run_name": project, "task_name": title, "tags": tags, "continue_last_task": known or False}
    if name == "dvclive":
        return {"dir": str(folder / name / title), "resume": True}
    if name == "comet_ml":
        import comet_ml

        named = comet_ml.ExperimentConfig(name=title, tags=tags)
        return {"run_name": project, "experiment_key": known, "experiment_config": named}
    shared = {"run_name": project, "id": known, "resume": "allow", "group": group, "tags": recipe.report_to.tags}
    if name == "swanlab":
        return {**shared, "experiment_name": title, "logdir": str(folder / name)}
    import wandb

    return {**shared, "name": title, "dir": folder, "settings": wandb.Settings(console="off")}


def _tags(recipe: Recipe) -> list[str]:
    """Return the tags of a run in a tracker that has no groups."""
    return [*recipe.report_to.tags, *filter(None, [recipe.report_to.group])]


def _id_of(tracker: Any) -> str | None:
    """Return the id that a tracker has chosen for its run; ``None`` for one whose runs are found by their names."""
    ids = {"aim": lambda run: run.hash, "clearml": lambda run: run.id, "mlflow": lambda run: run.info.run_id}
    return str(ids[tracker.name](tracker.tracker)) if tracker.name in ids else None


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
