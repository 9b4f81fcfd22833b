"""Edits of a text: blocks with the present lines, and the lines that replace them."""

from __future__ import annotations

import re

from reflectrl.core import InvalidInput

FORM = "<<<<<<< OLD\nlines that stand there once\n=======\nlines to stand there instead\n>>>>>>> NEW"
_BLOCK = re.compile(r"<{7}[^\n]*\n(.*?)^={7}\n(.*?)^>{7}[^\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)


def apply_edits(text: str, blocks: str) -> str:
    """Return ``text`` with the lines of each block replaced, one block after the other.

    Raises:
        InvalidInput: no block, other text between blocks, or old lines that do not occur in the text exactly once.

    """
    found = list(_BLOCK.finditer(blocks))
    if not found or _BLOCK.sub("", blocks).strip():
        raise InvalidInput(f"edit needs one or more blocks like this, each mark on a line of its own:\n{FORM}")
    ended = text.endswith("\n") or not text
    edited = text if ended else f"{text}\n"
    for number, block in enumerate(found, start=1):
        old, new = block[1], block[2]
        places = [place.start() for place in re.finditer(f"^(?={re.escape(old)})", edited, re.MULTILINE) if old]
        if len(places) != 1:
            raise InvalidInput(
                f"the old lines of block {number} stand {len(places)} times in the file; expected once, from the "
                "beginning of a line and with the same spaces: nothing was changed."
            )
        edited = edited[: places[0]] + new + edited[places[0] + len(old) :]
    return edited if ended else edited.removesuffix("\n")
