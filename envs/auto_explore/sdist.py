"""Source archives of Python packages, fetched from the user's package index without running any code of theirs.

pip itself cannot do this: to read the metadata of a source archive, ``pip download`` runs the package's build backend.
"""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.core import InvalidInput, ReflectRLError, WorkFailed
from reflectrl.core.addresses import without_credentials
from reflectrl.core.foreign import child_environment
from reflectrl.core.text import first_line

if TYPE_CHECKING:
    from unearth import PackageFinder
    from unearth.link import Link

PYPI = "https://pypi.org/simple/"
MAX_BYTES = 1 << 30
_ELSEWHERE = "name a mirror (PIP_INDEX_URL) or a folder that holds the archive (PIP_FIND_LINKS)"


def download_sdist(requirement: str, folder: Path, timeout_s: float) -> Path:
    """Fetch a package's source archive, checked by the index's hash, from the index that pip is configured for.

    Args:
        requirement: ``NAME`` or ``NAME==VERSION``.
        folder: folder to fetch it to; an archive in a local folder of ``find-links`` is used where it is.
        timeout_s: maximum seconds for the download.

    Returns:
        The archive's path.

    Raises:
        InvalidInput: an archive above ``MAX_BYTES``.
        WorkFailed: the index cannot be reached, has no such archive or no hash of it, or another file came; or there
            is no pip, whose settings name the index.
    """
    import httpx2
    from unearth.errors import HashMismatchError, UnpackError

    what = f"the source archive of {requirement}"
    finder = _finder(what, requirement.partition("==")[0])
    deadline = time.monotonic() + timeout_s

    def check(_link: Link, completed: int, total: int | None) -> None:
        if max(completed, total or 0) > MAX_BYTES:
            raise InvalidInput(f"{what} is larger than {MAX_BYTES >> 30} GiB; name a smaller package.")
        if time.monotonic() > deadline:
            raise WorkFailed(f"{what} was not there after {timeout_s:g} seconds; try again later.")

    try:
        found = finder.find_best_match(requirement).best
        if found is None:
            raise WorkFailed(
                f"{what} is on none of the package indexes that pip is configured for; correct the name or the "
                f"version, or {_ELSEWHERE}."
            )
        if found.link.is_file:
            _check_local(found.link, [source["url"] for source in finder.sources], what)
            return Path(finder.download(found.link, folder, download_reporter=check))
        strong = {name: given for name, given in (found.link.hash_option or {}).items() if name.startswith("sha")}
        if not strong.keys() - {"sha1"}:
            raise WorkFailed(f"{what} has no SHA-2 hash at {found.link.redacted}; name an index that gives hashes.")
        return Path(finder.download(found.link, folder, hashes=strong, download_reporter=check))
    except ReflectRLError:
        raise
    except HashMismatchError as error:
        raise WorkFailed(
            f"{what} differs from the file whose hash the index gives: the download was cut short, or another file "
            "stands in its place, and nothing of it was used; repeat the command, and if it fails again, name an "
            "index that you trust (PIP_INDEX_URL)."
        ) from error
    except (UnpackError, OSError, ValueError, TypeError, AttributeError, RecursionError, httpx2.HTTPError) as error:
        reason = without_credentials(first_line(error))
        raise WorkFailed(f"{what} could not be fetched ({reason}); go online, or {_ELSEWHERE}.") from error


def _check_local(link: Link, sources: Sequence[str], what: str) -> None:
    """Refuse a file of this machine that a server names; the user's folders of archives and local indexes may."""
    file, here = link.file_path.resolve(), [_local(source) for source in sources]
    ours = None not in here or any(file.is_relative_to(place.resolve()) for place in here if place)
    if not ours or not file.is_file():
        raise WorkFailed(f"{what} is {file} by its index, which is not read; {_ELSEWHERE}.")


def _local(source: str) -> Path | None:
    """Return the path of an index or a folder of archives on this machine; ``None`` for one of a server."""
    from unearth.link import Link

    path = Link(source).file_path if source.startswith("file:") else Path(source)
    return None if "://" in source and not source.startswith("file:") else path


def _finder(what: str, package: str) -> PackageFinder:
    """Return a finder of the source archives of ``package`` with the indexes, proxy and certificates of pip."""
    from unearth import PackageFinder
    from unearth.auth import MultiDomainBasicAuth
    from unearth.fetchers import PyPIClient

    logging.getLogger("unearth").addHandler(logging.NullHandler())  # what it warns of is part of our sentences
    settings = _pip_settings(what)
    no_index = settings.get("no-index", "").lower() in ("1", "true", "yes", "on")
    indexes = [settings.get("index-url", PYPI), *settings.get("extra-index-url", "").split()] * (not no_index)
    folders = [link for link in settings.get("find-links", "").split() if "://" in link or Path(link).exists()]
    if not indexes and not folders:
        raise WorkFailed(
            f"{what} is to be fetched, but pip is told to use no index (PIP_NO_INDEX); name a folder that holds the "
            "archive (PIP_FIND_LINKS)."
        )
    hosts = settings.get("trusted-host", "").split()
    session = PyPIClient(
        trusted_hosts=hosts,
        verify=settings.get("cert", True),
        cert=settings.get("client-cert"),
        proxy=settings.get("proxy"),
        timeout=float(settings.get("timeout", settings.get("default-timeout", "15"))),
        auth=MultiDomainBasicAuth(prompting=False, index_urls=indexes),
        follow_redirects=True,
    )
    return PackageFinder(session, index_urls=indexes, find_links=folders, trusted_hosts=hosts, no_binary=[package])


def _pip_settings(what: str) -> Mapping[str, str]:
    """Return pip's settings for downloads, from its files and from variables; later ones override."""
    command = (sys.executable, "-P", "-m", "pip", "config", "list")  # -P: no pip of the working folder
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=child_environment()
    )
    if done.returncode != 0:
        raise WorkFailed(
            f"{what} is fetched with the settings of pip, which cannot be read ({done.stderr.strip()[-200:]}); if pip "
            f"is not installed in this environment, run {sys.executable} -m ensurepip."
        )
    scopes: dict[str, dict[str, str]] = {"global": {}, "download": {}, ":env:": {}}
    for line in done.stdout.splitlines():
        key, _, value = line.partition("=")
        scope, _, name = key.rpartition(".")
        if scope in scopes:
            scopes[scope][name] = str(ast.literal_eval(value))
    return {name: value for scope in scopes.values() for name, value in scope.items()}
