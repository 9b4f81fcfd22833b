"""The doctor command: installed and missing packages, programs and keys, with advice."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

import typer

from reflectrl.cli.terminal import say
from reflectrl.core.origin import usable_cores

if TYPE_CHECKING:
    from packaging.requirements import Requirement

KEYS = {
    "OPENAI_API_KEY": "chat models of OpenAI and of compatible servers",
    "AZURE_OPENAI_API_KEY": "dangerous_taxi/azure_teacher",
    "GEMINI_API_KEY": "vtifa/paper",
    "HF_TOKEN": "models of the hub that need a login, and export --push-to-hub",
    "WANDB_API_KEY": "report_to=wandb",
}
"""Environment variables that hold secrets; their values are never printed."""
TRACKERS = ("tensorboard", "trackio", "wandb")
PROGRAMS = {
    "bwrap": "python and pip in the sandbox of AutoExplore: apt-get install bubblewrap",
    "git": "git addresses as repositories of AutoExplore: apt-get install git",
    "g++": "installing the extra alfworld, once: apt-get install build-essential",
}
PIP = "models and repositories from a package index (package:, pypi:): python -m ensurepip"
SECCOMP = "python and pip in the sandbox of AutoExplore: apt-get install libseccomp2"


@dataclass(frozen=True)
class Finding:
    """One line of the report: state of a component, and advice if it is missing."""

    what: str
    state: str
    advice: str = ""
    needed: bool = False
    """True if no recipe works without it."""


def doctor() -> None:
    """Report missing packages, extras and keys, with advice.

    Exit code 1 if a package is missing that every recipe needs.
    """
    findings = [*_system(), *_packages(), *_extras(), *_programs(), *_keys()]
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        say(f"{finding.what:{width}}  {finding.state}{f'  ({finding.advice})' if finding.advice else ''}")
    broken = [finding.what for finding in findings if finding.needed and finding.advice]
    if broken:
        say(f"\nNothing works without {', '.join(broken)}.")
        raise typer.Exit(1)
    say("\nWhat every recipe needs is here.")


def _system() -> Iterator[Finding]:
    yield Finding("reflectrl", f"{version('reflectrl')}, {metadata('reflectrl')['License-Expression']} licence")
    yield Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Finding("processor cores", str(usable_cores()))
    try:
        import torch
    except ImportError:
        return  # reported among the packages
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(number)
            yield Finding(f"GPU {number}", f"{card.name}, {card.total_memory / 2**30:.0f} GiB")
    else:
        yield Finding("GPU", "none that torch can use: nano and smollm2 recipes need none, the others are slow without")


def _packages() -> Iterator[Finding]:
    for wanted in _required(""):
        fault = _fault(wanted)
        yield Finding(wanted.name, fault or version(wanted.name), _install() if fault else "", needed=True)


def _extras() -> Iterator[Finding]:
    for extra in metadata("reflectrl").get_all("Provides-Extra") or []:
        faults = [f"{wanted.name} {fault}" for wanted in _required(extra) if (fault := _fault(wanted))]
        advice = _install(f"[{extra}]") if faults else ""
        yield Finding(f"extra {extra}", "; ".join(faults) or "installed", advice)
    trackers = [name for name in TRACKERS if find_spec(name)]
    yield Finding("trackers", ", ".join(trackers) or "none; one is needed only for report_to")


def _install(extra: str = "") -> str:
    """Return pip's command for this installation; that of a clone which is edited in place names its folder."""
    installed = json.loads(distribution("reflectrl").read_text("direct_url.json") or "{}")
    if not installed.get("dir_info", {}).get("editable"):
        return f"pip install {shlex.quote(f'reflectrl{extra}')}"
    clone = Path(url2pathname(urlsplit(installed["url"]).path))
    here = clone == Path.cwd()
    return f"pip install -e {shlex.quote(f'.{extra}' if here else f'{clone}{extra}')}"


def _required(extra: str) -> Iterator[Requirement]:
    """Return reflectrl's requirements on this platform: those of ``extra``, or unconditional ones if it is empty."""
    from packaging.requirements import Requirement

    for requirement in map(Requirement, requires("reflectrl") or []):
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if always == (extra == "") and (always or requirement.marker and requirement.marker.evaluate({"extra": extra})):
            yield requirement


def _fault(wanted: Requirement) -> str | None:
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return f"missing; wanted is {wanted.specifier or 'any version'}"
    return None if wanted.specifier.contains(found, prereleases=True) else f"{found}; wanted is {wanted.specifier}"


def _programs() -> Iterator[Finding]:
    for name, use in PROGRAMS.items():
        found = shutil.which(name) is not None
        yield Finding(name, "found" if found else "not found", "" if found else f"only for {use}")
    library = find_library("seccomp")
    pip = find_spec("pip") is not None
    yield Finding("pip", "found" if pip else "not found", "" if pip else f"only for {PIP}")
    yield Finding("libseccomp", library or "not found", "" if library else f"only for {SECCOMP}")


def _keys() -> Iterator[Finding]:
    for name, use in KEYS.items():
        yield Finding(name, "set" if os.environ.get(name, "").strip() else "not set", f"only for {use}")
    games = os.environ.get("ALFWORLD_DATA", "")
    yield Finding("ALFWORLD_DATA", games or "not set", "only for the published games of ALFWorld")
