"""``build_dataset``: questions about the repositories of a recipe, for environments that play a dataset."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.config import Recipe
from reflectrl.config.endpoint import CALLS, recipe_endpoint
from reflectrl.config.environment import DATASET
from reflectrl.config.schema import DatasetSection
from reflectrl.data_gen.estimate import estimate_files
from reflectrl.data_gen.questions import ask_chat, reply_tokens
from reflectrl.endpoint.account import Account, Usage
from reflectrl.endpoint.journal import Journal
from reflectrl.envs.auto_explore.dataset import ask_about, readable_files, write_dataset
from reflectrl.envs.auto_explore.questions import write_content_questions, write_questions
from reflectrl.envs.auto_explore.sources import fetch_all
from reflectrl.prompts.questions import question_chat

if TYPE_CHECKING:  # imported where a chat model asks: openai takes a second
    from reflectrl.endpoint.chat import ChatClient

File = tuple[str, str]
"""Path and text."""
Pairs = Sequence[tuple[str, str]]
"""Questions and answers."""
Progress = Callable[[int, int, str], None]
"""Told of what is done, of what is wanted, and what is counted."""


def build_dataset(
    recipe: Recipe,
    run: Path,
    account: Account,
    progress: Progress | None = None,
    *,
    tell: Callable[[str], None] = lambda _: None,
    dry_run: bool = False,
) -> Usage | None:
    """Fetch the repositories of ``recipe``, ask about their files, and write ``run/dataset``; once.

    Args:
        recipe: with or without a dataset section.
        run: the run folder.
        account: pays for the chat model that is asked.
        progress: told of the files that it was asked about.
        tell: told, in a sentence, what the chat model will be asked and what it may cost.
        dry_run: stop after that.

    Returns:
        What the calls to a chat model came to in this process; ``None`` if a dry run stopped before them.

    Raises:
        InvalidInput: a source that is none or was given twice, too few questions, no key for the endpoint.
        WorkFailed: a source or the endpoint cannot be reached; answers that were paid for are kept.

    """
    section, folder, usage = recipe.dataset, run / DATASET, Usage()
    if section is None:
        return usage
    if folder.is_dir():
        return usage
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as fetched:
        if progress is not None:
            progress(0, len(section.repositories), "fetching repositories")
        repositories = fetch_all(section.repositories, Path(fetched))
        files = {name: _chosen(path, section.files, recipe.seed) for name, path in sorted(repositories.items())}
        if section.writer == "openai":
            client = _writer(section, run / CALLS / "writer", account)
            chats = [question_chat(*file, section.per_file) for chosen in files.values() for file in chosen]
            estimate = estimate_files(chats, reply_tokens(section.per_file))
            tell(estimate.sentence(client.endpoint, len(client.journal.paid)))
            if dry_run:
                return None
            written, usage = _ask_chat(client, files, section.per_file, progress), client.usage
        else:
            written = {file: write_questions(*file) for chosen in files.values() for file in chosen}
        dataset = ask_about(
            repositories,
            lambda file, text: written.get((file, text), ()),
            per_file=section.per_file,
            seed=recipe.seed,
            by_content=write_content_questions,
        )
        write_dataset(folder, dataset)
        if dropped := {why: count for why, count in vars(dataset.filtered).items() if count}:
            tell(f"questions left out: {dropped}")
    return usage


def _chosen(repository: Path, count: int | None, seed: int) -> Sequence[File]:
    """The files that are asked about."""
    files = readable_files(repository).readable
    if count is None or count >= len(files):
        return files
    return sorted(random.Random(f"{seed} files").sample(files, count))


def _writer(section: DatasetSection, calls: Path, account: Account) -> ChatClient:
    from reflectrl.endpoint.chat import ChatClient

    endpoint = recipe_endpoint(section.endpoint)
    enough = max(endpoint.max_tokens, reply_tokens(section.per_file))
    return ChatClient(replace(endpoint, max_tokens=enough), Journal(calls), account)


def _ask_chat(
    client: ChatClient, files: Mapping[str, Sequence[File]], per_file: int, progress: Progress | None
) -> dict[File, Pairs]:
    """What a chat model asks about each file."""
    written: dict[File, Pairs] = {}
    for name, chosen in files.items():

        def tell(done: int, total: int, name: str = name) -> None:
            if progress is not None:
                progress(done, total, f"files of {name} asked about")

        asked = client.run(ask_chat(client, chosen, per_file=per_file, progress=tell))
        written |= {(file, text): asked[file] for file, text in chosen}
    return written
