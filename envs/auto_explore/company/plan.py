"""Plan of the folders of a company of some size and seed, before anything is written."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import MappingProxyType

from reflectrl.core import InvalidInput, nearest
from reflectrl.core.seeds import derive_seed
from reflectrl.envs.auto_explore.company.catalog import (
    CITIES,
    COASTS,
    DEPARTMENTS,
    DRINKS,
    GROUPS,
    MARKDOWN,
    SCREENS,
    SERVICES,
    TABLE,
    Subject,
)


@dataclass(frozen=True)
class Size:
    """Size of a company."""

    topics: int
    """Number of folders of a department."""
    groups: int
    """Number of folders of a topic."""
    files: int
    """Number of files of each folder."""
    pool: int
    """Number of entities that a folder's files are drawn from."""
    sentences: tuple[int, int]
    """Fewest and most sentences below a heading."""
    rows: tuple[int, int]
    """Fewest and most rows of a table."""
    steps: tuple[int, int]
    """Fewest and most steps of a function."""


SIZES = MappingProxyType(
    {
        "nano": Size(topics=2, groups=0, files=8, pool=8, sentences=(2, 3), rows=(12, 12), steps=(1, 3)),
        "full": Size(topics=4, groups=4, files=16, pool=60, sentences=(60, 80), rows=(550, 650), steps=(90, 130)),
    }
)


@dataclass(frozen=True)
class Folder:
    """A folder and its files; folders inside it are separate entries of the plan."""

    path: tuple[str, ...]
    """Names of the folders from the root."""
    subject: Subject
    entities: tuple[str, ...]
    """Entities of the folder, one file each, sorted."""
    group: str = ""
    """Word of the sub-topic, to which every aspect in the folder is narrowed."""


def size_named(name: str) -> Size:
    """Return the size called ``name``.

    Raises:
        InvalidInput: there is none.
    """
    if name not in SIZES:
        raise InvalidInput(f"company size {name!r} is unknown; {nearest(str(name), SIZES)}")
    return SIZES[name]


def plan_company(size: str = "nano", seed: int = 0) -> tuple[Folder, ...]:
    """Return every folder that holds files, parents first.

    The seed draws a folder's entities from its pool. The pools of the small company are no larger than its folders, so
    there all folders of a kind hold the same entities with every seed.

    A topic shares no entity with its sub-topics: "sick notes in oslo" and "sick notes for managers in oslo" never both
    exist, because the words of the second answer the first as well.
    """
    scale = size_named(size)
    folders = []
    for department in DEPARTMENTS:
        folders += _folders((), department.own, scale, 0, seed)
        for topic in department.topics[: scale.topics]:
            folders += _folders((department.own.name,), topic, scale, scale.groups, seed)
    return tuple(folders)


def _folders(above: tuple[str, ...], subject: Subject, scale: Size, groups: int, seed: int) -> list[Folder]:
    path = (*above, subject.name)
    rng = random.Random(derive_seed("company", seed, "plan", *path))
    entities, words = _pools(subject.kind)
    drawn = rng.sample(entities[: scale.pool], scale.pool)
    own, others = drawn[: scale.files], drawn[scale.files :]
    below = (
        Folder((*path, word), subject, tuple(sorted(rng.sample(others, scale.files))), word) for word in words[:groups]
    )
    return [Folder(path, subject, tuple(sorted(own))), *below]


def _pools(kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words that name the files and sub-topics of a kind."""
    return {MARKDOWN: (CITIES, GROUPS), TABLE: (DRINKS, COASTS)}.get(kind, (SERVICES, SCREENS))
