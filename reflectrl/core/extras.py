"""Extras of an environment: a builder of its dataset, and a copilot for questions and tasks outside of any dataset.

``NatLangEnv.extras`` returns them. What they need from higher layers, such as a chat endpoint, is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import gymnasium

from reflectrl.core.errors import InvalidInput
from reflectrl.core.messages import Messages
from reflectrl.core.types import Task

if TYPE_CHECKING:
    from reflectrl.core.env import NatLangEnv


T = TypeVar("T")


@dataclass(frozen=True)
class Inquiry:
    """One chat whose reply a dataset needs."""

    subject: str
    """Name of the subject of the chat, for error messages."""
    chat: Messages
    check: Callable[[str], object]
    """Function that raises ``BadReply`` for an unusable reply."""


class DatasetDraft(Protocol):
    """A dataset that is written once its inquiries have been answered."""

    @property
    def inquiries(self) -> Sequence[Inquiry]:
        """Chats whose replies the dataset needs; none for an offline writer."""

    @property
    def reply_tokens(self) -> int:
        """Maximum length of a reply to an inquiry, in tokens."""

    def write(self, folder: Path, replies: Sequence[str | None]) -> Mapping[str, Mapping[str, int]]:
        """Write the dataset to the new ``folder``.

        Args:
            folder: the folder to create; it appears in one move, complete.
            replies: one reply for each inquiry; ``None`` where there is no usable one.

        Returns:
            Numbers of what was left out, by kind and by reason.
        """


class DatasetBuilder(Protocol):
    """A function that drafts a dataset from sources, such as repositories."""

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
            sources: addresses of the sources that the questions are about.
            place: temporary folder for the fetched sources; it must exist until the dataset is written.
            held_out: addresses of further sources, for a split that shares no source with the others.
            files: maximum number of files of a source to ask about; ``None`` for all.
            per_file: maximum number of questions about a file.
            seed: seed of the choice of files and splits.
            writer: writer of the questions, as in a recipe; ``openai`` is a chat model.
        """


class Ask(Protocol):
    """A function that sends a chat to a model and returns the reply parsed by ``read``; ``BadReply`` asks again."""

    def __call__(self, chat: Messages, read: Callable[[str], T], /) -> T:
        """Send ``chat``; return ``read(reply)``."""


@dataclass(frozen=True)
class OpenTask:
    """A task that is in no dataset, with the environment that was made for it."""

    env: NatLangEnv
    task: Task
    options: Mapping[str, Any]
    """Options with which ``env`` was made."""
    answer: Callable[[], str | None]
    """Function that returns the answer found by the episode; ``None`` while there is none."""


@dataclass(frozen=True)
class Work:
    """Result of a task: the answer and the changed files."""

    answer: str | None
    """Name of the file that was given as the answer, if any."""
    changed: tuple[str, ...]
    """Paths of the files that were changed, added or removed."""
    diff: tuple[str, ...]
    """The changes as lines of a unified diff; files that are too large for it are named only."""
    left_out: tuple[str, ...] = ()
    """Changes that are not written back: for each kind, such as links, a sentence with some paths."""


class Copilot(Protocol):
    """Interface that applies an environment to the user's own sources."""

    @property
    def player_options(self) -> Sequence[str]:
        """Names of the environment's options that shape the prompts; a run's players keep the values of the run."""

    @property
    def person_options(self) -> Mapping[str, Any]:
        """Options of the environment for a human player."""

    def open_task(
        self, source: str, question: str, options: Mapping[str, Any], answer: str | None = None
    ) -> AbstractContextManager[OpenTask]:
        """Open a question about ``source``, to be played with ``options``; ``answer`` is the answer the expert knows.

        Raises:
            InvalidInput: an empty question, a missing or empty source, or an answer that is not in the source.
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
        """Carry out a task in a private copy of ``source``, by commands that a model or a person types.

        Args:
            source: the repository to work on.
            task: the task, in words.
            ask: sends chats to the model that types the commands; if absent, a person types them.
            steps: maximum number of commands.
            seconds: maximum run time of one program, in seconds.
            apply: write the changes back to ``source``, which must be a folder.
            show: called with each command and its output.

        Raises:
            EOFError: the person closed the input.
            InvalidInput: an empty task, a missing source, ``apply`` with a source that is not the user's folder, or a
                machine on which programs cannot run.
            WorkFailed: the task was not finished within ``steps``, the source changed meanwhile or cannot be written,
                the changed files are too large or another user's, or the chat endpoint failed.
        """


@dataclass(frozen=True)
class Extras:
    """Everything that an environment provides besides its episodes."""

    draft_dataset: DatasetBuilder | None = None
    copilot: Copilot | None = None


class TextSpace(gymnasium.Space[str]):
    """The space of all texts.

    ``sample`` draws one of ``offered``, which an environment sets to the legal actions of its state. In a vector
    environment the space is a copy without them, so the caller passes them as a mask:
    ``envs.action_space.sample(mask=tuple(infos["actions"]))``.
    """

    def __init__(self, offered: Sequence[str] = ()) -> None:
        super().__init__(None, str)
        self.offered = offered
        """Texts that ``sample`` draws from."""

    @property
    def is_np_flattenable(self) -> bool:
        """False, because text cannot be flattened to an array."""
        return False

    def sample(self, mask: Sequence[str] | None = None, probability: None = None) -> str:
        """Draw one text uniformly.

        Args:
            mask: the texts to draw from, in place of ``offered``; an empty mask, as after an episode's end, gives "".
            probability: must be ``None``; it is part of gymnasium's signature.

        Raises:
            InvalidInput: a mask that is not a sequence of texts, a probability, or nothing to draw from.
        """
        if probability is not None:
            raise InvalidInput("TextSpace.sample was given probabilities; expected none: give the legal texts as mask.")
        if mask is None:
            if not self.offered:
                raise InvalidInput(
                    "an action was to be sampled where none is known to be legal; reset the environment first, and "
                    "give vector environments sample(mask=tuple(infos['actions']))."
                )
            mask = self.offered
        if not isinstance(mask, list | tuple) or not all(isinstance(text, str) for text in mask):
            raise InvalidInput(f"TextSpace.sample was given mask={mask!r}; expected a tuple of legal texts.")
        return mask[int(self.np_random.integers(len(mask)))] if mask else ""

    def contains(self, x: object) -> bool:
        """Return whether ``x`` is a text."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` is a text space; all text spaces are equal."""
        return isinstance(other, TextSpace)

    def __repr__(self) -> str:
        """Return a short form for gymnasium's messages."""
        return "TextSpace()"
