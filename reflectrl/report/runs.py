"""``RunData``: the contents of a run folder, read for display. Nothing here writes into it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from reflectrl.config.spending import endpoints_of
from reflectrl.config.training import RLFTSettings
from reflectrl.config.yaml_text import read_yaml
from reflectrl.core import InvalidInput
from reflectrl.core.addresses import dotted, is_private, section_at, without_credentials
from reflectrl.core.files import read_text
from reflectrl.core.jsonl import decode, read_jsonl
from reflectrl.core.origin import Ledger, Origin, read_origin
from reflectrl.core.run_files import (
    CALLS,
    METRICS,
    POLICY,
    RATINGS,
    RESULTS,
    STAGES,
    THROUGHPUT,
    TRIALS,
    sft_training_file,
)
from reflectrl.endpoint.account import Price, of_role
from reflectrl.endpoint.journal import REJECTED, REPLIES, read_replies
from reflectrl.rollout.agreement import Ratings
from reflectrl.rollout.iteration import Iteration, SFTProgress, Throughput
from reflectrl.rollout.results import EvalRow, TrialRow, Validated, read_results, read_trials, read_validated

T = TypeVar("T")

MAX_NUMBER = 1e12
"""Largest absolute value of a metric; curves over larger ones could not be drawn."""


@dataclass(frozen=True)
class StageTime:
    """Times of a stage in ``stages.json``."""

    name: str
    done: bool
    wall_seconds: float
    """Wall seconds of all its starts, except those that were killed."""
    cpu_seconds: float


@dataclass(frozen=True)
class Calls:
    """Replies to the calls of one role."""

    role: str
    model: str
    """Name of the model; empty where the recipe does not say."""
    replies: int
    rejected: int
    """Calls that were set aside without a usable reply."""
    lenient: int
    """Replies that were read leniently: a label in other words, or the whole sentences before the cut."""
    unanswered: int
    """Requests without a reply; ``dollars`` has the most that they may have cost, and the tokens are not counted."""
    prompt_tokens: int
    completion_tokens: int
    dollars: float | None
    """Cost in USD; ``None`` without a price in the recipe, but 0 for a server on the user's machine or its network."""


@dataclass(frozen=True, eq=False)
class RunData:
    """One run folder, as it was when it was read; a part whose stage has not run yet is empty."""

    name: str
    """Name of the run folder; the path as given where several runs have that name."""
    path: Path
    recipe: str
    """Text of ``recipe.yaml``, without credentials in addresses."""
    rows: tuple[EvalRow, ...]
    points: tuple[Iteration, ...]
    """Lines of ``metrics.jsonl``."""
    paces: tuple[Throughput, ...]
    """Lines of ``throughput.jsonl``, in the order of the iterations."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The recipe by dotted keys; empty for a foreign or damaged one."""
    episodes: int = 0
    """Fresh episodes an iteration, on one process; 0 where the recipe does not say."""
    gamma: float = RLFTSettings.gamma
    """Discount factor of the rewards-to-go."""
    reflector: str = "local"
    """``players.reflector.player`` of the recipe."""
    seed: int | None = None
    """Seed of the recipe; ``None`` where it does not say."""
    origin: Origin | None = None
    """Origin of the run; ``None`` where none is recorded."""
    times: tuple[StageTime, ...] = ()
    calls: tuple[Calls, ...] = ()
    ratings: tuple[Ratings, ...] = ()
    """Lines of ``ratings.jsonl``; empty without a rater."""
    trials: tuple[TrialRow, ...] = ()
    """Lines of ``trials.jsonl``; empty for an evaluation without trials."""
    sft: Mapping[str, tuple[SFTProgress, ...]] = field(default_factory=dict)
    """Checks of supervised fine-tuning, by player: ``reflector`` and ``policy``, also of a single player. A player that
    was not trained, or without held-out rows, is absent."""
    validated: Validated | None = None
    """Validation of the weights that RLFT has kept; ``None`` if there was none, or before its end."""

    @property
    def own_rows(self) -> list[EvalRow]:
        """The rows of all tasks of a split, with the recipe's own reflections; no controls and no other reflectors."""
        return [row for row in self.rows if row.reflections in (self.reflector, "none") and not row.group]

    @property
    def outdated_rows(self) -> bool:
        """True if the rows are of an earlier evaluation than the one that the recipe describes, which is unfinished."""
        return bool(self.rows) and any(time.name == "eval" and not time.done for time in self.times)


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """Read run folders; one that is given twice is read once.

    Raises:
        InvalidInput: no folder was given, or one is not a run folder or holds a damaged file, or results of
            another policy.

    """
    if not paths:
        raise InvalidInput("no run folder was given; expected at least one, such as runs/nano.")
    folders = {path.resolve(): path for path in paths}
    times = Counter(folder.name for folder in folders)
    runs = []
    for folder, path in folders.items():
        runs.append(read_run(folder, folder.name if times[folder.name] == 1 else str(path)))
    return runs


def read_run(path: Path, name: str) -> RunData:
    """Read one run folder, also while its stages write; ``name`` is what it is called.

    Raises:
        InvalidInput: it is not a run folder or holds a damaged file, or results of another policy.

    """
    ledger = Ledger(path)
    if not (given := ledger.recipe()).exists():
        raise InvalidInput(
            f"{path} is not a run folder (it has no {given.name}); expected one that `reflectrl run` made."
        )
    recipe = without_credentials(read_text(given, "the recipe of this run folder"))
    if others := ledger.exchanged():
        raise InvalidInput(
            f"{path}: {' and '.join(others)} changed since the evaluation; run `reflectrl eval` for this run, which "
            "evaluates it again."
        )
    results, trials = (ledger.verify(file) if (path / file).is_file() else None for file in (RESULTS, TRIALS))
    values = _values(recipe)
    rlft, endpoints = section_at(values, "rlft"), endpoints_of(values)
    return RunData(
        name,
        path,
        recipe,
        tuple(read_results(results)) if results else (),
        _records(ledger, path, METRICS, Iteration),
        _records(ledger, path, THROUGHPUT, Throughput),
        settings=dotted(values),
        episodes=int(_number(rlft, "episodes")),
        gamma=_number(rlft, "gamma", RLFTSettings.gamma),
        reflector=str(section_at(values, "players.reflector").get("player", RunData.reflector)),
        seed=values["seed"] if isinstance(values.get("seed"), int) else None,
        origin=read_origin(path),
        times=_stage_times(ledger.stages),
        calls=tuple(_calls(each.parent, endpoints) for each in sorted((path / CALLS).glob(f"*/{REPLIES}"))),
        ratings=_records(ledger, path, RATINGS, Ratings),
        trials=tuple(read_trials(trials)) if trials else (),
        sft={
            player: checks
            for player in ("reflector", "policy")
            if (checks := _records(ledger, path, sft_training_file(player), SFTProgress))
        },
        validated=read_validated(path / POLICY),
    )


def _records(ledger: Ledger, run: Path, file: str, kind: type[T]) -> tuple[T, ...]:
    """Return the lines of a file that grows; a stage that is not done may be writing the last one."""
    if not (run / file).is_file():
        return ()
    records = []
    for where, value in read_jsonl(ledger.verify(file), skip_unfinished=file not in ledger.made):
        record = decode(kind, value, where)
        if any(abs(found) > MAX_NUMBER for found in vars(record).values() if isinstance(found, int | float)):
            raise InvalidInput(f"{where} holds a number beyond {MAX_NUMBER:g}; remove the line, or train again.")
        records.append(record)
    return tuple(records)


def _values(recipe: str) -> Mapping[str, Any]:
    """Return the values of a recipe; empty for a foreign or damaged one, which is still shown as text."""
    try:
        values, _ = read_yaml(recipe, "recipe")
    except InvalidInput:
        return {}
    return values if isinstance(values, dict) else {}


def _stage_times(ledger: Mapping[str, Any]) -> tuple[StageTime, ...]:
    return tuple(
        StageTime(name, entry.get("done") is True, _number(entry, "wall_seconds"), _number(entry, "cpu_seconds"))
        for name in STAGES
        if isinstance(entry := ledger.get(name), dict)
    )


def _calls(folder: Path, endpoints: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Calls:
    lines = read_replies(folder)
    paid = [line for line in lines if line.text is not None or (line.tokens.prompt and not line.sent)]
    unanswered = [line for line in lines if line.sent]  # the other lines revoke a reply
    _, endpoint = of_role(endpoints, folder.name) or ("", {})
    own = isinstance(url := endpoint.get("base_url"), str) and is_private(url)
    price = _price(section_at(endpoint, "price")) or (Price(0.0, 0.0) if own else None)
    rejected = folder / REJECTED
    return Calls(
        role=folder.name,
        model=endpoint["model"] if isinstance(endpoint.get("model"), str) else "",
        replies=len(paid),
        rejected=sum(1 for _ in read_jsonl(rejected, skip_unfinished=True)) if rejected.is_file() else 0,
        lenient=sum(bool(reply.words) for reply in paid),
        unanswered=len(unanswered),
        prompt_tokens=sum(reply.tokens.prompt for reply in paid),
        completion_tokens=sum(reply.tokens.completion for reply in paid),
        dollars=None if price is None else sum(line.tokens.cost(price, batch=line.batch) for line in lines),
    )


def _price(section: Mapping[str, Any]) -> Price | None:
    if not isinstance(section.get("prompt"), int | float):
        return None
    cached = _number(section, "cached") if section.get("cached") is not None else None
    return Price(_number(section, "prompt"), _number(section, "completion"), cached)


def _number(values: Mapping[str, Any], name: str, default: float = 0.0) -> float:
    """Return the number called ``name``; ``default`` if there is none, or one beyond ``MAX_NUMBER``."""
    found = values.get(name)
    return float(found) if isinstance(found, int | float) and abs(found) < MAX_NUMBER else default


def total_dollars(calls: Sequence[Calls]) -> float | None:
    """Return the dollars of all roles; ``None`` where the price of one is not known."""
    known = [each.dollars for each in calls if each.dollars is not None]
    return sum(known) if len(known) == len(calls) else None
