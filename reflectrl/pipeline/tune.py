"""Searches: settings of a recipe that Optuna proposes, each tried in its own run folder and process.

The study is a file in the folder of the search. A trial is claimed with a lock that its process inherits, so that
several searches may share the folder, and the trials of one that is killed are left to whoever claims them next. A
trial that fails is not recorded as failed, so that the next call tries it again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from reflectrl.config import Recipe, check_recipe, load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.files import open_regular
from reflectrl.core.jsonl import read_jsonl
from reflectrl.core.run_files import METRICS, POLICY
from reflectrl.core.seeds import derive_seed
from reflectrl.core.text import first_line
from reflectrl.pipeline.console import Reporter
from reflectrl.pipeline.inputs import changed_inputs, stage_inputs
from reflectrl.pipeline.sweep import POLL_SECONDS, PlannedRun, Worker, read_values, shared_environment
from reflectrl.rollout.results import read_validated

JOURNAL = "optuna.journal"
"""File of the study, which ``optuna-dashboard`` shows; lines of JSON, since only Optuna's other backends pickle."""
_CLAIM = ".claim"
"""Lock file: in the folder of the search, of whoever looks for a trial; in a run folder, of whoever works on it."""
_UNTIL_RLFT = ("--until", "rlft")


@dataclass(frozen=True)
class Search:
    """What is searched, and where."""

    folder: Path
    """Folder of the study and of the trials' run folders."""
    recipe: str
    space: Mapping[str, BaseDistribution]
    """Distribution of each recipe key that is searched, see ``read_space``."""
    overrides: Sequence[str] = ()
    """Changes to the recipe that all trials share."""
    arm: str | None = None
    """Arm of the recipe; ``None`` for the recipe itself."""

    def planned(self, number: int, settings: Mapping[str, object]) -> PlannedRun:
        """Return the run of a trial."""
        changes = (f"{key}={value}" for key, value in settings.items())
        return PlannedRun(self.folder / f"trial-{number:04d}", self.recipe, (*self.overrides, *changes), arm=self.arm)


@dataclass(frozen=True)
class Tried:
    """A trial that is finished, or that has failed in this call."""

    run: PlannedRun
    settings: Mapping[str, object]
    """Values of the keys that are searched."""
    success: float | None
    """Success rate with sampled actions of the weights that RLFT kept, on split ``validation``; that of the last
    validation for a trial that was pruned; ``None`` for one that failed or was pruned before any."""
    end: str
    """``complete``, ``pruned`` or ``fail``."""


def read_space(text: str) -> tuple[str, BaseDistribution]:
    """Read a key and its values: ``KEY=LOW..HIGH``, ``KEY=LOW..HIGH:log`` or ``KEY=A,B``.

    Two integers are the ends of a range of integers, both included.

    Raises:
        InvalidInput: no key, no value, or ends that are no range.
    """
    key, values = read_values(text, "--space")
    ends = re.fullmatch(r"([^.,\[{].*?)\.\.([^.].*?)(:log)?", values[0]) if len(values) == 1 else None
    if ends is None:
        return key, CategoricalDistribution(values)
    log = ends[3] is not None
    try:
        if all(re.fullmatch(r"-?\d+", end) for end in ends.group(1, 2)):
            return key, IntDistribution(int(ends[1]), int(ends[2]), log=log)
        return key, FloatDistribution(float(ends[1]), float(ends[2]), log=log)
    except ValueError as error:
        raise InvalidInput(
            f"--space {text} was given; expected rising numbers, above 0 for a log scale, such as "
            "rlft.learning_rate=1e-4..1e-2:log."
        ) from error


def check_search(search: Search) -> Recipe:
    """Check the recipe with the ends of every range and every choice, and return it with the first of each.

    Raises:
        InvalidInput: a key that is set twice, a recipe with mistakes, or one without validation.
    """
    given = {each.partition("=")[0] for each in search.overrides}
    if twice := given & {*search.space}:
        raise InvalidInput(f"{min(twice)} is set twice, by --space and once more; give it once.")
    first = {key: _extremes(space)[0] for key, space in search.space.items()}
    for key, space in search.space.items():
        for value in _extremes(space):
            recipe = _recipe(search, {**first, key: value})
            if recipe.budget is None and (recipe.rlft is None or recipe.rlft.validation is None):
                raise InvalidInput(
                    f"recipe {search.recipe!r} has no rlft.validation, by whose success trials are compared; add "
                    "'rlft.validation={}' to the command."
                )
    return _recipe(search, first)


def _recipe(search: Search, settings: Mapping[str, object]) -> Recipe:
    recipe = load_recipe(search.recipe, search.planned(0, settings).overrides, arm=search.arm)
    check_recipe(recipe)
    return recipe


def _extremes(space: BaseDistribution) -> Sequence[object]:
    if isinstance(space, CategoricalDistribution):
        return space.choices
    assert isinstance(space, FloatDistribution | IntDistribution)
    return space.low, space.high


def tune(search: Search, *, trials: int, jobs: int, reporter: Reporter, extra: Sequence[str] = ()) -> list[Tried]:
    """Try settings until ``trials`` trials are finished or have failed in this call; return these, the best first.

    A trial that fails goes on in the next call. Trials of earlier calls and of other processes are counted; this
    process works on ``jobs`` at a time. ``extra`` are further options of ``reflectrl run``.

    Raises:
        InvalidInput: as ``check_search``; or the folder has a study of other settings.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study, environment = _Study(search, check_search(search)), shared_environment(jobs)
    working: list[_Trial] = []
    with reporter.stage("tune") as advance:
        try:
            while (done := study.ended()) < trials or working:
                while len(working) < jobs and (claimed := study.claim(trials)) is not None:
                    if study.report_new(claimed):  # pruned before its process was killed
                        study.tell(claimed, reporter)
                    else:
                        claimed.start((*_UNTIL_RLFT, *extra), environment)
                        working.append(claimed)
                for trial in [*working]:
                    ended = trial.ended  # before the report, which must not miss the last lines
                    if study.report_new(trial) and not ended:
                        trial.stop()
                    if ended:
                        working.remove(trial)
                        study.tell(trial, reporter)
                best = study.best
                advance(min(done, trials), trials, "" if best is None else f"best validation {best:.0%}")
                time.sleep(POLL_SECONDS)
            advance(trials, trials, "" if study.best is None else f"best validation {study.best:.0%}")
        finally:
            for trial in working:  # stopped: each process ends its step and writes a checkpoint
                trial.stop()
            for trial in working:
                trial.release()
    return study.ranked()


@dataclass
class _Trial:
    """A trial that this process has claimed."""

    asked: optuna.Trial
    run: PlannedRun
    claim: IO[str]
    """Lock file, which the process of the trial holds as well."""
    worker: Worker | None = None
    steps: dict[int, float] = field(default_factory=dict)
    """Validation success that was reported, by iteration."""
    pruned: bool = False
    stopped: bool = False

    def start(self, extra: Sequence[str], environment: Mapping[str, str]) -> None:
        self.worker = Worker(self.run, extra, environment, holds=(self.claim.fileno(),))

    @property
    def ended(self) -> bool:
        return self.worker is not None and self.worker.process.poll() is not None

    def stop(self) -> None:
        """Request a stop, once: a second request would end the process without a checkpoint."""
        if self.worker is not None and not self.stopped:
            self.worker.stop()
            self.stopped = True

    def release(self) -> None:
        if self.worker is not None:
            self.worker.process.wait()
            self.worker.log.close()
        self.claim.close()


class _Study:
    """Optuna's study in the folder of a search."""

    def __init__(self, search: Search, recipe: Recipe) -> None:
        self._search, self._seed = search, recipe.seed
        self._failed: set[int] = set()
        journal = search.folder / JOURNAL
        try:
            search.folder.mkdir(parents=True, exist_ok=True)
            if journal.exists():
                open_regular(journal).close()
        except OSError as error:
            raise InvalidInput(
                f"--out {search.folder} was given, but {error.filename or journal} cannot be used ({error.strerror}); "
                "choose another folder."
            ) from error
        with self._alone():
            try:
                self._study = optuna.create_study(
                    study_name="reflectrl",
                    storage=JournalStorage(JournalFileBackend(str(journal))),
                    pruner=optuna.pruners.MedianPruner(),
                    direction="maximize",
                    load_if_exists=True,
                )
            except (ValueError, LookupError, TypeError) as error:
                raise InvalidInput(
                    f"{journal} holds no study that can be read ({first_line(error)}); put back the file that was "
                    "there, or choose another --out."
                ) from error
            self._check(recipe)

    def _check(self, recipe: Recipe) -> None:
        """Record what the study is about, or refuse another search than that with which it was begun."""
        space = {
            key: json.loads(optuna.distributions.distribution_to_json(each)) for key, each in self._search.space.items()
        }
        begun = self._study.user_attrs
        if not begun:
            self._study.set_user_attr("about", {"space": space, "inputs": stage_inputs(recipe, "rlft")})
            return
        then = begun["about"]["space"]
        others = [] if then == space else ["--space"]
        changed = changed_inputs(recipe, "rlft", begun["about"]["inputs"])
        others += [key for key, _, _ in changed if key not in {*space, *then}]
        if others:
            raise InvalidInput(
                f"the search in {self._search.folder} was begun with other settings ({', '.join(others)}); choose "
                "another --out, or delete the folder to start over."
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with (self._search.folder / _CLAIM).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _ended(self) -> list[FrozenTrial]:
        return [each for each in self._trials() if each.state.is_finished() or each.number in self._failed]

    def ended(self) -> int:
        """Return the number of trials that are finished or have failed in this call."""
        return len(self._ended())

    @property
    def best(self) -> float | None:
        """Highest success of a complete trial."""
        return max((each.value or 0.0 for each in self._trials() if each.state == TrialState.COMPLETE), default=None)

    def claim(self, trials: int) -> _Trial | None:
        """Return a trial that nobody works on: one that was left, or a new one if there are fewer than ``trials``."""
        with self._alone():
            known = self._trials()
            left = [each for each in known if not (each.state.is_finished() or each.number in self._failed)]
            for number in (*(each.number for each in left), *range(len(known), min(len(known) + 1, trials))):
                folder = self._search.planned(number, {}).folder
                folder.mkdir(exist_ok=True)
                claim = (folder / _CLAIM).open("w")
                try:
                    fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    claim.close()
                    continue
                return self._asked(number, known[number] if number < len(known) else None, claim)
        return None

    def _asked(self, number: int, left: FrozenTrial | None, claim: IO[str]) -> _Trial:
        # a sampler for each trial, so that a search that was killed proposes what it would have
        self._study.sampler = optuna.samplers.TPESampler(seed=derive_seed(self._seed, "tune", number))
        asked = self._study.ask() if left is None else optuna.Trial(self._study, left._trial_id)
        settings = {key: _suggested(asked, key, space) for key, space in self._search.space.items()}
        trial = _Trial(asked, self._search.planned(number, settings), claim)
        if left is not None and left.intermediate_values:
            trial.steps |= left.intermediate_values
            trial.pruned = asked.should_prune()
        return trial

    def report_new(self, trial: _Trial) -> bool:
        """Report the validations of a trial that are new; return whether the trial is to be pruned."""
        path = trial.run.folder / METRICS
        for _, line in read_jsonl(path, skip_unfinished=True) if path.is_file() else ():
            if trial.pruned or not isinstance(line, dict):
                break
            step, success = line["iteration"], line["validation_success"]
            if success is not None and step not in trial.steps:
                trial.steps[step] = success
                trial.asked.report(success, step)
                trial.pruned = trial.asked.should_prune()
        return trial.pruned

    def tell(self, trial: _Trial, reporter: Reporter) -> None:
        """Record and print how a trial has ended."""
        worker, validated = trial.worker, read_validated(trial.run.folder / POLICY)
        said = worker.sentence() if worker is not None else trial.run.folder.name
        if trial.pruned:
            self._study.tell(trial.asked, state=TrialState.PRUNED)
            last = max(trial.steps)
            said = f"{trial.run.folder.name}  pruned after iteration {last}: validation {trial.steps[last]:.0%}"
        elif worker is None or worker.process.returncode or validated is None:
            self._failed.add(trial.asked.number)
        else:
            self._study.tell(trial.asked, validated.sampled)
            said += f"  validation {validated.sampled:.0%}"
        reporter.line(said)
        trial.release()

    def ranked(self) -> list[Tried]:
        """Return the ended trials, the best first; of equal ones, the earlier first, complete ones before others."""
        tried = [
            Tried(
                self._search.planned(each.number, each.params),
                each.params,
                each.value,
                each.state.name.lower() if each.state.is_finished() else "fail",
            )
            for each in self._ended()
        ]
        return sorted(tried, key=lambda each: (each.end != "complete", -(each.success or 0.0)))


def _suggested(trial: optuna.Trial, key: str, space: BaseDistribution) -> object:
    """Return the value of a key in a trial, proposed now or when the trial was begun."""
    if isinstance(space, CategoricalDistribution):
        return trial.suggest_categorical(key, space.choices)
    if isinstance(space, IntDistribution):
        return trial.suggest_int(key, space.low, space.high, log=space.log)
    assert isinstance(space, FloatDistribution)
    return trial.suggest_float(key, space.low, space.high, log=space.log)
