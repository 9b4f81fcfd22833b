"""Extras of an environment: a builder of its dataset, and a copilot for things that no dataset asks about.

``NatLangEnv.extras`` returns them. Whatever they need from rooms above ``envs``, such as a chat endpoint, is an
argument here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from reflectrl.core.chat import Messages
from reflectrl.core.types import Task

if TYPE_CHECKING:
    from reflectrl.core.env import NatLangEnv

T = TypeVar("T")


@dataclass(frozen=True)
class Inquiry:
    """One chat that a dataset needs a reply to."""

    subject: str
    """Name of what the chat is about, for error messages."""
    chat: Messages
    """The messages to send."""
    check: Callable[[str], object]
    """Raises ``BadReply`` for a reply that cannot be used."""


class DatasetDraft(Protocol):
    """A dataset that is written once the replies to its inquiries are there."""

    @property
    def inquiries(self) -> Sequence[Inquiry]:
        """Chats to send; none for an offline writer."""

    @property
    def reply_tokens(self) -> int:
        """Tokens that a reply to an inquiry may need."""

    def write(self, folder: Path, replies: Sequence[str | None]) -> Mapping[str, Mapping[str, int]]:
        """Write the dataset to the new ``folder``.

        Args:
            folder: appears, complete, in one move.
            replies: one for each inquiry, ``None`` for those without a usable one.

        Returns:
            What was left out: by kind, numbers by reason.

        """


class DatasetBuilder(Protocol):
    """Drafts a dataset from sources, such as repositories."""

    def __call__(
        self,
        sources: Sequence[str],
        place: Path,
        *,
        held_out: Sequence[str],
        files: int | None,
        per_file: int,
        seed: int,
        writer: str,
    ) -> DatasetDraft:
        """Fetch the sources and prepare the questions.

        Args:
            sources: addresses of what the questions are about.
            place: temporary folder for what is fetched; it must exist until the dataset is written.
            held_out: addresses of further sources, for a split that no other split shares a source with.
            files: most files of a source to ask about; ``None`` for all.
            per_file: most questions a file.
            seed: draws files and splits.
            writer: source of the questions, as in a recipe; ``openai`` is a chat model.

        """


class Ask(Protocol):
    """Sends a chat to a model and returns what ``read`` makes of the reply; ``BadReply`` asks the model again."""

    def __call__(self, chat: Messages, read: Callable[[str], T], /) -> T:
        """Ask once."""


@dataclass(frozen=True)
class OpenTask:
    """A task that no dataset holds, in an environment of its own."""

    env: NatLangEnv
    task: Task
    options: Mapping[str, Any]
    """Options with which ``env`` was made."""
    answer: Callable[[], str | None]
    """Returns what the episode found; ``None`` while nothing is found."""


@dataclass(frozen=True)
class Work:
    """Result of a task: the answer and the changed files."""

    answer: str | None
    """Name of the file that was given as the answer, if any."""
    changed: tuple[str, ...]
    """Paths of the files that were changed, added or removed."""
    diff: tuple[str, ...]
    """The changes as lines of a unified diff."""


class Copilot(Protocol):
    """Uses an environment on sources of the user's own."""

    @property
    def player_options(self) -> Sequence[str]:
        """Names of the environment's options that shape what players read; a run's players keep theirs."""

    @property
    def person_options(self) -> Mapping[str, Any]:
        """Options of the environment for a person at the keyboard."""

    def open_task(
        self, source: str, question: str, options: Mapping[str, Any], answer: str | None = None
    ) -> AbstractContextManager[OpenTask]:
        """Open a question about ``source``, to be played with ``options``; ``answer`` is what the expert knows.

        Raises:
            InvalidInput: no question, no such source, nothing in it, or an answer that is not there.
            WorkFailed: the source cannot be fetched.

        """

    def work_on(
        self,
        source: str,
        task: str,
        ask: Ask | None = None,
        *,
        steps: int = ...,
        seconds: float = ...,
        apply: bool = False,
        show: Callable[[str, str], None] | None = None,
    ) -> Work:
        """Do a whole task in a private copy of ``source``, by commands that a model or a person types.

        Args:
            source: the repository to work on.
            task: the task to do.
            ask: reaches the chat model that types; absent: a person at the keyboard does.
            steps: most commands.
            seconds: most seconds that one program may run.
            apply: write the changes back to ``source``, which must be a folder.
            show: called with each command and what it printed.

        Raises:
            EOFError: the person closed the input.
            InvalidInput: no task, no such source, ``apply`` to one that is no folder, or programs cannot run here.
            WorkFailed: the task was not finished within ``steps``, the source changed meanwhile or cannot be written,
                or the chat endpoint failed.

        """


@dataclass(frozen=True)
class Extras:
    """Everything that an environment brings besides its episodes."""

    draft_dataset: DatasetBuilder | None = None
    copilot: Copilot | None = None
