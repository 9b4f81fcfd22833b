"""What ``stages.json`` says of a run folder: its origin, and (``Ledger``) the inputs and sizes of what stages made.

A file that is gone or has another size is refused when it is read, and so is an edited recipe. Another file of the same
size is not noticed, except in a policy that was evaluated.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from reflectrl.core.errors import InvalidInput
from reflectrl.core.files import fingerprint, size
from reflectrl.core.jsonl import decode, read_json
from reflectrl.core.run_files import LEDGER, MADE_AGAIN, RECIPE, STAGES

VERSION = "0.2.0.dev0"
"""Version of this package."""
FORMAT = 6
"""Format of the run folders and exports that this version writes and reads."""
WRITTEN_BY = "written_by"
"""Key in ``stages.json`` and ``agent.json`` of the version that wrote the file."""


@dataclass(frozen=True)
class WrittenBy:
    """Version of reflectrl that wrote a folder."""

    format: int
    reflectrl: str


def this_version() -> WrittenBy:
    """Return the writer record of this version."""
    return WrittenBy(FORMAT, VERSION)


def check_format(folder: Path, written_by: object) -> None:
    """Check that ``folder``, whose record of its writer is ``written_by``, has the format of this version.

    Raises:
        InvalidInput: it has another format, or no record.
    """
    given = written_by if isinstance(written_by, dict) else {}
    if given.get("format") != FORMAT:
        raise InvalidInput(
            f"{folder} was written by reflectrl {given.get('reflectrl', 'of an unknown version')} in the format "
            f"{given.get('format', 'without a number')}, but this version reads format {FORMAT}; use the version that "
            "wrote it, or make it again in another folder."
        )


PACKAGES = ("torch", "transformers", "trl", "peft")
ENVIRONMENT = ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that influence rounding."""


@dataclass(frozen=True)
class Origin(WrittenBy):
    """Software and machine with which a run folder was created."""

    date: str
    commit: str
    """Commit of reflectrl if it runs from a checkout, with the suffix ``-dirty`` if files differ from the commit."""
    versions: Mapping[str, str]
    """Versions of Python and of ``PACKAGES``."""
    hardware: str
    environment: Mapping[str, str]
    """Variables of ``ENVIRONMENT`` that were set, with their values."""

    def __str__(self) -> str:
        commit = f" at commit {self.commit}" if self.commit else ""
        versions = "".join(f", {name} {number}" for name, number in self.versions.items())
        settings = "".join(f", {name}={value}" for name, value in self.environment.items())
        return f"{self.date}, reflectrl {self.reflectrl}{commit}{versions}, on {self.hardware}{settings}"


def this_origin() -> Origin:
    """Return the origin of a run folder that is created now."""
    writer = this_version()
    return Origin(
        writer.format,
        writer.reflectrl,
        date.today().isoformat(),
        commit_of(Path(__file__).parent),
        {"Python": platform.python_version(), **_versions()},
        hardware(),
        {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    )


def read_origin(run: Path) -> Origin | None:
    """Return the origin of a run folder; ``None`` without a ledger.

    Raises:
        InvalidInput: the record is damaged.
    """
    path = run / LEDGER
    if not path.exists():
        return None
    return decode(Origin, read_json(path, "the ledger of a run folder").get(WRITTEN_BY), f"{path}, {WRITTEN_BY}")


@cache
def commit_of(folder: Path) -> str:
    """Return the short hash of the commit checked out in ``folder``, with the suffix ``-dirty`` if its code differs.

    Pages (``*.md``) and ``docs/`` are not code. Empty where git does not track the folder, such as an installed package
    inside another repository.
    """
    commit = _git(folder, "rev-parse", "--short", "HEAD")
    if commit is None or _git(folder, "ls-files", "--error-unmatch", ".") is None:
        return ""
    same = _git(folder, "diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)*.md", ":(top,exclude)docs")
    return commit if same is not None else f"{commit}-dirty"


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of a git command; ``None`` if it fails, or there is no git."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def usable_cores() -> int:
    """Return the number of cores that this process may use, or of all cores where the system cannot tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hardware() -> str:
    """Return the name of the processor, the number of cores that this process may use, and the names of the GPUs."""
    cores = usable_cores()
    named = [_named(Path("/proc/cpuinfo"), "model name") or platform.machine()]
    named += [f"{cores} core{'s' if cores > 1 else ''}"]
    named += [_named(path, "Model") for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    return ", ".join(filter(None, named))


def _named(path: Path, key: str) -> str:
    try:
        found = re.search(rf"^{key}\s*:\s*(.+)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


class Ledger:
    """The ledger of ``run``, empty if there is none; raises ``InvalidInput`` if it is damaged or of another format."""

    def __init__(self, run: Path) -> None:
        self._run, self.stages = run, dict[str, Any]()
        if (run / LEDGER).exists():
            self.stages = read_json(run / LEDGER, "the ledger of a run folder: put it back, or delete the folder")
            if not isinstance(self.stages, dict):
                raise self.damaged("expected an object with the stages")
            check_format(run, self.stages.pop(WRITTEN_BY, None))
        made = {stage: self._part(stage, "products", dict[str, int]) for stage in reversed(STAGES)}  # the first maker
        self.made = {name: (stage, then) for stage, sizes in made.items() for name, then in sizes.items()}

    def damaged(self, why: str) -> InvalidInput:
        """Return the error that reports a damaged ledger."""
        return InvalidInput(f"{self._run / LEDGER} is not a ledger ({why}); put it back, or delete the folder.")

    def deleted(self, stage: str) -> list[str]:
        """Return the products of ``stage`` that were deleted and that the stage can make again."""
        made = [name for name, (by, _) in self.made.items() if by == stage and name in MADE_AGAIN]
        return [name for name in made if not (self._run / name).exists()]

    def exchanged(self) -> list[str]:
        """Return the policies that are not those that were evaluated."""
        then = self._part("eval", "policies", dict[str, str])
        return [name for name in then if fingerprint(self._run / name) not in (None, then[name])]

    def verify(self, name: str) -> Path:
        """Return the path of ``name``; raises ``InvalidInput`` for a product that is gone or has another size."""
        path, (stage, then) = self._run / name, self.made.get(name, ("", None))
        now = size(path) if path.exists() else None
        if then not in (None, now):
            what = "is gone" if now is None else f"has {now:,} bytes instead of {then:,}"
            cure = "train in another --run"
            if name in MADE_AGAIN:
                cure = f"{'' if now is None else 'delete it and '}run `reflectrl {stage}`, which makes it again"
            raise InvalidInput(f"{path}, which the stage {stage!r} wrote, {what}; put it back, or {cure}.")
        return path

    def recipe(self) -> Path:
        """Return the path of ``recipe.yaml``; raises ``InvalidInput`` if no stage was done with what it holds.

        While a stage is open, it may be that of the previous command, because the ledger is written first.
        """
        path, entries = self._run / RECIPE, [each for each in self.stages.values() if isinstance(each, dict)]
        known = [each.get("recipe") for each in entries]
        if all(each.get("done") for each in entries) and any(known) and fingerprint(path) not in (None, *known):
            raise InvalidInput(
                f"{path} is not the recipe that the stages of this run were done with: it was edited since. Put back "
                "what was there, or run the stages again in another --run."
            )
        return path

    def _part(self, stage: str, name: str, kind: Any) -> Any:
        entry = self.stages.get(stage)
        given = entry.get(name, {}) if isinstance(entry, dict) else {}
        return decode(kind, given, f"{self._run / LEDGER}, {name} of {stage}")
