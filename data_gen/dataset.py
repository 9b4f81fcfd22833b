"""``build_dataset``: questions about the repositories of a recipe, for environments that play a dataset."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.config.environment import DATASET
from reflectrl.config.schema import DatasetSection
from reflectrl.envs.auto_explore.dataset import ask_about, readable_files, write_dataset
from reflectrl.envs.auto_explore.questions import write_questions
from reflectrl.envs.auto_explore.sources import fetch_all

Pairs = Sequence[tuple[str, str]]


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
            write: Callable[[str, str], Pairs] = write_questions
            if section.writer == "openai":
                write = asyncio.run(_chat_writer(section, repositories, run))
            write_dataset(folder, ask_about(repositories, write, per_file=section.per_file, seed=recipe.seed))
    for partial in run.glob(_partial("*")):
        partial.unlink()


def _partial(repository: str) -> str:
    """The replies about a repository that are paid for, until the dataset is written."""
    return f"data/questions-{repository}.partial.jsonl"


async def _chat_writer(
    section: DatasetSection, repositories: Mapping[str, Path], run: Path
) -> Callable[[str, str], Pairs]:
    """What a chat model asks about each file, as a writer that looks it up."""
    from reflectrl.data_gen.questions import ask_chat, reply_tokens
    from reflectrl.players.chat import ChatClient, Endpoint

    enough = max(section.endpoint.max_tokens, reply_tokens(section.per_file))
    endpoint = Endpoint(**{**section.endpoint.model_dump(), "max_tokens": enough})
    written: dict[tuple[str, str], Pairs] = {}
    for name, folder in sorted(repositories.items()):
        files = readable_files(folder).readable
        asked = await ask_chat(ChatClient(endpoint), files, per_file=section.per_file, partial=run / _partial(name))
        written |= {(file, text): asked[file] for file, text in files}
    return lambda file, text: written[file, text]
