"""``build_dataset``: questions about the repositories of a recipe, for environments that play a dataset."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.config.environment import DATASET
from reflectrl.config.schema import DatasetSection
from reflectrl.envs.auto_explore.dataset import ask_about, readable_files, write_dataset
from reflectrl.envs.auto_explore.questions import write_questions
from reflectrl.envs.auto_explore.sources import fetch_all

File = tuple[str, str]
"""Path and text."""
Pairs = Sequence[tuple[str, str]]
"""Questions and answers."""


def build_dataset(recipe: Recipe, run: Path) -> None:
    """Fetch the repositories of ``recipe``, ask about their files, and write ``run/dataset``; once.

    Raises:
        InvalidInput: a source that is none or was given twice, too few questions, no key for the endpoint.
        WorkFailed: a source or the endpoint cannot be reached; answers that were paid for are kept.

    """
    section, folder = recipe.dataset, run / DATASET
    if section is None:
        return
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(prefix="reflectrl-") as fetched:
            repositories = fetch_all(section.repositories, Path(fetched))
            files = {name: _chosen(path, section.files, recipe.seed) for name, path in sorted(repositories.items())}
            if section.writer == "openai":
                written = asyncio.run(_ask_chat(section, files, run))
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


def _partial(repository: str) -> str:
    """The replies about a repository that are paid for, until the dataset is written."""
    return f"data/questions-{repository}.partial.jsonl"


def _chosen(repository: Path, count: int | None, seed: int) -> Sequence[File]:
    """The files that are asked about."""
    files = readable_files(repository).readable
    if count is None or count >= len(files):
        return files
    return sorted(random.Random(f"{seed} files").sample(files, count))


async def _ask_chat(section: DatasetSection, files: Mapping[str, Sequence[File]], run: Path) -> dict[File, Pairs]:
    """What a chat model asks about each file."""
    from reflectrl.data_gen.questions import ask_chat, reply_tokens
    from reflectrl.players.chat import ChatClient, Endpoint

    enough = max(section.endpoint.max_tokens, reply_tokens(section.per_file))
    endpoint = Endpoint(**{**section.endpoint.model_dump(), "max_tokens": enough})
    written: dict[File, Pairs] = {}
    for name, chosen in files.items():
        client, partial = ChatClient(endpoint), run / _partial(name)
        asked = await ask_chat(client, chosen, per_file=section.per_file, partial=partial)
        written |= {(file, text): asked[file] for file, text in chosen}
    return written
