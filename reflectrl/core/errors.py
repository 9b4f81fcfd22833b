"""The errors a user may meet, and the wording they share.

    ReflectRLError
     +-- InvalidInput   what was given cannot be used: found before work starts, the command line exits with 2
     +-- WorkFailed     something broke while working (an endpoint, an environment): the command line exits with 1
          +-- EnvFailed       an environment raised something else, or answered what none may answer
          +-- EpisodeFailed   an environment broke in one episode, which is to be left out

Every message is a sentence: what was given, what was expected, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from reflectrl.core.text import first_line


class ReflectRLError(Exception):
    """Base of every error this library raises on purpose."""

    exit_code = 1


class InvalidInput(ReflectRLError, ValueError):
    """Given input (recipe, name, file, action, environment) that cannot be used."""

    exit_code = 2


class WorkFailed(ReflectRLError, RuntimeError):
    """A failure during work that the input did not show beforehand."""


class EnvFailed(WorkFailed):
    """An environment raised what it should not, or answered what none may answer.

    Like every error here it can be made from its message alone, as gymnasium does with what a worker process raised.
    """

    where = ""
    """The beginning of the message: ``environment 'taxi' failed at the start of task 'train-1'``."""
    what = ""
    """The middle of the message: ``raised ZeroDivisionError: divided by nothing``."""

    @classmethod
    def at(cls, where: str, what: str, advice: str = "mend the environment") -> EnvFailed:
        """The error with the message that these make; ``advice`` is its end."""
        error = cls(f"{where}: it {what}; {advice}.")
        error.where, error.what = where, what
        return error


class EpisodeFailed(WorkFailed):
    """One episode cannot be played on; the others can, and whoever plays them leaves it out."""


def is_signal(error: BaseException) -> bool:
    """Whether it comes from the handler of a signal, by which the whole process is to end."""
    return isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128


def raised(error: BaseException) -> str:
    """What somebody else's code did, as a part of a sentence: ``raised ZeroDivisionError: divided by nothing``."""
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r})"
    return f"raised {type(error).__name__}: {first_line(error)}".rstrip(" :")


def nearest(given: str, known: Iterable[str]) -> str:
    """Say what is known, nearest first: ``"did you mean 'taxi'? Known: ..."``."""
    names = sorted(set(known))
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names) if names else 'none'}."
