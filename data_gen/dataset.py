"""``build_dataset``: questions about the repositories of a recipe, for environments that play a dataset."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.config.environment import DATASET
from reflectrl.config.schema import DatasetSection
from reflectrl.core import InvalidInput
from reflectrl.envs.auto_explore.dataset import ask_about, readable_files, write_dataset
from reflectrl.envs.auto_explore.questions import write_questions
from reflectrl.envs.auto_explore.sources import fetch

Pairs = Sequence[tuple[str, str]]


def build_dataset(recipe: Recipe, run: Path) -> None:
    """Fetch the repositories of ``recipe``, ask about their files, and write ``run/dataset``; once.

    Raises:
        InvalidInput: a source that is none, two repositories of one name, too few questions.
        WorkFailed: a source or the endpoint cannot be reached; answers that were paid for are kept.

    """
    section, folder = recipe.dataset, run / DATASET
    if section is None or folder.is_dir():
        return
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as fetched:
        repositories = _repositories(section, Path(fetched))
        writer = write_questions
        if section.writer == "openai":
            writer = asyncio.run(_chat_writer(section, repositories, run))
        write_dataset(folder, ask_about(repositories, writer, per_file=section.per_file, seed=recipe.seed))


def _repositories(section: DatasetSection, folder: Path) -> dict[str, Path]:
    repositories: dict[str, Path] = {}
    for source in section.repositories:
        name, path = fetch(source, folder)
        if name in repositories:
            raise InvalidInput(f"dataset.repositories names {name!r} twice; give each repository a name of its own.")
        repositories[name] = path
    return repositories


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
        partial = run / "data" / f"questions-{name}.partial.jsonl"
        asked = await ask_chat(ChatClient(endpoint), files, per_file=section.per_file, partial=partial)
        written |= {(file, text): asked[file] for file, text in files}
    return lambda file, text: written[file, text]
