"""``RunFolder``: the folder of one experiment and the state of its stages; ``core.run_files`` has the names in it."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from reflectrl.config import Recipe, dump_recipe, load_saved_recipe
from reflectrl.config.agent_file import read_agent_file
from reflectrl.config.trust import remember
from reflectrl.core import InvalidInput, ReflectRLError, WorkFailed
from reflectrl.core.files import fingerprint, open_own, read_text, size, write_text
from reflectrl.core.foreign import message_of
from reflectrl.core.jsonl import encode, read_json
from reflectrl.core.origin import WRITTEN_BY, Ledger, this_origin
from reflectrl.core.run_files import (
    BASE,
    CALLS,
    LEDGER,
    LOCK,
    POLICIES,
    POLICY,
    POLICY_SFT,
    PRODUCTS,
    RECIPE,
    STAGES,
    checkpoints_folder,
    saved_player,
    unfinished_files,
)
from reflectrl.endpoint.journal import REPLIES, read_replies
from reflectrl.pipeline.inputs import changed_inputs, outside_files, stage_inputs
from reflectrl.pipeline.launch import is_main_process

_SECONDS = ("wall_seconds", "cpu_seconds")
"""Keys of the seconds of all starts of a stage, by the clock and of this process."""


_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def clocks() -> tuple[float, float]:
    """Return the time on the clock on the wall and on that of the processor, in seconds."""
    return time.monotonic(), time.process_time()


class CallbackFailed(Exception):
    """Raised for an error of the caller's own function, its argument, which is no error of the run folder."""


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into one sentence, but not a callback's; libraries in Rust report them as text only.

    Raises:
        WorkFailed: the disk is full or cannot be written, or ``folder`` was removed.
    """
    try:
        yield
    except CallbackFailed as failed:
        raise failed.args[0] from failed.args[0].__cause__
    except Exception as error:  # noqa: BLE001 - tokenizers raises Exception itself; other errors are raised again
        words = re.search(r"\(os error (\d+)\)", message_of(error))
        number = error.errno if isinstance(error, OSError) else int(words[1]) if words else None
        missed = number == errno.ENOENT or isinstance(error, InvalidInput)
        if missed and is_main_process() and not (folder / LOCK).exists():
            raise _gone(folder) from error
        if number not in _OF_THE_DISK:
            raise
        named = f" of {error.filename}" if isinstance(error, OSError) and error.filename else ""
        raise WorkFailed(
            f"the disk refused to write in {folder}: {os.strerror(number)}{named}. Earlier files are intact: free "
            "space or fix the permissions, then repeat the command, which continues."
        ) from error


def _gone(folder: Path) -> WorkFailed:
    return WorkFailed(
        f"run folder {folder} is gone: it was moved or removed while a stage was at work in it; put it back, then "
        "repeat the command, which continues."
    )


class RunFolder:
    """One run folder, with a record of the inputs and the state of each stage."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def recorded(self, name: str) -> Path:
        """Return the path of ``name``, which need not exist yet; raises as ``Ledger.verify`` does."""
        return Ledger(self.path).verify(name)

    def verified(self, name: str, made_by: str) -> Path:
        """Return the path of ``name``, a product of the stage ``made_by``.

        Raises:
            InvalidInput: it does not exist, or has another size than it was written with.
        """
        place = saved_player(self.path, name)
        path = place if place == self.path else self.recorded(name)
        if not path.exists():
            raise InvalidInput(f"{path} does not exist; run `reflectrl {made_by}` for this run first.")
        return path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one process; the others of a `torchrun` launch rely on the main one.

        A new folder in which nothing was written, such as that of a dry run, is removed at the end.

        Raises:
            InvalidInput: another process works in it, or it cannot be written.
        """
        if not is_main_process():
            yield
            return
        try:
            is_new = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / LOCK, "w", opener=open_own)  # noqa: PTH123, SIM115 - held below
        except OSError as error:
            raise InvalidInput(f"run folder {self.path} cannot be written: {error}; choose another --runs.") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InvalidInput(
                    f"another process is working in run folder {self.path}; wait for it or choose another --run."
                ) from error
            try:
                yield
            finally:
                if is_new and [file.name for file in self.path.glob("*")] == [LOCK]:
                    (self.path / LOCK).unlink()
                    self.path.rmdir()

    def has_begun(self, stage: str) -> bool:
        """Return whether ``stage`` was ever begun here."""
        return stage in self._read()

    def is_done(self, stage: str) -> bool:
        """Return whether ``stage`` has finished, and the products that later stages need still exist."""
        return bool(self._read().get(stage, {}).get("done")) and not self.deleted(stage)

    def deleted(self, stage: str) -> list[str]:
        """Return the products of a finished ``stage`` that have been deleted, and that it can make again."""
        return Ledger(self.path).deleted(stage) if self._read().get(stage, {}).get("done") else []

    def done_with(self, stage: str) -> str:
        """Describe a finished stage that is requested again: its inputs, or the files that have changed since."""
        if not (changed := self.changed(stage)):
            return "same inputs"
        return f"with {', '.join(changed)} as it was then; choose another --run to use it as it is now"

    def changed(self, stage: str) -> list[str]:
        """Return the files that ``stage`` read and that have changed since: those outside of the run, and policies."""
        files = self._read().get(stage, {}).get("files", {})
        changed = [file for file, then in files.items() if fingerprint(Path(file)) not in (None, then)]
        return changed + (Ledger(self.path).exchanged() if stage == "eval" else [])

    def check(self, recipe: Recipe, stage: str) -> None:
        """Check that ``stage`` was begun with the inputs of ``recipe``, or not begun yet.

        Raises:
            InvalidInput: ``stage`` was begun here with other inputs; names the keys that differ.
        """
        entry = self._read().get(stage)
        if entry is None:
            return
        if stage == "gen-data" and not (entry.get("done") or self._has_made(stage) or self._has_replies()):
            return  # such as an address at which no endpoint is
        if changed := changed_inputs(recipe, stage, entry["inputs"]):
            listed = "; ".join(f"{key}: {json.dumps(then)} -> {json.dumps(now)}" for key, then, now in changed[:5])
            raise InvalidInput(
                f"stage {stage!r} of run folder {self.path} was begun with other inputs ({listed}"
                f"{'; ...' if len(changed) > 5 else ''}); choose another --run, or delete the folder to start over."
            )

    def forget(self, stage: str) -> None:
        """Mark ``stage`` as not done and of no duration, and discard its unfinished parts."""
        self._discard(stage)
        self._update(stage, {"done": False, "products": {}, **dict.fromkeys(_SECONDS, 0.0)})

    def begin(self, recipe: Recipe, stage: str) -> None:
        """Record the inputs of ``stage``, and the resolved recipe."""
        if not is_main_process():
            return
        text, entry = dump_recipe(recipe), self._read().get(stage, {})
        remember(self.path, recipe, text)
        files = _fingerprints({file: Path(file) for file in outside_files(recipe, stage)})
        begun = {
            "done": False,
            "inputs": stage_inputs(recipe, stage),
            "recipe": sha256(text.encode()).hexdigest(),
            **({"files": files} if files else {}),
            **({"policies": _fingerprints({name: self.path / name for name in POLICIES})} if stage == "eval" else {}),
            **{name: entry[name] for name in ("threads", *_SECONDS) if name in entry},
        }
        self._write({**self._read(), stage: begun})
        write_text(self.path / RECIPE, text)

    @contextmanager
    def begun(self, recipe: Recipe, stage: str, *, anew: bool = False) -> Iterator[None]:
        """Begin ``stage``; undo that if it is refused (``InvalidInput``) before it has made anything.

        Args:
            recipe: the recipe, which the folder keeps.
            stage: name of the stage.
            anew: the stage has run here with other inputs, whose results it replaces when it is done; what an
                interrupted start of it has left is removed.
        """
        entry, path = self._read().get(stage), self.path / RECIPE
        before = read_text(path, "the recipe of this run folder") if path.exists() else None
        if anew:
            self._discard(stage)
        self.begin(recipe, stage)
        try:
            yield
        except InvalidInput:
            made = unfinished_files(self.path, stage) if anew else self._has_made(stage)
            if (entry is None or anew) and is_main_process() and not made:
                others = {name: other for name, other in self._read().items() if name != stage}
                self._write(others if entry is None else {**others, stage: entry})
                if before is None:
                    path.unlink()
                else:
                    write_text(path, before)
            raise

    def _discard(self, stage: str) -> None:
        for path in unfinished_files(self.path, stage) if is_main_process() else ():
            path.unlink()

    def _has_made(self, stage: str) -> bool:
        if any(self.path.glob(f"{checkpoints_folder(stage)}*")) or unfinished_files(self.path, stage):
            return True
        # every start of a stage writes the base models again, so they are not work that was done
        return any(not name.startswith(BASE) for name in self._products(stage))

    def _has_replies(self) -> bool:
        found = (self.path / CALLS).glob(f"*/{REPLIES}")
        return any(reply.text is not None for file in found for reply in read_replies(file.parent))

    def threads(self, stage: str, count: int) -> int:
        """Return the number of torch threads that ``stage`` was begun with; a stage that begins now gets ``count``."""
        entry = self._read().get(stage, {})
        if "threads" not in entry and entry:
            self._update(stage, {"threads": count})
        return int(entry.get("threads", count))

    def _products(self, stage: str) -> dict[str, int]:
        """Return the sizes in bytes of what ``stage`` has made, by their paths in the folder."""
        found = (path for pattern in PRODUCTS[stage] for path in sorted(self.path.glob(pattern)))
        return {path.relative_to(self.path).as_posix(): size(path) for path in found}

    def finish(self, recipe: Recipe, stage: str) -> None:
        """Record that ``stage`` is done, and what it made; raises ``WorkFailed`` if the folder is gone."""
        if not (self.path / LOCK).exists():
            raise _gone(self.path)
        self._update(stage, {"done": True, "inputs": stage_inputs(recipe, stage), "products": self._products(stage)})

    @contextmanager
    def timed(self, stage: str, since: tuple[float, float] | None = None) -> Iterator[None]:
        """Add the seconds that the block takes to those of ``stage``, also if it is stopped or fails.

        Only a start that is killed is not counted. ``since`` is ``clocks()`` where the work began before the block.
        """
        wall, cpu = since or clocks()
        try:
            yield
        except BaseException:
            with suppress(ReflectRLError, OSError):  # the error of the block is more important
                self._add_seconds(stage, time.monotonic() - wall, time.process_time() - cpu)
            raise
        self._add_seconds(stage, time.monotonic() - wall, time.process_time() - cpu)

    def due(self, recipe: Recipe, stage: str, began: float, share: float = 1.0) -> float:
        """Return when ``stage``, which goes on since ``began``, has used a ``share`` of the budget that it was left.

        Both are readings of ``time.monotonic``; ``inf`` without a budget.
        """
        if recipe.budget is None:
            return math.inf
        before = self.seconds(until=STAGES[STAGES.index(stage) - 1])
        used = self.seconds(until=stage) - before  # by earlier starts of it
        return began - used + share * (60 * recipe.budget.minutes - before)

    def seconds(self, until: str = STAGES[-1]) -> float:
        """Return the seconds that the stages up to ``until`` have taken so far."""
        done, ledger = STAGES[: STAGES.index(until) + 1], self._read()
        return float(sum(ledger.get(stage, {}).get(_SECONDS[0], 0.0) for stage in done))

    def _add_seconds(self, stage: str, *seconds: float) -> None:
        entry = self._read().get(stage)
        if entry is not None:  # a dry run begins no stage
            more = zip(_SECONDS, seconds, strict=True)
            self._update(stage, {name: round(entry.get(name, 0.0) + added, 2) for name, added in more})

    def _update(self, stage: str, change: Mapping[str, Any]) -> None:
        ledger = self._read()
        self._write({**ledger, stage: {**ledger.get(stage, {}), **change}})

    def _read(self) -> dict[str, Any]:
        ledger = Ledger(self.path)
        if not all(map(_is_entry, ledger.stages.values())):
            raise ledger.damaged("expected, for each stage, whether it is done, and its inputs")
        return ledger.stages

    def _write(self, ledger: Mapping[str, Any]) -> None:
        if not is_main_process():
            return
        path = self.path / LEDGER
        writer = read_json(path, "a ledger")[WRITTEN_BY] if path.exists() else encode(this_origin())  # the first one
        write_text(path, json.dumps({WRITTEN_BY: writer, **ledger}, indent=1, sort_keys=True) + "\n")


def _is_entry(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    inside = (value.get("inputs"), value.get("files", {}))
    return isinstance(value.get("done"), bool) and all(isinstance(part, dict) for part in inside)


def _fingerprints(paths: Mapping[str, Path]) -> dict[str, str]:
    # missing inputs are reported where they are read
    return {name: found for name, path in paths.items() if (found := fingerprint(path)) is not None}


def read_recipe(run: Path, *, hosts: Collection[str] = (), given: Collection[str] | None = ()) -> Recipe:
    """Return the recipe of a run folder or of an exported agent; ``hosts`` and ``given`` as in ``load_saved_recipe``.

    Raises:
        InvalidInput: ``run`` is neither, its recipe was edited since its stages were done, or ``load_saved_recipe``
            refuses it.
    """
    read_agent_file(run)  # refuses the export of another format
    path = Ledger(run).recipe()
    if not path.is_file():
        raise InvalidInput(f"{run} is not a run folder (it has no {RECIPE}); expected one that `reflectrl run` made.")
    return load_saved_recipe(path, hosts=hosts, given=given)


def last_policy(recipe: Recipe, run: Path) -> str:
    """Return the name of the folder of the last policy that ``run`` has, or should have.

    Raises:
        InvalidInput: it has none yet.
    """
    ledger = Ledger(run)
    for name in POLICIES:
        if saved_player(run, name).is_dir() or name in ledger.made:
            return name
    first = POLICIES[POLICY_SFT if recipe.sft.enabled else POLICY]
    raise InvalidInput(f"{run} is not finished, it has no policy yet; run `reflectrl {first}` for it first.")
