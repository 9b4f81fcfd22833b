"""The errors a user may meet, and the wording they share.

    ReflectRLError
     +-- InvalidInput   what was given cannot be used: found before work starts, the command line exits with 2
     +-- WorkFailed     something broke while working (an endpoint, an environment): the command line exits with 1
          +-- EpisodeFailed   an environment broke in one episode, which is to be left out

Every message is a sentence: what was given, what was expected, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ReflectRLError(Exception):
    """Base of every error this library raises on purpose."""

    exit_code = 1


class InvalidInput(ReflectRLError, ValueError):
    """Given input (recipe, name, file, action, environment) that cannot be used."""

    exit_code = 2


class WorkFailed(ReflectRLError, RuntimeError):
    """A failure during work that the input did not show beforehand."""


class EpisodeFailed(WorkFailed):
    """One episode cannot be played on; the others can, and whoever plays them leaves it out."""


def nearest(given: str, known: Iterable[str]) -> str:
    """Say what is known, nearest first: ``"did you mean 'taxi'? Known: ..."``."""
    names = sorted(set(known))
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names) if names else 'none'}."
