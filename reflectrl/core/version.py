"""The version of reflectrl that wrote a run folder or an exported agent, named when another one cannot read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from reflectrl.core.errors import InvalidInput
from reflectrl.core.layout import AGENT, LEDGER

FORMAT = 2
"""Format of the run folders and exports that this version writes; folders that name none are of format 1."""
WRITTEN_BY = "written_by"
"""Key of the writer in ``stages.json`` and ``agent.json``."""


@dataclass(frozen=True)
class Writer:
    """The version that wrote a folder."""

    format: int = 1
    reflectrl: str = ""
    """Version of the package; empty in format 1, which did not record it."""

    def __str__(self) -> str:
        return (
            f"reflectrl {self.reflectrl} (format {self.format})" if self.reflectrl else "an early reflectrl (format 1)"
        )


class OtherVersion(InvalidInput):
    """A folder that another version wrote cannot be read."""


def this_version() -> Writer:
    """The writer of what this version writes."""
    from reflectrl import __version__  # the package imports this module first

    return Writer(FORMAT, __version__)


def read_writer(values: object) -> Writer:
    """The writer that a ``stages.json`` or ``agent.json`` names; one of format 1 where it names none."""
    if not isinstance(values, Mapping):
        return this_version()  # a damaged file, refused where it is read
    given = values.get(WRITTEN_BY)
    found = dict(given) if isinstance(given, Mapping) else {}
    number, version = found.get("format"), found.get("reflectrl")
    return Writer(number, version) if isinstance(number, int) and isinstance(version, str) else Writer()


def encoded_writer() -> dict[str, object]:
    """``this_version`` as it is written under ``WRITTEN_BY``."""
    return asdict(this_version())


@contextmanager
def version_errors(folder: Path) -> Iterator[None]:
    """Name the writer of ``folder`` in the refusal of anything in it, if that is of another format than this version's.

    Raises:
        OtherVersion: the refusal, in one sentence.

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
    for name in (LEDGER, AGENT):
        try:
            return read_writer(json.loads((folder / name).read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError):  # not there, or damaged
            continue
    return this_version()
