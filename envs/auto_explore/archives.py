"""``unpack``: an archive that somebody else made, into a folder that nothing of it can leave."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from reflectrl.core import InvalidInput, WorkFailed


@dataclass(frozen=True)
class Limits:
    """How large the content of an archive may be: a few kilobytes can unpack to a full disk."""

    members: int = 50_000
    bytes: int = 1 << 30


DEFAULT_LIMITS = Limits()

_DAMAGE = (
    EOFError,
    OSError,
    RuntimeError,  # a zip archive with a password, or packed in an unknown way
    ValueError,  # a name that no file can have
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


def unpack(archive: Path, folder: Path, limits: Limits = DEFAULT_LIMITS) -> Path:
    """Unpack the folders and regular files of a tar or zip archive; links, which nobody is ever shown, are left out.

    Returns:
        The archive's only top-level folder, or ``folder`` if it has several entries.

    Raises:
        InvalidInput: a member that would lie outside ``folder``, a device, or more than ``limits``.
        WorkFailed: no archive, a damaged one, or a full disk.

    """
    folder.mkdir(parents=True)
    try:
        for name, size in _unpack_zip(archive, folder) if zipfile.is_zipfile(archive) else _unpack_tar(archive, folder):
            limits = Limits(limits.members - 1, limits.bytes - max(0, size))
            if min(limits.members, limits.bytes) < 0:
                raise InvalidInput(f"{archive.name} is too large from member {name!r} on; expected a source archive.")
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise InvalidInput(f"{archive.name} has member {name!r}, outside its folder; do not use this archive.")
    except InvalidInput:
        raise
    except _DAMAGE as error:
        raise WorkFailed(
            f"{archive.name} cannot be unpacked ({error}); expected a whole tar or zip archive."
        ) from error
    entries = list(folder.iterdir())
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else folder


def _unpack_tar(archive: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """Yield each member's name and size before it is unpacked, so that the caller can object."""
    with tarfile.open(archive) as tar:
        for member in tar:
            yield member.name, member.size
            if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                raise InvalidInput(f"{archive.name} has member {member.name!r}, a device; do not use this archive.")
            if member.isreg() or member.isdir():
                tar.extract(member, folder, filter="data")


def _unpack_zip(archive: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """Yield each member's name and size before it is unpacked, so that the caller can object."""
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            yield member.filename, member.file_size
            file.extract(member, folder)
