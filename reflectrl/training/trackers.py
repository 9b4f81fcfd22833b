"""Experiment trackers: they receive the metrics of each RLFT iteration and, at intervals, a few of its episodes.

The trackers are called directly, because the ``report_to`` callbacks of transformers prefix every name with ``train/``,
count optimizer steps instead of iterations, send neither recipe nor episodes, and start a new run when a killed run is
resumed.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from reflectrl.config import Recipe, dump_recipe
from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.files import write_text
from reflectrl.core.layout import TRACKERS
from reflectrl.core.metric import metrics_of
from reflectrl.core.stop import tell_user
from reflectrl.core.text import first_line
from reflectrl.rollout.iteration import Iteration, Throughput

NAMES = {field: metric.tracked for record in (Iteration, Throughput) for field, metric in metrics_of(record).items()}
"""Names of metrics in the trackers, keyed by field name."""
PROJECT = "reflectrl"
"""Project in the tracker, unless WANDB_PROJECT or TRACKIO_PROJECT names another."""
MAX_EPISODES = 3
"""Maximum number of episodes of an iteration that are sent."""
_MAX_CHARACTERS = 20_000
"""Maximum number of characters of an episode that are sent."""


@dataclass(frozen=True)
class ShownEpisode:
    """A row of the table of episodes."""

    iteration: int
    stage: str
    task: str
    outcome: str
    episode_return: float
    text: str


class Tracker(Protocol):
    """One run in one tracker, whose x-axis is the iteration."""

    def log(self, iteration: int, numbers: Mapping[str, Any]) -> None:
        """Send the metrics of an iteration."""

    def show(self, iteration: int, episodes: Sequence[ShownEpisode]) -> None:
        """Send episodes of an iteration."""

    def close(self, *, failed: bool = False) -> None:
        """Send buffered data and close the run, as one that failed where the tracker has such a state."""


class Tracking:
    """Sender of each iteration to a tracker.

    Args:
        tracker: the tracker.
        every: number of iterations between those whose episodes are sent.

    """

    def __init__(self, tracker: Tracker, every: int) -> None:
        self._tracker = tracker
        self._every = every

    def add(self, done: Iteration, throughput: Throughput, episodes: Sequence[Trajectory]) -> None:
        """Send an iteration and its speed and, every ``every`` iterations, some of its episodes."""
        numbers = {**asdict(done), **asdict(throughput)}
        known = {NAMES[name]: number for name, number in numbers.items() if name in NAMES and number is not None}
        groups = {f"rollout/{name}": success for name, success in done.by_group.items()}
        self._tracker.log(done.iteration, {**known, **groups})
        if episodes and done.iteration % self._every == 0:
            self._tracker.show(done.iteration, [_shown(done, episode) for episode in episodes[:MAX_EPISODES]])


def _shown(done: Iteration, episode: Trajectory) -> ShownEpisode:
    end = episode.outcome, episode.episode_return, transcript(episode)
    return ShownEpisode(done.iteration, done.stage, episode.task.id, *end)


def check_tracker(recipe: Recipe) -> None:
    """Refuse a recipe whose tracker is not installed or wants a login, for which wandb asks in a terminal.

    Raises:
        InvalidInput: the tracker is not installed, or there is no login that its server accepts.

    """
    name = recipe.rlft.report_to if recipe.rlft else "none"
    if name == "none":
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:  # a plain folder of that name, such as ./wandb, has no origin
        raise InvalidInput(
            f"rlft.report_to is {name!r}, but {name} is not installed; run pip install {name}, or set "
            "rlft.report_to=none."
        )
    if name == "wandb":
        import wandb

        with _wandb_starts():
            wandb.login(verify=True)


@contextlib.contextmanager
def _wandb_starts() -> Iterator[None]:
    from wandb.errors import Error

    try:
        yield
    except Error as error:
        raise InvalidInput(
            f"wandb does not start ({first_line(error)}); log in with `wandb login` or WANDB_API_KEY, keep the run "
            "here with WANDB_MODE=offline, or set rlft.report_to=none."
        ) from error


@contextlib.contextmanager
def tracking(recipe: Recipe, run: Path, first: int) -> Iterator[Tracking | None]:
    """Open the tracker that a recipe names, if any; it writes below ``trackers`` of the run folder.

    Args:
        recipe: the recipe, which is sent to the tracker as well.
        run: the run folder, which gives the tracker's run its name.
        first: the iteration with which training starts or resumes; iterations from there on that were sent before are
            replaced, or sent again with the same numbers.

    Raises:
        InvalidInput: the tracker refuses to start.

    """
    if recipe.rlft is None or recipe.rlft.report_to == "none":
        yield None
        return
    folder = run.resolve() / TRACKERS
    folder.mkdir(parents=True, exist_ok=True)
    tracker = _TRACKERS[recipe.rlft.report_to](recipe, folder, run.resolve().name, first)
    try:
        yield Tracking(tracker, recipe.rlft.save_every)
    except BaseException:
        tracker.close(failed=True)
        raise
    tracker.close()


class _TensorBoard:
    """Event files of TensorBoard; iterations that are repeated after a kill are hidden in the old file."""

    def __init__(self, recipe: Recipe, folder: Path, name: str, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard" / name), purge_step=first)
        self._writer.add_text("recipe", _as_code(dump_recipe(recipe)), first)

    def log(self, iteration: int, numbers: Mapping[str, float]) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, iteration)
        self._writer.flush()

    def show(self, iteration: int, episodes: Sequence[ShownEpisode]) -> None:
        for number, episode in enumerate(episodes):
            head = f"{episode.stage}, task {episode.task}: {episode.outcome}, return {episode.episode_return:+.2f}"
            self._writer.add_text(f"episodes/{number}", _as_code(f"{head}\n\n{episode.text}"), iteration)
        self._writer.flush()

    def close(self, *, failed: bool = False) -> None:  # noqa: ARG002 - there is no such state
        self._writer.close()


class _WandB:
    """A run of Weights & Biases; a killed run resumes under its id, which is stored in the run folder."""

    def __init__(self, recipe: Recipe, folder: Path, name: str, first: int) -> None:  # noqa: ARG002
        import wandb

        kept = folder / "wandb-id"
        if not kept.is_file():
            write_text(kept, secrets.token_hex(4))
        self._table = wandb.Table
        with _wandb_starts():
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or PROJECT,
                id=kept.read_text(encoding="utf-8").strip(),
                dir=folder,
                settings=wandb.Settings(console="off"),
                **_beginning(recipe, name),
            )

    def log(self, iteration: int, numbers: Mapping[str, Any]) -> None:
        if iteration >= self._run.step:  # an earlier one was sent before the run was killed
            self._run.log(dict(numbers), step=iteration)

    def show(self, iteration: int, episodes: Sequence[ShownEpisode]) -> None:
        self.log(iteration, {"episodes": self._table(**_rows(episodes))})

    def close(self, *, failed: bool = False) -> None:
        self._run.finish(exit_code=int(failed))


class _Trackio:
    """A run of trackio, in a database of the run folder unless TRACKIO_DIR names another place."""

    def __init__(self, recipe: Recipe, folder: Path, name: str, first: int) -> None:  # noqa: ARG002
        os.environ.setdefault("TRACKIO_DIR", str(folder / "trackio"))
        import trackio

        self._trackio = trackio
        project = os.environ.get("TRACKIO_PROJECT") or PROJECT
        is_here = not any(map(os.environ.get, ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")))
        # stdout holds results only; and the command that trackio prints would look in another folder
        self._said = io.StringIO() if is_here else sys.stderr
        try:
            with contextlib.redirect_stdout(self._said):
                self._run = trackio.init(project=project, embed=False, **_beginning(recipe, name))
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"trackio does not start ({first_line(error)}); fix that, or set rlft.report_to=none."
            ) from error
        if is_here:
            place = shlex.quote(str(trackio.utils.TRACKIO_DIR))  # the first run of a process has set it
            tell_user(f"trackio shows this run: TRACKIO_DIR={place} trackio show --project {shlex.quote(project)}")

    def log(self, iteration: int, numbers: Mapping[str, Any]) -> None:
        self._run.log(dict(numbers), step=iteration)

    def show(self, iteration: int, episodes: Sequence[ShownEpisode]) -> None:
        shown = [replace(episode, text=_as_code(episode.text)) for episode in episodes]
        self.log(iteration, {"episodes": self._trackio.Table(**_rows(shown))})

    def close(self, *, failed: bool = False) -> None:  # noqa: ARG002 - there is no such state
        with contextlib.redirect_stdout(self._said):
            self._trackio.finish()


def _beginning(recipe: Recipe, name: str) -> dict[str, Any]:
    """Return the arguments with which runs of wandb and trackio start or resume."""
    return {"name": name, "resume": "allow", "config": recipe.model_dump(mode="json")}


def _rows(episodes: Sequence[ShownEpisode]) -> dict[str, Any]:
    rows = [[*asdict(episode).values()] for episode in episodes]
    return {"columns": [*ShownEpisode.__annotations__], "data": rows}


_TRACKERS: Mapping[str, Callable[[Recipe, Path, str, int], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "trackio": _Trackio,
}


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
