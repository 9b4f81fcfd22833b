"""``translate``: a problem in PDDL becomes what the planner's engine loads.

That takes a third of a second, so translations are kept, in the process and in ``~/.cache/reflectrl/alfworld``
(``XDG_CACHE_HOME``), about 30 kB each: other stages, seeds and worker processes play the same games.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fast_downward

from reflectrl.core import InvalidInput
from reflectrl.core.errors import is_signal

MAX_TRANSLATIONS = 512
"""Translations kept in a process, about 150 kB each."""

_UNREACHABLE = "Atom dummy(val1)"
"""Text in place of a task whose goal is unreachable even in a world without side effects."""
_MAX_CHARS = 1023
"""Letters of an action with its arguments: the engine writes on where the memory for them ends."""
_LOCK = threading.Lock()
"""The translator works on ``sys.argv`` and ``sys.stdout``, which a process has once."""


@dataclass(frozen=True)
class Translation:
    """A problem as the engine takes it, and what the texts need to know of it."""

    packed: bytes
    """The task in Fast Downward's SAS format, compressed."""
    kinds: Mapping[str, frozenset[str]]
    """Every entity with its type and all types above."""
    facts: tuple[tuple[str, tuple[str, ...]], ...]
    """Facts of the problem at the start: predicate and arguments."""
    parameters: Mapping[str, tuple[str, ...]]
    """Parameters of each action, in the order in which the engine names its arguments."""

    @property
    def sas(self) -> bytes:
        """The task in Fast Downward's SAS format."""
        return zlib.decompress(self.packed)


@lru_cache(maxsize=MAX_TRANSLATIONS)
def translate(domain: str, problem: str) -> Translation:
    """Translate with Fast Downward's own translator, without its replanning task, which only its planner needs.

    Raises:
        InvalidInput: PDDL that it cannot read, or a goal that no state can fulfil.

    """
    path = _folder() / f"{hashlib.sha256(json.dumps([domain, problem]).encode()).hexdigest()}.json.z"
    kept = _read(path)
    if kept is None:
        kept = _translate(domain, problem)
        with contextlib.suppress(OSError):  # a full disk or a read-only home costs time, nothing else
            _write(path, kept)
    return kept


def _translate(domain: str, problem: str) -> Translation:
    try:
        with _LOCK, _untouched():
            task, sas = fast_downward.pddl2sas(domain, problem, verbose=False)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it answers bad PDDL with asserts, exits and its own errors
        if is_signal(error):
            raise
        raise InvalidInput(
            f"a game's problem cannot be translated: {_sentence(error)}; expected PDDL over alfworld's domain."
        ) from error
    if _UNREACHABLE in sas:
        raise InvalidInput("a game's goal cannot be reached, whatever is done; expected a game that can be won.")
    if "\0" in sas or max(map(len, sas.split("\n"))) > _MAX_CHARS:
        raise InvalidInput(
            f"a game's names hold a zero byte or are too long; expected up to {_MAX_CHARS} letters an action."
        )
    above = {kind.name: frozenset((kind.name, *kind.supertype_names)) for kind in task.types}
    kinds = {sys.intern(entity.name): above[entity.type_name] for entity in task.objects}
    facts = tuple(_facts(task.init))
    unknown = sorted({entity for _, arguments in facts for entity in arguments} - kinds.keys())
    if unknown:
        raise InvalidInput(f"a game's problem speaks of {unknown[0]!r}, which is not among its objects; leave it out.")
    return Translation(
        packed=zlib.compress(sas.encode()),
        kinds=kinds,
        facts=facts,
        parameters={
            action.name: tuple(parameter.name.strip("?") for parameter in action.parameters) for action in task.actions
        },
    )


def _folder() -> Path:
    """One a version of the translator and of this module's format."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "reflectrl" / "alfworld" / f"{version('fast-downward-textworld')}-1"


def _read(path: Path) -> Translation | None:
    """A translation that was kept; ``None`` if there is none, or it is torn."""
    try:
        kept = json.loads(zlib.decompress(path.read_bytes()))
        return Translation(
            packed=zlib.compress(kept["sas"].encode()),
            kinds={sys.intern(entity): frozenset(kinds) for entity, kinds in kept["kinds"].items()},
            facts=tuple((sys.intern(name), tuple(map(sys.intern, arguments))) for name, arguments in kept["facts"]),
            parameters={action: tuple(names) for action, names in kept["parameters"].items()},
        )
    except (OSError, zlib.error, ValueError, TypeError, LookupError, AttributeError):
        return None


def _write(path: Path, translation: Translation) -> None:
    """Write the file in one move, so that other processes may write the same one."""
    kept = {
        "sas": translation.sas.decode(),
        "kinds": {entity: sorted(kinds) for entity, kinds in translation.kinds.items()},
        "facts": translation.facts,
        "parameters": translation.parameters,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(zlib.compress(json.dumps(kept).encode()))
    Path(file.name).replace(path)


def _facts(init: list[Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The atoms, of which each word is kept once; costs are no facts, nor is that everything equals itself."""
    for atom in init:
        if isinstance(atom, fast_downward.translate.pddl.conditions.Atom) and atom.predicate != "=":
            yield sys.intern(atom.predicate), tuple(map(sys.intern, atom.args))


@contextlib.contextmanager
def _untouched() -> Iterator[None]:
    """Give back ``sys.argv``, which the translator overwrites, and keep what it says off our own output."""
    arguments = sys.argv
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        sys.argv = arguments


def _sentence(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
