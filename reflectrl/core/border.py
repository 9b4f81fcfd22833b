"""The border between this library and an environment's own code: its faults come back as one kind of error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from reflectrl.core.errors import EnvFailed, WorkFailed, passes, raised
from reflectrl.core.text import counted
from reflectrl.core.types import Task

if TYPE_CHECKING:
    from reflectrl.core.env import NatLangEnv

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
        return f"{place}, asked for hints"
    return f"at the start of task {task.id!r}" if action is None else f"{place}, at action {action!r}"


def place_of(env: NatLangEnv, *, hints: bool) -> str:
    """Return words for the place of the request that an environment is answering: an action, or one for ``hints``."""
    action = None if hints else env.last_action
    return place_in_episode(env.task, env.steps - (action is not None), action, hints=hints)
