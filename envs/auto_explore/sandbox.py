"""``Sandbox``: a private copy of a repository, the commands that explore it, and the changes they made (appendix C.1).

The copy is in the folder for temporary files; for a RAM disk, set ``TMPDIR`` to a folder in memory.
"""

from __future__ import annotations

import copy
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Self

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.envs.auto_explore.commands import Result, Shell
from reflectrl.envs.auto_explore.files import MAX_BYTES, decoded
from reflectrl.envs.auto_explore.scratch import Scratch
from reflectrl.envs.auto_explore.tree import MAX_DEPTH, READ, ROOT, Entry, Limits, Tree, opened, shown, visible

__all__ = ["Entry", "Limits", "Result", "Sandbox"]

CHUNK_BYTES = 1024**2
ZEROS = bytes(CHUNK_BYTES)
DEFAULT_LIMITS = Limits()


@contextmanager
def _system_errors() -> Iterator[None]:
    """Turn errors of the system, such as a full disk, into ``WorkFailed``."""
    try:
        yield
    except OSError as error:
        raise WorkFailed(f"the copy of the repository cannot be used: {error.strerror or error}.") from error


class Sandbox:
    """Commands on a private copy of ``repository``, which itself is never written.

    The copy leaves out hidden and unreadable files, names that are not text, links to the outside, and what is neither
    file nor folder. ``programs`` allows python and pip, which need bubblewrap. The copy is removed by ``close``, at the
    end of a ``with`` block, with its last user, or when the interpreter exits; after a SIGKILL, when the next one is
    made.

    Raises:
        InvalidInput: ``repository`` is not a folder, or holds more than ``limits`` allow.
        WorkFailed: it could not be copied.
    """

    def __init__(self, repository: Path, *, limits: Limits = DEFAULT_LIMITS, programs: bool = False) -> None:
        if not repository.is_dir():
            what = "is not a folder" if repository.exists() else "does not exist"
            raise InvalidInput(f"repository {str(repository)!r} {what}; give the folder of a repository.")
        self._repository = repository
        self._limits = limits
        self._programs = programs
        self._copied: dict[PurePosixPath, Copied] = {}
        self._links: dict[PurePosixPath, str] = {}  # the copied ones, with their targets
        self._bytes = self._entries = 0
        with _system_errors():
            self._scratch = Scratch()
        self._owns = True
        try:
            root = self._scratch.folder / "copy"
            root.mkdir(mode=0o700)
            self._tree = Tree(root)
            self._fill(Tree(repository.resolve()))
        except OSError as error:
            self.close()
            raise WorkFailed(f"repository {str(repository)!r} cannot be copied: {error}.") from error
        except BaseException:
            self.close()
            raise
        self._shell = self._new_shell(writable=True)

    @property
    def root(self) -> Path:
        """The folder of the copy."""
        return self._tree.root

    @property
    def cwd(self) -> PurePosixPath:
        """The working directory, relative to the root and without links."""
        return self._shell.cwd

    @_system_errors()
    def run(self, command: str) -> Result:
        """Execute one command. An error becomes a sentence in the result.

        Raises:
            WorkFailed: the copy has gone, or the system failed.
        """
        return self._shell.run(command)

    @_system_errors()
    def entries(self) -> tuple[Entry, ...]:
        """Return the visible entries of the working directory: folders first, each part by name.

        Raises:
            InvalidInput: the working directory was removed.
            WorkFailed: the copy has gone, or the system failed.
        """
        return self._tree.entries(self.cwd)

    @_system_errors()
    def text(self, path: PurePosixPath) -> str:
        """Return the text of the file at ``path``, up to a megabyte; empty if the file is binary or unreadable.

        Raises:
            WorkFailed: the copy has gone, or the system failed.
        """
        with suppress(InvalidInput), self._tree.file(path) as fd:
            return decoded(os.pread(fd, MAX_BYTES + 1, 0))[0]
        return ""

    @_system_errors()
    def texts(self) -> dict[str, str]:
        """Return ``text`` of every visible file, by path, without following links.

        Raises:
            WorkFailed: the copy has gone, or the system failed.
        """
        self._tree.check()
        return {str(path): self.text(path) for path in sorted(self._tree.files())}

    def view(self) -> Sandbox:
        """Return another sandbox on the same copy, for reading only, with its own working directory."""
        self._tree.check()
        other = copy.copy(self)
        other._shell = self._new_shell(writable=False)
        other._owns = False
        return other

    def _new_shell(self, *, writable: bool) -> Shell:
        return Shell(self._tree, self._limits, writable=writable, programs=self._programs, entries=self._entries)

    @_system_errors()
    def changes(self) -> dict[str, bytes | None]:
        """Return the files that differ from the original: path and present content, or ``None`` for a removed file.

        Raises:
            WorkFailed: the copy has gone, a file in it cannot be read, or the changed files hold more than
                ``limits.changed_bytes``.
        """
        self._tree.check()
        changed: dict[str, bytes | None] = {}
        read, held = set(), 0

        def hold(size: int) -> None:
            nonlocal held
            held += size
            if held > (most := self._limits.changed_bytes):
                raise WorkFailed(
                    f"the changed files, as they were and are, hold more than {most:,} bytes, so nothing is kept."
                )

        for path in self._tree.files():
            with suppress(InvalidInput), self._tree.file(path) as fd, os.fdopen(fd, "rb", closefd=False) as file:
                read.add(path)
                size = os.fstat(fd).st_size
                known = self._copied.get(path)
                if known and known.size == size and known.digest == hashlib.file_digest(file, _digest).digest():
                    continue
                hold(size + (known.size if known else 0))
                file.seek(0)
                changed[str(path)] = file.read(size)
        for path in self._copied.keys() - read:
            found = self._kind(path)
            if found == stat.S_IFREG:
                raise WorkFailed(
                    f"{shown(path)} cannot be read in the copy, because a program has taken its permissions or given "
                    "it a second name (a hard link), so nothing is kept."
                )
            if found in (None, stat.S_IFDIR):
                hold(self._copied[path].size)
                changed[str(path)] = None
        return dict(sorted(changed.items()))

    def _kind(self, path: PurePosixPath) -> int | None:
        """Return the kind of what is in the place of a file, or of its folder; ``S_IFREG`` where it cannot be told."""
        kind = None
        try:
            for place in (*reversed(path.parents), path):
                kind = stat.S_IFMT(os.lstat(self._tree.root / place).st_mode)
                if kind not in (stat.S_IFDIR, stat.S_IFREG):
                    break
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            return stat.S_IFREG
        return kind

    @_system_errors()
    def left_out(self) -> tuple[str, ...]:
        """Return sentences on what was changed and is not in ``changes``, such as links; empty folders are not named.

        Raises:
            WorkFailed: the copy has gone, or the system failed.
        """
        self._tree.check()
        return left_out(self._tree, self._copied, self._links)

    def original(self, name: str) -> bytes | None:
        """Read the repository's own file ``name``, which must be as it was copied; ``None`` if no file was copied.

        Raises:
            WorkFailed: the file has changed since, so the changes in the copy no longer fit.
        """
        path = PurePosixPath(name)
        known = self._copied.get(path)
        with suppress(OSError, InvalidInput):  # it is gone, or something else
            if known is None:
                try:
                    there = os.lstat(self._repository / path).st_mode
                except FileNotFoundError:
                    return None
                except NotADirectoryError:
                    if self._copied.keys() & set(path.parents):  # a folder took the place of this file
                        return None
                    raise
                if not stat.S_ISREG(there):
                    what = "folder" if stat.S_ISDIR(there) else "link" if stat.S_ISLNK(there) else "pipe or the like"
                    raise WorkFailed(
                        f"{shown(path)} is a {what} in {self._repository}, whose place no file can take; nothing is "
                        "written there."
                    )
            else:
                with Tree(self._repository.resolve()).file(path) as fd, os.fdopen(fd, "rb", closefd=False) as file:
                    data = file.read(known.size + 1)
                if (len(data), _digest(data).digest()) == known[:2]:
                    return data
        raise WorkFailed(
            f"{shown(path)} is no longer as it was when {self._repository} was copied, or has other names (hard "
            "links); nothing is written there."
        )

    @_system_errors()
    def close(self) -> None:
        """Remove the copy, for all its views, too; closing a view does nothing."""
        if self._owns:
            self._scratch.close()

    def __enter__(self) -> Self:
        """Use as a ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _fill(self, source: Tree) -> None:
        """Copy readable folders and files with visible names, then the links to something inside."""
        links: list[tuple[PurePosixPath, str]] = []
        pending = [ROOT]
        while pending:
            folder = pending.pop()
            with source.folder(folder) as (here, _), self._tree.folder(folder) as (there, _), os.scandir(here) as found:
                for item in sorted(found, key=lambda item: item.name):
                    path = folder / item.name
                    if not visible(item.name):
                        continue
                    self._count(path)
                    if item.is_symlink():
                        links.append((path, os.readlink(item.name, dir_fd=here)))
                    elif not item.is_dir(follow_symlinks=False):
                        self._copy_file(path, here, there)
                    elif self._is_folder_to_copy(path, here):
                        os.mkdir(item.name, 0o700, dir_fd=there)
                        pending.append(path)
        for path, target in links:
            if source.target(path) is not None:
                with self._tree.folder(path.parent) as (there, _):
                    os.symlink(target, path.name, dir_fd=there)
                self._links[path] = target

    def _is_folder_to_copy(self, path: PurePosixPath, parent: int) -> bool:
        """Return whether a folder is readable, not too deep, and not the copy itself."""
        try:
            with opened(path.name, parent) as fd:
                itself = os.path.samestat(os.fstat(fd), self._tree.root.parent.stat())
        except OSError:
            return False
        return not itself and len(path.parts) <= MAX_DEPTH

    def _copy_file(self, path: PurePosixPath, here: int, there: int) -> None:
        try:
            fd = os.open(path.name, READ, dir_fd=here)
        except OSError:  # unreadable, a socket, or gone meanwhile
            return
        with os.fdopen(fd, "rb", buffering=0) as original:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                return
            self._take(path, os.fstat(fd).st_size)
            made = os.open(path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 | mode & 0o100, dir_fd=there)
            size, digest = 0, _digest()
            with os.fdopen(made, "wb", buffering=0) as copied:
                while chunk := original.read(CHUNK_BYTES):
                    if ZEROS.startswith(chunk):  # a hole, which takes no space in the copy either
                        copied.seek(len(chunk), os.SEEK_CUR)
                    else:
                        copied.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                    if size > self._limits.copy_bytes:
                        self._take(path, size)
                copied.truncate(size)
        self._copied[path] = Copied(size, digest.digest(), bool(mode & stat.S_IXUSR))

    def _count(self, path: PurePosixPath) -> None:
        self._entries += 1
        if self._entries > self._limits.copy_files:
            raise InvalidInput(
                f"repository {str(self._repository)!r} holds more than {self._limits.copy_files:,} files and folders "
                f"(counted up to {shown(path)}); choose a smaller one, or raise Limits(copy_files=...)."
            )

    def _take(self, path: PurePosixPath, size: int) -> None:
        self._bytes += size
        if self._bytes > self._limits.copy_bytes:
            raise InvalidInput(
                f"repository {str(self._repository)!r} holds more than {self._limits.copy_bytes:,} bytes "
                f"({shown(path)} alone has {size:,}); choose a smaller one, or raise Limits(copy_bytes=...)."
            )


def _digest(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)


# ---- what a copy holds that is not written back to the repository ----------------------------------------------------

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
