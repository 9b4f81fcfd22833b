"""``write_company``: writes the planned files, with one in memory at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from reflectrl.core import InvalidInput
from reflectrl.core.seeds import derive_seed
from reflectrl.envs.auto_explore.company.catalog import MARKDOWN, TABLE
from reflectrl.envs.auto_explore.company.plan import Folder, Size, plan_company, size_named
from reflectrl.envs.auto_explore.company.texts import LANGUAGES, policy, root_files, source, table


def write_company(folder: Path, size: str = "nano", seed: int = 0) -> None:
    """Write a company's repository into ``folder``, which is created.

    Args:
        folder: a folder that is absent or empty.
        size: ``nano``, 243 files in two levels of folders, or ``full``, about 12 million tokens in three.
        seed: draws the facts and, for ``full``, which files a folder has; never its subjects.

    Raises:
        InvalidInput: an unknown size, or a folder that is not empty.

    """
    scale = size_named(size)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InvalidInput(f"the company cannot be written to {str(folder)!r}, which is not an empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in root_files(scale, _rng(seed, "root")).items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    for planned in plan_company(size, seed):
        folder.joinpath(*planned.path).mkdir()
        for path, text in folder_files(planned, scale, seed):
            (folder / path).write_text(text, encoding="utf-8", newline="\n")


def folder_files(folder: Folder, size: Size, seed: int) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield the files of one planned folder: path from the root, and text."""
    kind = folder.subject.kind
    write, suffix = {MARKDOWN: (policy, "md"), TABLE: (table, "csv")}.get(kind) or (source, LANGUAGES[kind].suffix)
    for entity in folder.entities:
        path = PurePosixPath(*folder.path, f"{entity}.{suffix}")
        yield path, write(folder, entity, size, _rng(seed, str(path)))


def _rng(seed: int, purpose: str) -> random.Random:
    return random.Random(derive_seed("company", seed, purpose))
