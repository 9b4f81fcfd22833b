"""The version of reflectrl that wrote a run folder or an exported agent; folders of another format are refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectrl.core.errors import InvalidInput

FORMAT = 3
"""Format of the run folders and exports that this version writes and reads."""
WRITTEN_BY = "written_by"
"""Key in ``stages.json`` and ``agent.json`` of the version that wrote the file."""


@dataclass(frozen=True)
class Writer:
    """Version of reflectrl that wrote a folder."""

    format: int
    reflectrl: str
    """Version of the package."""


def this_version() -> Writer:
    """Return the writer record of this version."""
    from reflectrl import __version__  # the package imports this module first

    return Writer(FORMAT, __version__)


def check_format(folder: Path, written_by: object) -> None:
    """Check that ``folder``, whose record of its writer is ``written_by``, has the format of this version.

    Raises:
        InvalidInput: it has another format, or no record.

    """
    given = written_by if isinstance(written_by, dict) else {}
    if given.get("format") != FORMAT:
        raise InvalidInput(
            f"{folder} was written by reflectrl {given.get('reflectrl', 'of an unknown version')} in the format "
            f"{given.get('format', 'without a number')}, but this version reads format {FORMAT}; use the version that "
            "wrote it, or make it again in another folder."
        )
