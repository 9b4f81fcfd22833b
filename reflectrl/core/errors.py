"""Errors that users may see, and helpers for their messages.

    ReflectRLError
     +-- InvalidInput   input that cannot be used, found before work starts: the command line exits with 2
     +-- WorkFailed     a failure during work (an endpoint, an environment): the command line exits with 1
          +-- EnvFailed       an environment raised another error, or returned what the protocol forbids
          +-- EpisodeFailed   an environment failed in one episode, which is dropped

Every message is a sentence that says what was given, what was expected and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from reflectrl.core.foreign import is_signal
from reflectrl.core.text import first_line, shown


class ReflectRLError(Exception):
    """Base class of every error that this library raises on purpose."""

    exit_code = 1


class InvalidInput(ReflectRLError, ValueError):
    """Given input (recipe, name, file, action, environment) that cannot be used."""

    exit_code = 2


class WorkFailed(ReflectRLError, RuntimeError):
    """A failure during work that the input did not show beforehand."""


class EnvFailed(WorkFailed):
    """An environment raised an error of another class, or returned a value that the protocol forbids.

    Like every error here it can be constructed from its message alone, which gymnasium does with errors of workers.
    """

    where = ""
    """Beginning of the message: ``environment 'taxi' failed at the start of task 'train-1'``."""
    what = ""
    """Middle of the message: ``raised ZeroDivisionError: divided by nothing``."""

    @classmethod
    def at(cls, where: str, what: str, advice: str = "fix the environment") -> EnvFailed:
        """Return the error with the message ``{where}: it {what}; {advice}.``, which keeps ``where`` and ``what``."""
        error = cls(f"{where}: it {what}; {advice}.")
        error.where, error.what = where, what
        return error


class ModelFailed(WorkFailed):
    """A model computed numbers that are not finite."""


class EpisodeFailed(WorkFailed):
    """One episode cannot be continued; a rollout drops it and plays the others."""


def passes(error: BaseException) -> bool:
    """Return whether an error leaves foreign code unchanged: a sentence already, Ctrl-C, or a signal that ends us."""
    return isinstance(error, ReflectRLError | KeyboardInterrupt) or is_signal(error)


def raised(error: BaseException) -> str:
    """Return a clause that describes an error of foreign code: ``raised ZeroDivisionError: divided by nothing``."""
    if isinstance(error, SystemExit):
        return f"called sys.exit({shown(error.code)})"
    return f"raised {type(error).__name__}: {first_line(error)}".rstrip(" :")


class PlayerLeft(ReflectRLError):
    """The person typed ``quit`` or closed the input, so the episode is unfinished; this is not a failure."""

    exit_code = 130


def need_one_of(argument: str, given: object, known: Iterable[str]) -> None:
    """Check that an argument is one of the ``known`` words.

    Raises:
        InvalidInput: it is another one.

    """
    if given not in (words := tuple(known)):
        raise InvalidInput(f"{argument}={given!r} was given; {nearest(str(given), words)}")


MAX_NAMES = 40
"""Maximum number of names that an error lists in full."""
NEAREST_NAMES = 8
"""Number of names that an error lists of more than ``MAX_NAMES``."""


def nearest(given: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known name and the known names: ``"did you mean 'taxi'? Known: ..."``.

    Of more than ``MAX_NAMES`` known names, only those near ``given`` are listed.
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(given, names, n=NEAREST_NAMES, cutoff=0.5)
    few = len(names) <= MAX_NAMES
    if not close:
        return f"known: {', '.join(names) or 'none'}." if few else f"none of the {len(names)} known names is near it."
    listed = f"Known: {', '.join(names)}." if few else f"Near it: {', '.join(close)}."
    return f"did you mean {close[0]!r}? {listed}"
