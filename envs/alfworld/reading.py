"""``read``: whether a policy's thought says the truth about a state, and the command that it calls for.

It understands the sentences of ``reflect``. What a thought says about things that no text has shown is wrong, even if
they are there by chance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from reflectrl.core import Reading
from reflectrl.envs.alfworld.expert import SERVICES, State
from reflectrl.envs.alfworld.reflection import WON, Moment

_NAME = r"[a-z]+ \d+"
_JUDGEMENT = re.compile(r"^(?:good\.|mistake: [^.]*\.) ?")
"""Beginning of a thought that judges the last command instead of the state."""
_LACKS = re.compile(rf"({_NAME}) is in hand but not (clean|hot|cool)\b")
_HELD = re.compile(rf"({_NAME}) is in hand")
_PLACED = re.compile(rf"({_NAME}) is (?:in|on) ({_NAME})")
_DISTANCE = re.compile(rf"({_NAME})(?:, which)? is (here|elsewhere)")
_CLOSED = re.compile(rf"({_NAME})(?:, which)? is here and closed")
_UNSEEN = re.compile(r"\bno (other )?([a-z]+) seen yet")
_LEFT = re.compile(rf"places left: ({_NAME}(?:, {_NAME})*)")

_GO = re.compile(rf"places left: (?P<place>{_NAME})|(?P<far>{_NAME}), which is elsewhere")
_SERVED = re.compile(rf"(?P<thing>{_NAME}) is in hand but not (?P<lacks>clean|hot|cool); there is (?P<tool>{_NAME})")
_LAMP = re.compile(rf"is in hand; (?P<lamp>{_NAME}) is (?:in|on) ")
_PUT = re.compile(rf"(?P<thing>{_NAME}) is in hand .* (?:in|on) (?P<place>{_NAME})")


def read(thought: str, now: Moment) -> Reading:
    """Judge a thought about a state; one that makes no statement on it is wrong, as one that misreads it."""
    words = _JUDGEMENT.sub("", " ".join(thought.casefold().split()))
    said = list(_statements(words, now))
    return Reading(bool(said) and all(said), _called(words, now))


def _statements(words: str, now: Moment) -> Iterator[bool]:
    """Yield for each statement whether it is true."""
    state = State(now.position.facts, now.names, now.seen.names)
    name = {id: called.strip() for id, called in now.names.items()}
    place_of = {name[thing]: name[place] for thing, place in state.within.items()}
    near = {name[place] for place, location in state.location.items() if location == state.here}
    closed = {name[place] for place in state.closed}
    held = name.get(state.held or "")
    lacking = {result: predicate for _, _, predicate, result in SERVICES.values()}
    for thing in _HELD.findall(words):
        yield thing == held
    for thing, result in _LACKS.findall(words):
        yield thing not in {name[row[0]] for row in now.position.facts.get(lacking[result], ())}
    for thing, place in _PLACED.findall(words):
        yield place_of.get(thing) == place
    for place, distance in _DISTANCE.findall(words):
        yield (place in near) == (distance == "here")
    for place in _CLOSED.findall(words):
        yield place in closed
    for other, kind in _UNSEEN.findall(words):
        yield len(state.of(kind, {*state.within, *filter(None, [state.held])})) == bool(other)
    for places in _LEFT.findall(words):
        yield now.seen.places.isdisjoint(places.split(", "))
    if WON.casefold() in words:
        yield now.position.reply.won


def _called(words: str, now: Moment) -> str | None:
    """Return the command that follows from a thought, right or wrong; ``None`` if none does."""
    if to := _GO.search(words):
        return f"go to {to['place'] or to['far']}"
    if shut := _CLOSED.search(words):
        return f"open {shut[1]}"
    if served := _SERVED.search(words):
        verb = next(verb for verb, _, _, result in SERVICES.values() if result == served["lacks"])
        return f"{verb} {served['thing']} with {served['tool']}"
    if lamp := _LAMP.search(words):
        return f"use {lamp['lamp']}"
    if put := _PUT.search(words):
        return now.game.put(put["thing"], put["place"])
    if placed := _PLACED.search(words):
        return f"take {placed[1]} from {placed[2]}"
    return None
