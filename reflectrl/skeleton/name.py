"""The name of a new environment: it becomes a package, a class and a registered name, so it must be fit for all."""

from __future__ import annotations

import builtins
import importlib.util
import keyword
import re
import unicodedata

import reflectrl
from reflectrl.core import InvalidInput, env_names
from reflectrl.core.promises import shown

_PLAIN = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
LONGEST = 30
"""Characters; the lines of the package that hold the name have room for so many."""


def checked_name(name: str) -> str:
    """``name``, if a package can have it.

    Raises:
        InvalidInput: it cannot, with the nearest name that can.

    """
    wrong = _wrong(name)
    if wrong is None:
        return name
    better = [fixed for fixed in _nearest(name) if _wrong(fixed) is None]
    hint = f"try {better[0]!r}" if better else "choose another name, such as 'my_env'"
    raise InvalidInput(f"an environment cannot be called {shown(name)}: {wrong}; {hint}.")


def class_name(name: str) -> str:
    """Of the environment: ``treasure_map`` is a ``TreasureMap``."""
    return "".join(part.title() for part in name.split("_"))


def _wrong(name: str) -> str | None:
    """What is wrong with it, as the middle of a sentence."""
    if not _PLAIN.fullmatch(name):
        return "expected small letters, digits and single underscores, beginning with a letter"
    if len(name) > LONGEST:
        return f"it has {len(name)} characters, expected {LONGEST} at most"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in dir(builtins):
        return "it is a word of Python's own"
    if name in env_names():
        return "an environment of that name is known already (reflectrl check-env --list)"
    if _is_installed(name):
        return "a module of that name is installed already, and one would hide the other"
    cls = class_name(name)
    if keyword.iskeyword(cls) or cls in dir(builtins) or cls in reflectrl.__all__:
        return f"its class would be called {cls}, which stands for something else"
    return None


def _is_installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # without one, it is a mere folder below here


def _nearest(name: str) -> list[str]:
    """Names to try instead, the nearest first."""
    latin = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", latin).lower()
    plain = re.sub(r"[^a-z0-9]+", "_", words).strip("_")
    if plain[:1].isdigit():
        plain = f"env_{plain}"
    short = plain[:LONGEST].rstrip("_")
    return [short, f"{short}_env", f"my_{short}"]
