"""``translate``: converts a problem in PDDL to the format that the planner's engine loads.

A translation takes a third of a second, so translations are cached, in the process and in
``~/.cache/reflectrl/alfworld`` (``XDG_CACHE_HOME``), about 30 kB each: other stages, seeds and worker processes play
the same games.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import fast_downward
import msgspec

from reflectrl.core import InvalidInput
from reflectrl.core.errors import raised
from reflectrl.core.files import user_cache
from reflectrl.core.foreign import is_signal

MAX_TRANSLATIONS = 512
"""Maximum number of translations cached in a process, compressed."""

_UNREACHABLE = "Atom dummy(val1)"
"""Text in place of a task whose goal cannot be reached even without side effects."""
_MAX_CHARS = 1023
"""Maximum length of an action with its arguments: beyond it, the engine writes past the end of its memory."""
_LOCK = threading.Lock()
"""Lock for the translator, which uses the process-wide ``sys.argv`` and ``sys.stdout``."""


@dataclass(frozen=True)
class Translation:
    """A problem in the engine's format, with what the texts need to know of it."""

    sas: str
    """The task in Fast Downward's SAS format."""
    kinds: Mapping[str, frozenset[str]]
    """Map from every entity to its type and all supertypes."""
    facts: tuple[tuple[str, tuple[str, ...]], ...]
    """Facts of the problem at the start: predicate and arguments."""
    parameters: Mapping[str, tuple[str, ...]]
    """Parameters of each action, in the order in which the engine names its arguments."""


def translate(domain: str, problem: str) -> Translation:
    """Translate with Fast Downward's own translator, without its replanning task, which only its planner needs.

    Raises:
        InvalidInput: PDDL that the translator cannot read, or a goal that no state can fulfil.
    """
    return _unpacked(packed_translation(domain, problem))


@lru_cache(maxsize=MAX_TRANSLATIONS)
def packed_translation(domain: str, problem: str) -> bytes:
    """Return a translation as its file holds it; translate if the file is missing or damaged."""
    # one folder for each version of the translator and of this format
    folder = user_cache() / "alfworld" / f"{version('fast-downward-textworld')}-1"
    path = folder / f"{hashlib.sha256(json.dumps([domain, problem]).encode()).hexdigest()}.json.z"
    with contextlib.suppress(OSError, zlib.error, msgspec.MsgspecError, ValueError):
        kept = path.read_bytes()
        _unpacked(kept)
        return kept
    made = zlib.compress(msgspec.json.encode(_translated(domain, problem), order="deterministic"))
    with contextlib.suppress(OSError):  # a full disk or a read-only home only costs time
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(made)
        Path(file.name).replace(path)  # atomic, since other processes may write the same file
    return made


def _unpacked(packed: bytes) -> Translation:
    return msgspec.json.decode(zlib.decompress(packed), type=Translation)


def _translated(domain: str, problem: str) -> Translation:
    try:
        with _LOCK, _untouched():
            task, sas = fast_downward.pddl2sas(domain, problem, verbose=False)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - for bad PDDL, it raises assertions, exits and errors of its own
        if is_signal(error):
            raise
        raise InvalidInput(
            f"a game's problem cannot be translated: the translator {raised(error)}; expected PDDL over alfworld's "
            "domain."
        ) from error
    if _UNREACHABLE in sas:
        raise InvalidInput("a game's goal cannot be reached, whatever is done; expected a game that can be won.")
    if "\0" in sas or max(map(len, sas.split("\n"))) > _MAX_CHARS:
        raise InvalidInput(
            f"a game's names hold a zero byte or are too long; expected up to {_MAX_CHARS} letters an action."
        )
    above = {kind.name: frozenset((kind.name, *kind.supertype_names)) for kind in task.types}
    kinds = {entity.name: above[entity.type_name] for entity in task.objects}
    # left out: costs, and that everything equals itself
    atoms = [atom for atom in task.init if isinstance(atom, fast_downward.translate.pddl.conditions.Atom)]
    facts = tuple((atom.predicate, tuple(atom.args)) for atom in atoms if atom.predicate != "=")
    unknown = sorted({entity for _, arguments in facts for entity in arguments} - kinds.keys())
    if unknown:
        raise InvalidInput(f"a game's problem speaks of {unknown[0]!r}, which is not among its objects; leave it out.")
    parameters = {action.name: tuple(each.name.strip("?") for each in action.parameters) for action in task.actions}
    return Translation(sas, kinds, facts, parameters)


@contextlib.contextmanager
def _untouched() -> Iterator[None]:
    """Restore ``sys.argv``, which the translator overwrites, and discard what it prints."""
    arguments = sys.argv
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        sys.argv = arguments
