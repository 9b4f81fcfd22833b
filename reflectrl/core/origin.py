"""``Origin``: date, commit, versions and machine of a run folder's creation, recorded for information only."""

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

from reflectrl.core.jsonl import decode, read_json
from reflectrl.core.layout import LEDGER
from reflectrl.core.version import WRITTEN_BY, Writer, this_version

PACKAGES = ("torch", "transformers", "trl", "peft")
ENVIRONMENT = ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that influence rounding."""


@dataclass(frozen=True)
class Origin(Writer):
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

    Pages (``*.md``) and ``docs/`` are no code. Empty where git does not track the folder, such as an installed package
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
