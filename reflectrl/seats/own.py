"""Seats of the user's own: a recipe names a class, ``players.tally: {class: "package.module:Tally", most: 3}``.

The class needs the method ``say(views, draws)`` of a ``Player``. It may have the class attributes ``when``, ``reads``
and ``cue``, see ``Role``; without them it speaks before each action, reads the other players that spoke by then, and
its words follow its name in the policy's prompt. Whatever else stands in the section are arguments of its constructor.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic_core import PydanticKnownError

from reflectrl.core import InvalidInput, nearest
from reflectrl.core.registry import foreign_code
from reflectrl.core.settings import wrong_type
from reflectrl.prompts.format import PAST_CUE, POLICY_CUES
from reflectrl.prompts.players import Player
from reflectrl.prompts.views import Role, When
from reflectrl.seats import SEATS
from reflectrl.seats.table import POLICY, Seat

CLASS = "class"
"""Key of the class in the section of an own seat."""
_MOMENTS = tuple(each for each in get_args(When) if each != "act")
_SHOWN = tuple(kind.role.name for kind in SEATS if kind.role.speaks_before and kind.role.cue)
_CUES = {PAST_CUE, *map(str.strip, POLICY_CUES.values())}
_CUES |= {cue for kind in SEATS for cue in (kind.role.cue, kind.role.carried) if cue}


def own_settings(given: Any) -> Any:
    """Return the section of an own seat after a check of its form; the class is not imported.

    Raises:
        PydanticKnownError: it names no class, so its key is an unknown one.
        ValueError: the class is not written as ``package.module:Class``.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or CLASS not in given:
        raise PydanticKnownError("extra_forbidden")
    if not isinstance(given[CLASS], str) or not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", given[CLASS]):
        raise ValueError(f"class is {given[CLASS]!r}; expected package.module:Class, the class of a player of your own")
    return dict(given)


def own_class(name: str, settings: Mapping[str, Any]) -> type:
    """Import and return the class of the own seat ``name``; the working folder is searched last.

    Raises:
        InvalidInput: it cannot be imported, or is not the class of a player.
    """
    where, target = f"players.{name}.{CLASS}", settings[CLASS]
    module, _, attribute = target.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # last, so that nothing in the working folder hides an installed package
    with foreign_code(f"{where} is {target!r}, which cannot be imported"):
        found = getattr(importlib.import_module(module), attribute)
    if not inspect.isclass(found) or not callable(getattr(found, "say", None)):
        raise InvalidInput(f"{where} is {target!r}; expected a class with a method say(views, draws).")
    return found


def own_role(name: str, settings: Mapping[str, Any]) -> Role:
    """Return the role of the own seat ``name``, as the attributes of its class state it.

    Raises:
        InvalidInput: the class cannot be imported, or an attribute is wrong.
    """
    cls = own_class(name, settings)
    when: Any = getattr(cls, "when", "before_act")
    reads: Any = getattr(cls, "reads", None)
    cue = getattr(cls, "cue", f"{name.capitalize()}:")
    what = f"the class {settings[CLASS]!r} of players.{name}"
    if when not in _MOMENTS:
        raise InvalidInput(f"{what} has when={when!r}; {nearest(str(when), _MOMENTS)}")
    if reads is None:
        reads = {"before_act": _SHOWN, "after_act": (*_SHOWN, POLICY.name)}.get(when, ())
    known = {"episode_end": (), "after_act": (*_SHOWN, POLICY.name)}.get(when, _SHOWN)
    if not isinstance(reads, tuple | list) or not all(each in known for each in reads):
        raise InvalidInput(
            f"{what} has reads={reads!r}; expected a tuple of roles that have spoken by {when}: "
            f"{', '.join(known) or 'none'}."
        )
    if not isinstance(cue, str) or not re.fullmatch(r"(\S+:)?", cue) or cue in _CUES:
        raise InvalidInput(
            f"{what} has cue={cue!r}; expected one word with a colon that begins no other line of a prompt, such as "
            f"{name.capitalize() + ':'!r}, or '' for words that no prompt shows."
        )
    return Role(name, when, tuple(reads), cue)


def own_roles(own: Mapping[str, Mapping[str, Any]]) -> tuple[Role, ...]:
    """Return the roles of own seats by their names; raise as ``own_role`` does, or where two lines begin alike."""
    roles: dict[str, Role] = {}
    for role in (own_role(name, settings) for name, settings in own.items()):
        if role.cue in roles:
            raise InvalidInput(
                f"players.{role.name} has cue={role.cue!r}, with which players.{roles[role.cue].name} begins its line "
                "as well; give their classes different ones."
            )
        roles[role.cue or role.name] = role
    return tuple(roles.values())


def own_seat(name: str, settings: Mapping[str, Any]) -> Seat:
    """Return the own seat ``name`` with a new player, made with its settings.

    Raises:
        InvalidInput: the class cannot be imported or made with these settings, or has an attribute that is wrong.
    """
    role, cls = own_role(name, settings), own_class(name, settings)
    given = {key: value for key, value in settings.items() if key != CLASS}
    signature = inspect.signature(cls)
    for key, value in given.items():
        if key not in signature.parameters:
            raise InvalidInput(
                f"players.{name} has the unknown key {key!r}; {nearest(key, [CLASS, *signature.parameters])}"
            )
        if (expected := wrong_type(cls, key, value)) is not None:
            raise InvalidInput(f"players.{name}.{key}: given {value!r}; expected {expected}.")
    try:
        signature.bind(**given)
    except TypeError as error:
        raise InvalidInput(f"players.{name} cannot be made: {error}; give it as a key beside {CLASS}.") from error
    with foreign_code(f"players.{name} cannot be made", "; correct its class, or its settings."):
        player: Player = cls(**given)
    return Seat(name, player, role)
