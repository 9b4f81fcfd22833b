"""Sources of repositories: a folder, git, the source archive of a Python package, or the synthetic company."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from reflectrl.core import InvalidInput, WorkFailed, nearest
from reflectrl.core.addresses import without_credentials
from reflectrl.core.files import user_path
from reflectrl.envs.auto_explore.company import write_company
from reflectrl.envs.auto_explore.company.catalog import SIZES
from reflectrl.envs.auto_explore.sdist import download_sdist

FORMS = (
    "a folder; git+URL, https://HOST/PATH.git or git@HOST:PATH; pypi:NAME or pypi:NAME==VERSION; "
    "company:nano or company:full, with :SEED if wanted"
)
TIMEOUT_S = 600.0

_PACKAGE = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(==[A-Za-z0-9][A-Za-z0-9.!+_-]*)?")
_GIT_URL = re.compile(r"(https?|ssh|git)://(?!-)\S+|file://.+|[\w.]+@[\w.][\w.-]*:[^-:\s]\S*")
_TRANSPORTS = "file:git:http:https:ssh"
_OF_ONE_REPOSITORY = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE")
"""Variables that git sets while it runs a hook, and that would redirect a clone."""


def fetch_all(sources: Sequence[str], folder: Path) -> Mapping[str, Path]:
    """Fetch several sources; return the repositories by name.

    Raises:
        InvalidInput: a source given twice, and what ``fetch`` raises.
    """
    repositories: dict[str, Path] = {}
    same = list(map(_same, sources))
    for number, source in enumerate(sources):
        if same[number] in same[:number]:
            raise InvalidInput(
                f"source {_shown(source)} was given twice; its test questions would be known: remove one."
            )
        name, path = fetch(source, folder, taken=repositories)
        repositories[name] = path
    return repositories


def _same(source: str) -> str:
    """Return a form that is equal for sources of one repository, as far as their names tell."""
    form, _, rest = source.partition(":")
    if form == "company":
        size, _, seed = rest.partition(":")
        return f"company:{size}:{int(seed) if seed.isdecimal() else seed or 0}"
    if form == "pypi":
        return re.sub(r"[-_.]+", "-", source.partition("==")[0]).lower()
    plain = source.removeprefix("git+").rstrip("/").removesuffix(".git")
    return plain if "://" in plain or source.startswith("git@") else str(user_path(source).resolve())


def fetch(source: str, folder: Path, *, taken: Collection[str] = (), timeout_s: float = TIMEOUT_S) -> tuple[str, Path]:
    """Fetch a repository to this machine.

    Args:
        source: one of ``FORMS``. Nothing of what is fetched is executed.
        folder: gets the repository, unless the source is a folder itself, which is used as it is and never written to.
        taken: names of other repositories.
        timeout_s: maximum seconds for git, or for the download of a package.

    Returns:
        A new name that is safe for a folder, and the repository's folder.

    Raises:
        InvalidInput: a source of no known form, or a folder that does not exist.
        WorkFailed: git or the package index failed or took too long.
    """
    form, _, rest = source.partition(":")
    if form == "company":
        return _company(source, rest, folder, taken)
    if form == "pypi":
        return _package(source, rest, folder, taken, timeout_s)
    if source.startswith(("git+", "git@")) or (form in ("https", "http", "ssh") and source.endswith(".git")):
        return _clone(source, folder, taken, timeout_s)
    path = user_path(source)
    if not source or not path.is_dir():
        raise InvalidInput(f"source {_shown(source)} is neither a folder nor of another known form; expected {FORMS}.")
    return _unused(path.resolve().name, taken), path


def _company(source: str, rest: str, folder: Path, taken: Collection[str]) -> tuple[str, Path]:
    size, _, seed = rest.partition(":")
    if size not in SIZES:
        raise InvalidInput(f"source {source!r} has size {size!r}; {nearest(size, SIZES)}")
    if ":" in rest and not re.fullmatch(r"[0-9]{1,9}", seed):
        raise InvalidInput(f"source {source!r} has seed {seed!r}; expected a whole number, as in company:{size}:1.")
    name = _unused(f"company-{size}", taken, folder)
    write_company(folder / name, size, int(seed or 0))
    return name, folder / name


def _package(source: str, rest: str, folder: Path, taken: Collection[str], timeout_s: float) -> tuple[str, Path]:
    package = _PACKAGE.fullmatch(rest)
    if package is None:
        raise InvalidInput(f"source {source!r} names no package; expected pypi:NAME or pypi:NAME==VERSION.")
    folder.mkdir(parents=True, exist_ok=True)
    name = _unused(package[1], taken, folder)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as place:
        archive = download_sdist(rest, Path(place) / "downloads", timeout_s)
        unpack(archive, Path(place) / "unpacked").rename(folder / name)
    return name, folder / name


def _clone(source: str, folder: Path, taken: Collection[str], timeout_s: float) -> tuple[str, Path]:
    url = source.removeprefix("git+")
    if url and Path(url).is_dir():
        url = str(Path(url).resolve())
    elif not _GIT_URL.fullmatch(url):
        raise InvalidInput(
            f"source {_shown(source)} is neither a folder with a git repository nor a git URL; expected git+FOLDER, "
            "git+https://..., git+ssh://..., git+file://... or git@HOST:PATH."
        )
    folder.mkdir(parents=True, exist_ok=True)
    name = _unused(url.rstrip("/").removesuffix(".git").rpartition("/")[2].rpartition(":")[2], taken, folder)
    how = ("--depth", "1", "--no-tags", "--single-branch", "--no-local", "--template=", "--quiet")
    environment = {
        "GIT_ALLOW_PROTOCOL": _TRANSPORTS,
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", "ssh -o BatchMode=yes"),
        "GIT_TERMINAL_PROMPT": "0",
    }
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as place:
        path = Path(place) / name
        _run(
            ("git", "-c", "core.hooksPath=/dev/null", "clone", *how, "--", url, str(path)),
            environment,
            _shown(source),
            timeout_s,
        )
        shutil.rmtree(path / ".git")
        path.rename(folder / name)
    return name, folder / name


def _run(command: Sequence[str], environment: Mapping[str, str], what: str, timeout_s: float) -> None:
    """Run git; after a failure or a timeout, none of its processes remain."""
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_ONE_REPOSITORY}
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**inherited, **environment},
                start_new_session=True,
            )
        except OSError as error:
            raise WorkFailed(f"{what} needs the program {command[0]!r} ({error.strerror}); install it.") from error
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise WorkFailed(f"{what} was not there after {timeout_s:g} seconds; try again later.") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code != 0:
            output.seek(0)
            last = " ".join(output.read().decode(errors="replace").split())[-600:]
            raise WorkFailed(f"{what} could not be fetched: {without_credentials(last)}")


def _unused(name: str, taken: Collection[str], folder: Path | None = None) -> str:
    """Turn ``name`` into a folder's name that is not in use yet, also not in ``folder``."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "repository"
    unused, number = safe, 1
    while unused in taken or (folder is not None and (folder / unused).exists()):
        number += 1
        unused = f"{safe}-{number}"
    return unused


def _shown(source: str) -> str:
    return repr(without_credentials(source))


@dataclass(frozen=True)
class ArchiveLimits:
    """Largest content of an archive: a few kilobytes can unpack to a full disk."""

    members: int = 50_000
    bytes: int = 1 << 30


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


def unpack(archive: Path, folder: Path, limits: ArchiveLimits | None = None) -> Path:
    """Unpack the folders and regular files of a tar or zip archive; links, which players are never shown, are left out.

    Returns:
        The archive's only top-level folder, or ``folder`` if it has several entries.

    Raises:
        InvalidInput: a member that would lie outside ``folder``, a device, or more than ``limits``.
        WorkFailed: no archive, a damaged one, or a full disk.
    """
    folder.mkdir(parents=True)
    limits = limits or ArchiveLimits()
    try:
        for name, size in _unpack_zip(archive, folder) if zipfile.is_zipfile(archive) else _unpack_tar(archive, folder):
            limits = ArchiveLimits(limits.members - 1, limits.bytes - max(0, size))
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
