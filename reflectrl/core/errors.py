"""Errors that users may see, helpers for their messages, and the border at which faults of environments become one.

    ReflectRLError
     +-- InvalidInput   input that cannot be used, found before work starts: the command line exits with 2
     +-- WorkFailed     a failure during work (an endpoint, an environment): the command line exits with 1
          +-- EnvFailed       an environment raised another error, or returned what the protocol forbids
          +-- EpisodeFailed   an environment failed in one episode, which is dropped

Every message is a sentence that says what was given, what was expected and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from reflectrl.core.foreign import is_signal
from reflectrl.core.text import counted, first_line, shown
from reflectrl.core.types import Task

if TYPE_CHECKING:
    from reflectrl.core.env import NatLangEnv


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


T = TypeVar("T")


class Border:
    """What surrounds the calls of an environment's methods; this one does nothing."""

    def enter(self, env: NatLangEnv, *, asked: bool) -> None:
        """Note the start of a call of one of the environment's methods; ``asked`` is true for requests for hints."""

    def leave(self) -> None:
        """Note that the call has returned or raised."""

    def failed(self, error: EnvFailed) -> WorkFailed:
        """Return the error to raise for a failure within an episode."""
        return error


def called(
    method: Callable[..., T],
    *given: Any,
    wrong: Callable[[T], str | None],
    failed: Callable[[str], Exception],
) -> T:
    """Return what a foreign method returns.

    Whatever the method raises, ``BaseException`` included, and whatever is wrong with its value becomes the error that
    ``failed`` makes of a clause such as "raised ZeroDivisionError: divided by nothing". Only what ``passes`` does not.
    """
    try:
        value = method(*given)
        fault = wrong(value)
    except BaseException as error:
        if passes(error):
            raise
        raise failed(raised(error)) from error
    if fault is not None:
        raise failed(fault)
    return value


def place_in_episode(task: Task, steps: int, action: str | None = None, *, hints: bool = False) -> str:
    """Return words for the place of a failure: the start, or an ``action`` or request for ``hints`` after ``steps``."""
    place = f"in task {task.id!r} after {counted(steps, 'step')}"
    if hints:
        return f"{place}, asked for hints (expert(), reflection() and the like)"
    return f"at the start of task {task.id!r}" if action is None else f"{place}, at action {shown(action)}"


def place_of(env: NatLangEnv, *, hints: bool) -> str:
    """Return words for the place of the request that an environment is answering: an action, or one for ``hints``."""
    action = None if hints else env.last_action
    return place_in_episode(env.task, env.steps - (action is not None), action, hints=hints)
