"""``left_out``: what a copy holds that is not written back to the repository, in sentences."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from reflectrl.core import InvalidInput
from reflectrl.envs.auto_explore.tree import MAX_DEPTH, ROOT, Tree, shown, visible

EXAMPLES = 3
"""Number of paths that a sentence names."""

NAME = "names that are not printable"
HIDDEN = "hidden names"
DEEP = f"folders deeper than {MAX_DEPTH}"
CLOSED = "what may not be read"
LINKED = "files with further names (hard links)"
EXECUTABLE = "permission to execute, given or taken"
LINK = "links that were added, changed or removed"
OTHER = "pipes and sockets"
REPLACED = "links, pipes and sockets in the place of files, which stay"


class Copied(NamedTuple):
    """A file as it was copied."""

    size: int
    digest: bytes
    executable: bool


def left_out(tree: Tree, files: Mapping[PurePosixPath, Copied], links: Mapping[PurePosixPath, str]) -> tuple[str, ...]:
    """Return a sentence for each kind of change in ``tree`` that is not kept; ``files`` and ``links`` were copied."""
    found: dict[str, list[PurePosixPath]] = {}
    held = {*files, *(folder for file in files for folder in file.parents)}
    seen = set()
    for path, kind, target in _entries(tree, files):
        if target is not None:
            seen.add(path)
            kind = LINK if links.get(path) != target else ""
        if kind:
            found.setdefault(REPLACED if kind in (LINK, OTHER) and path in held else kind, []).append(path)
    gone = links.keys() - seen
    if gone:
        found.setdefault(LINK, []).extend(gone)
    return tuple(_sentence(kind, sorted(paths)) for kind, paths in found.items())


def _entries(tree: Tree, files: Mapping[PurePosixPath, Copied]) -> Iterator[tuple[PurePosixPath, str, str | None]]:
    """Yield path, reason (which may be empty) and the link's target of what may not be kept."""
    pending = [ROOT]
    while pending:
        here = pending.pop()
        try:
            with tree.folder(here) as (fd, _), os.scandir(fd) as items:
                for item in items:
                    path = here / item.name
                    if not visible(item.name):
                        yield path, HIDDEN if item.name.isprintable() else NAME, None
                    elif item.is_symlink():
                        yield path, LINK, os.readlink(item.name, dir_fd=fd)
                    elif not item.is_dir(follow_symlinks=False):
                        yield path, _reason(item, fd, files.get(path)), None
                    elif len(path.parts) > MAX_DEPTH:
                        yield path, DEEP, None
                    else:
                        pending.append(path)
        except InvalidInput:
            yield here, CLOSED, None


def _reason(item: os.DirEntry[str], folder: int, copied: Copied | None) -> str:
    """Return why a file, pipe or socket is not kept as it is; empty if it is."""
    if not item.is_file(follow_symlinks=False):
        return OTHER
    status = item.stat(follow_symlinks=False)
    if status.st_nlink > 1:
        return LINKED
    if not os.access(item.name, os.R_OK, dir_fd=folder, effective_ids=True):
        return CLOSED
    executable = bool(status.st_mode & stat.S_IXUSR)
    return EXECUTABLE if executable != (copied is not None and copied.executable) else ""


def _sentence(kind: str, paths: list[PurePosixPath]) -> str:
    names = ", ".join(shown(path) for path in paths[:EXAMPLES])
    more = f" and {len(paths) - EXAMPLES:,} more" if len(paths) > EXAMPLES else ""
    return f"{kind}: {names}{more}"
