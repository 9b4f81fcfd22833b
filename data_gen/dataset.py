"""``build_dataset``: questions about the repositories of a recipe, for environments that play a dataset."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.config import Recipe
from reflectrl.config.environment import DATASET
from reflectrl.config.schema import DatasetSection
from reflectrl.envs.auto_explore.dataset import ask_about, readable_files, write_dataset
from reflectrl.envs.auto_explore.questions import write_questions
from reflectrl.envs.auto_explore.sources import fetch_all

if TYPE_CHECKING:  # imported where a chat model asks: openai takes a second
    from reflectrl.players.chat import Usage

File = tuple[str, str]
"""Path and text."""
Pairs = Sequence[tuple[str, str]]
"""Questions and answers."""
Progress = Callable[[int, int, str], None]
"""Told of what is done, of what is wanted, and what is counted."""


def build_dataset(recipe: Recipe, run: Path, progress: Progress | None = None) -> list[Usage]:
    """Fetch the repositories of ``recipe``, ask about their files, and write ``run/dataset``; once.

    Args:
        recipe: with or without a dataset section.
        run: the run folder.
        progress: told of the files that a chat model was asked about.

    Returns:
        What the calls to a chat model came to in this process, one entry a repository.

    Raises:
        InvalidInput: a source that is none or was given twice, too few questions, no key for the endpoint.
        WorkFailed: a source or the endpoint cannot be reached; answers that were paid for are kept.

    """
    section, folder = recipe.dataset, run / DATASET
    usages: list[Usage] = []
    if section is None:
        return usages
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(prefix="reflectrl-") as fetched:
            if progress is not None:
                progress(0, len(section.repositories), "fetching repositories")
            repositories = fetch_all(section.repositories, Path(fetched))
            files = {name: _chosen(path, section.files, recipe.seed) for name, path in sorted(repositories.items())}
            if section.writer == "openai":
                written, usages = asyncio.run(_ask_chat(section, files, run, progress))
            else:
                written = {file: write_questions(*file) for chosen in files.values() for file in chosen}
            dataset = ask_about(
                repositories,
                lambda file, text: written.get((file, text), ()),
                per_file=section.per_file,
                seed=recipe.seed,
            )
            write_dataset(folder, dataset)
    for partial in run.glob(_partial("*")):
        partial.unlink()
    return usages


def _partial(repository: str) -> str:
    """The replies about a repository that are paid for, until the dataset is written."""
    return f"data/questions-{repository}.partial.jsonl"


def _chosen(repository: Path, count: int | None, seed: int) -> Sequence[File]:
    """The files that are asked about."""
    files = readable_files(repository).readable
    if count is None or count >= len(files):
        return files
    return sorted(random.Random(f"{seed} files").sample(files, count))


async def _ask_chat(
    section: DatasetSection, files: Mapping[str, Sequence[File]], run: Path, progress: Progress | None
) -> tuple[dict[File, Pairs], list[Usage]]:
    """What a chat model asks about each file, and what it cost for each repository."""
    from reflectrl.data_gen.questions import ask_chat, reply_tokens
    from reflectrl.players.chat import ChatClient, Endpoint

    enough = max(section.endpoint.max_tokens, reply_tokens(section.per_file))
    endpoint = Endpoint(**{**section.endpoint.model_dump(), "max_tokens": enough})
    written: dict[File, Pairs] = {}
    usages: list[Usage] = []
    for name, chosen in files.items():
        client, partial = ChatClient(endpoint), run / _partial(name)

        def tell(done: int, total: int, name: str = name) -> None:
            if progress is not None:
                progress(done, total, f"files of {name} asked about")

        asked = await ask_chat(client, chosen, per_file=section.per_file, partial=partial, progress=tell)
        usages.append(client.usage)
        written |= {(file, text): asked[file] for file, text in chosen}
    return written, usages
