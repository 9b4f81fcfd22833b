"""The version of reflectrl that wrote a run folder or an exported agent, for errors when another one cannot read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectrl.core.errors import InvalidInput
from reflectrl.core.jsonl import read_json
from reflectrl.core.layout import AGENT, LEDGER

FORMAT = 3
"""Format of the run folders and exports that this version writes; folders without a number have format 1."""
WRITTEN_BY = "written_by"
"""Key in ``stages.json`` and ``agent.json`` of the version that wrote the file."""


@dataclass(frozen=True)
class Writer:
    """Version of reflectrl that wrote a folder."""

    format: int = 1
    reflectrl: str = ""
    """Version of the package; empty in format 1, which did not record it."""

    def __str__(self) -> str:
        return f"{f'reflectrl {self.reflectrl}' if self.reflectrl else 'an early reflectrl'} (format {self.format})"


class OtherVersion(InvalidInput):
    """A folder that another version wrote cannot be used."""


def this_version() -> Writer:
    """Return the writer record of this version."""
    from reflectrl import __version__  # the package imports this module first

    return Writer(FORMAT, __version__)


@contextmanager
def version_errors(folder: Path) -> Iterator[None]:
    """Turn ``InvalidInput`` errors about a ``folder`` of another format into errors that name the version behind it.

    Raises:
        OtherVersion: the folder has a newer format, or it has another format and something in it was refused.

    """
    writer, now = _writer_of(folder), this_version()
    if writer.format > now.format:
        raise OtherVersion(
            f"{folder} was written by {writer}, which is newer than {now}; upgrade reflectrl, or choose another folder."
        )
    try:
        yield
    except OtherVersion:
        raise
    except InvalidInput as error:
        if writer.format == now.format:
            raise
        cause = " ".join(str(error).split()).rstrip(".")
        raise OtherVersion(
            f"{folder} was written by {writer}, and {now} cannot use it ({cause}); run its stages again in another "
            "--run, or use the version that wrote it."
        ) from error


def _writer_of(folder: Path) -> Writer:
    """Return the writer that the folder records; this version where no readable file could record one."""
    given = written_by(folder)
    if given is None:
        return this_version()
    number, version = given.get("format"), given.get("reflectrl")
    return Writer(number, version) if isinstance(number, int) and isinstance(version, str) else Writer()


def written_by(folder: Path) -> Mapping[str, Any] | None:
    """Return the record of the version that wrote ``folder``: empty in format 1, ``None`` without a readable file."""
    for name in (LEDGER, AGENT):
        try:
            values = read_json(folder / name, "a record of the version")
        except InvalidInput:
            continue
        if isinstance(values, dict):
            given = values.get(WRITTEN_BY)
            return given if isinstance(given, dict) else {}
    return None
