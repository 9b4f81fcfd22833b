"""The run folder: where everything of one experiment lies, and which stages of it are done.

runs/<name>/  recipe.yaml  stages.json  calls/  dataset/  data/  sft/  base/  reflector/  policy-sft/  policy/
              checkpoints/  failures/  trackers/  trajectories/  metrics.jsonl  throughput.jsonl  eval.jsonl
              report.html
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reflectrl.config import Recipe, dump_recipe, load_recipe
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.files import write_text

STAGES = ("gen-data", "sft", "rlft", "eval")
POLICIES = {"policy": "rlft", "policy-sft": "sft"}
"""Folders of trained policies, the last first, with the stages that make them."""

_READS: Mapping[str, tuple[str, ...]] = {
    "gen-data": ("seed", "env.name", "env.options", "dataset", "prompt", "data"),
    "sft": ("model", "reflector_model", "sft", "players.reflector"),
    "rlft": ("rlft", "players"),
    "eval": ("eval",),
}
"""The parts of the recipe that each stage reads, besides those of the stages before it."""
_NEUTRAL = {
    "concurrency",
    "report_to",
    *(f"endpoint.{key}" for key in ("concurrency", "timeout_s", "max_attempts", "max_rejected", "api_key_env")),
    *(f"endpoint.price{key}" for key in ("", ".prompt", ".completion", ".cached")),
}
"""Parts of a section on which no result depends: how an endpoint is asked and paid, and who else is told of RLFT."""


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {key: leaf for name, part in value.items() for key, leaf in _flat(part, f"{path}.{name}".strip(".")).items()}


def stage_inputs(recipe: Recipe, stage: str) -> dict[str, Any]:
    """Dotted recipe keys that the result of ``stage`` depends on, with their values."""
    prefixes = [name for earlier in STAGES[: STAGES.index(stage) + 1] for name in _READS[earlier]]
    flat = _flat(recipe.model_dump(mode="json"))
    read = {key: value for key, value in flat.items() if any(f"{key}.".startswith(f"{p}.") for p in prefixes)}
    return _of_weight(read)


def _of_weight(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Without what no result depends on, which ledgers of earlier versions hold as well."""
    return {key: value for key, value in inputs.items() if key.partition(".")[2] not in _NEUTRAL}


def _digests(recipe: Recipe, stage: str) -> dict[str, str]:
    """SHA-256 of each file, besides the run's own, that ``stage`` reads."""
    files = recipe.data.demonstrations or () if stage == "gen-data" else ()
    return {file: digest for file in files if (digest := _digest(file)) is not None}


def _digest(file: str) -> str | None:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except (OSError, ValueError):  # not there, and whoever needs it says so
        return None


def process_rank() -> int:
    """0 but for the further processes that `torchrun` starts."""
    return int(os.environ.get("RANK", "0"))


def process_count() -> int:
    """1, or as many as `torchrun` has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is the process that writes what all of them share."""
    return process_rank() == 0


LOCK = ".lock"
"""Held by the process that works in a run folder; it stays there afterwards."""
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn what a disk refuses into a sentence; Rust's libraries tell of it in words only.

    Raises:
        WorkFailed: the disk is full or cannot be written, or ``folder`` was taken away.

    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - tokenizers raises Exception itself; what is not the disk's is raised on
        words = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) else int(words[1]) if words else None
        missed = number == errno.ENOENT or isinstance(error, InvalidInput)
        if missed and is_main_process() and not (folder / LOCK).exists():
            raise _gone(folder) from error
        if number not in _OF_THE_DISK:
            raise
        named = f" of {error.filename}" if isinstance(error, OSError) and error.filename else ""
        raise WorkFailed(
            f"the disk refused to write in {folder}: {os.strerror(number)}{named}. What was there is there still: make "
            "room or mend the permissions, and the same command goes on."
        ) from error


def _gone(folder: Path) -> WorkFailed:
    return WorkFailed(
        f"run folder {folder} is gone: it was moved or removed while a stage was at work in it; put it back, and the "
        "same command goes on."
    )


class RunFolder:
    """One run folder; knows for each stage which inputs it was begun with, and whether it is done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ledger = path / "stages.json"

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one process; the others of a `torchrun` launch rely on the main one.

        Raises:
            InvalidInput: another process works in it, or it cannot be written.

        """
        if not is_main_process():
            yield
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / LOCK).open("w")
        except OSError as error:
            raise InvalidInput(f"run folder {self.path} cannot be written: {error}; choose another --runs.") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InvalidInput(
                    f"another process is working in run folder {self.path}; wait for it or choose another --run."
                ) from error
            yield

    def unfinished(self, stage: str) -> Path:
        """Where ``stage`` notes what it has done so far."""
        return self.path / f"{stage}.partial.jsonl"

    def is_done(self, stage: str) -> bool:
        """Whether ``stage`` has finished."""
        return bool(self._read().get(stage, {}).get("done"))

    def done_with(self, stage: str) -> str:
        """In words, for who asks for a finished stage again: did the files that it once read change?

        They are no reason to refuse: what was made of them is here, and somebody may be adding to them every day.
        """
        files = self._read()[stage].get("files", {})
        changed = [file for file, digest in files.items() if _digest(file) not in (None, digest)]
        if not changed:
            return "same inputs"
        return f"with {', '.join(changed)} as it was then; choose another --run to use it as it is now"

    def check(self, recipe: Recipe, stage: str) -> None:
        """Refuse to mix inputs.

        Raises:
            InvalidInput: ``stage`` was begun here with other inputs; names the keys that differ.

        """
        entry = self._read().get(stage)
        if entry is None:
            return
        then, now = _of_weight(entry["inputs"]), stage_inputs(recipe, stage)
        changed = sorted(key for key in {*then, *now} if then.get(key) != now.get(key))
        if changed:
            listed = "; ".join(f"{key}: {then.get(key)!r} -> {now.get(key)!r}" for key in changed[:5])
            raise InvalidInput(
                f"stage {stage!r} of run folder {self.path} was begun with other inputs ({listed}"
                f"{'; ...' if len(changed) > 5 else ''}); choose another --run, or delete the folder to start over."
            )

    def forget(self, stage: str) -> None:
        """Let ``stage`` be done again, from its beginning."""
        self.unfinished(stage).unlink(missing_ok=True)
        ledger = self._read()
        ledger.pop(stage, None)
        self._write(ledger)

    def begin(self, recipe: Recipe, stage: str) -> None:
        """Note the inputs of ``stage``, and the recipe as it was resolved."""
        if not is_main_process():
            return
        write_text(self.path / "recipe.yaml", dump_recipe(recipe))
        files = _digests(recipe, stage)
        self._note(recipe, stage, {"done": False, **({"files": files} if files else {})})

    def finish(self, recipe: Recipe, stage: str, *, wall_seconds: float, cpu_seconds: float) -> None:
        """Note that ``stage`` is done, and what its last start took.

        Raises:
            WorkFailed: the folder was taken away; what lies at its place is a part of it at most.

        """
        if not (self.path / LOCK).exists():
            raise _gone(self.path)
        took = {"wall_seconds": round(wall_seconds, 2), "cpu_seconds": round(cpu_seconds, 2)}
        self._note(recipe, stage, {**self._read().get(stage, {}), "done": True, **took})

    def cpu_seconds(self, stage: str) -> float:
        """Processor time of the last start of a finished stage; unlike wall time, it does not depend on the company."""
        return float(self._read()[stage]["cpu_seconds"])

    def _note(self, recipe: Recipe, stage: str, progress: Mapping[str, Any]) -> None:
        self._write({**self._read(), stage: {**progress, "inputs": stage_inputs(recipe, stage)}})

    def _read(self) -> dict[str, Any]:
        if not self._ledger.exists():
            return {}
        try:
            ledger = json.loads(self._ledger.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise self._no_ledger(str(error)) from error
        if not isinstance(ledger, dict) or not all(map(_is_entry, ledger.values())):
            raise self._no_ledger("expected, for each stage, whether it is done, and its inputs")
        return ledger

    def _no_ledger(self, why: str) -> InvalidInput:
        return InvalidInput(
            f"{self._ledger} is not the ledger of a run folder ({why}); delete the folder to start over, or put back "
            "the file that was there."
        )

    def _write(self, ledger: Mapping[str, Any]) -> None:
        if not is_main_process():
            return
        write_text(self._ledger, json.dumps(ledger, indent=1, sort_keys=True) + "\n")


def _is_entry(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    inside = (value.get("inputs"), value.get("files", {}))
    return isinstance(value.get("done"), bool) and all(isinstance(part, dict) for part in inside)


def read_recipe(run: Path) -> Recipe:
    """The recipe of a run folder, or of an exported agent.

    Raises:
        InvalidInput: ``run`` is neither.

    """
    path = run / "recipe.yaml"
    if not path.is_file():
        raise InvalidInput(f"{run} is no run folder (it has no recipe.yaml); expected one that `reflectrl run` made.")
    return load_recipe(str(path))


def last_policy(recipe: Recipe, run: Path) -> str:
    """Name of the folder of the last policy that ``run`` has.

    Raises:
        InvalidInput: it has none yet.

    """
    for name in POLICIES:
        if (run / name).is_dir():
            return name
    first = POLICIES["policy-sft" if recipe.sft.enabled else "policy"]
    raise InvalidInput(f"{run} is not finished, it has no policy yet; run `reflectrl {first}` for it first.")
