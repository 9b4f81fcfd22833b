"""``Draft``: fetched repositories, before the questions about their files are written."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from reflectrl.core.extras import Inquiry
from reflectrl.envs.auto_explore.ambiguity import Pair
from reflectrl.envs.auto_explore.chat_questions import question_chat, read_questions
from reflectrl.envs.auto_explore.dataset import ask_about, write_dataset
from reflectrl.envs.auto_explore.files import readable_files
from reflectrl.envs.auto_explore.questions import write_both, write_content_questions, write_questions
from reflectrl.envs.auto_explore.sources import fetch_all


def draft_dataset(
    sources: Sequence[str],
    place: Path,
    *,
    held_out: Sequence[str],
    files: int | None,
    per_file: int,
    seed: int,
    writer: str,
) -> Draft:
    """Fetch ``sources`` into ``place`` and draw the files to ask about. See ``DatasetBuilder``.

    Raises:
        InvalidInput: a source of no known form, or one that was given twice.
        WorkFailed: a repository cannot be fetched.

    """
    repositories = fetch_all([*sources, *held_out], place)
    chosen = tuple(file for _, path in sorted(repositories.items()) for file in _drawn(path, files, seed))
    unseen = tuple(repositories)[len(sources) :]
    return Draft(repositories, chosen, held_out=unseen, per_file=per_file, seed=seed, writer=writer)


def _drawn(repository: Path, count: int | None, seed: int) -> Sequence[tuple[str, str]]:
    """Return path and text of the files to ask about."""
    files = readable_files(repository).readable
    if count is None or count >= len(files):
        return files
    return sorted(random.Random(f"{seed} files").sample(files, count))


@dataclass(frozen=True)
class Draft:
    """A dataset without its questions. See ``DatasetDraft``."""

    repositories: Mapping[str, Path]
    """Folders by name."""
    files: tuple[tuple[str, str], ...]
    """Path and text of the files to ask about, of all repositories."""
    held_out: tuple[str, ...]
    """Names of the repositories that only the split ``UNSEEN`` asks about."""
    per_file: int
    seed: int
    writer: str
    """Source of the questions: ``dataset.writer`` of a recipe."""

    @property
    def inquiries(self) -> Sequence[Inquiry]:
        """Return one chat for each file if a chat model writes the questions."""
        if self.writer != "openai":
            return ()
        return [
            Inquiry(path, question_chat(path, text, self.per_file), partial(self._read, path))
            for path, text in self.files
        ]

    @property
    def reply_tokens(self) -> int:
        """Maximum number of tokens of a reply: an analysis, and one or two sentences for each entry."""
        return 200 + 120 * self.per_file

    def write(self, folder: Path, replies: Sequence[str | None]) -> Mapping[str, Mapping[str, int]]:
        """Write the dataset, without the questions that not exactly one file answers.

        Returns:
            How many questions and files were left out, by reason.

        Raises:
            InvalidInput: too few clear questions, or ``folder`` exists.
            WorkFailed: a file cannot be copied.

        """
        written: dict[tuple[str, str], Sequence[Pair]]
        paraphrased = self.writer == "paraphrased"
        if self.writer == "openai":
            asked = zip(self.files, replies, strict=True)
            written = {file: () if reply is None else self._read(file[0], reply) for file, reply in asked}
        else:
            write = write_both if paraphrased else write_questions
            written = {file: write(*file) for file in self.files}
        dataset = ask_about(
            self.repositories,
            lambda path, text: written.get((path, text), ()),
            per_file=self.per_file,
            seed=self.seed,
            by_content=None if paraphrased else write_content_questions,
            paraphrased=paraphrased,
            held_out=self.held_out,
        )
        write_dataset(folder, dataset)
        return {kind: counts for kind, counts in dataset.left_out.items() if counts}

    def _read(self, path: str, reply: str) -> Sequence[Pair]:
        return read_questions(reply, path, self.per_file)
