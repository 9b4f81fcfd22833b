"""Pictures that contain text: access to Pillow with its built-in scalable font, and strips of captioned pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from reflectrl.core.errors import InvalidInput
from reflectrl.core.types import Image

COLUMNS = 5
"""Number of frames a row: servers scale wide pictures down, and more frames would be illegible then."""
GAP = 8
"""Pixels between frames."""
MIN_WIDTH = 160
"""Minimum width of a frame in pixels, for its caption."""


def need_pillow(what: str, otherwise: str) -> None:
    """Check that Pillow and its built-in scalable font are there to draw ``what``; else one is to do ``otherwise``.

    Raises:
        InvalidInput: Pillow is missing, older than 10.1, or built without FreeType.
    """
    try:
        pillow().ImageFont.load_default(12)
    except (ImportError, TypeError) as error:
        raise InvalidInput(
            f"{what} need pillow 10.1 or later, with FreeType ({error}); run pip install 'reflectrl[vision]', or "
            f"{otherwise}."
        ) from error


def pillow() -> Any:
    """Return the package ``PIL`` with its modules ``Image``, ``ImageDraw`` and ``ImageFont`` imported."""
    import PIL.Image
    import PIL.ImageDraw
    import PIL.ImageFont

    return PIL


def strip(states: Sequence[Sequence[Image]], captions: Sequence[str]) -> Image:
    """Return one picture of several states, in reading order, as a PNG file.

    Args:
        states: (n,) pictures of each state, which follow each other as frames.
        captions: (n,) text under each frame of a state; its end is cut off where it is wider than the frame.
    """
    tools = pillow()
    frames = [
        (tools.Image.open(io.BytesIO(image.data)).convert("RGB"), caption)
        for images, caption in zip(states, captions, strict=True)
        for image in images
    ]
    width = max(MIN_WIDTH, *(frame.width for frame, _ in frames))
    height = max(frame.height for frame, _ in frames)
    font = tools.ImageFont.load_default(width // 12)
    line = width // 8
    columns, rows = min(COLUMNS, len(frames)), -(-len(frames) // COLUMNS)
    sheet = tools.Image.new("RGB", (columns * (width + GAP), rows * (height + line + GAP)), "lightgray")
    pen = tools.ImageDraw.Draw(sheet)
    for place, (frame, caption) in enumerate(frames):
        left, top = place % COLUMNS * (width + GAP), place // COLUMNS * (height + line + GAP)
        pen.rectangle((left, top, left + width - 1, top + height + line - 1), "white")
        sheet.paste(frame, (left + (width - frame.width) // 2, top))
        middle = (left + width / 2, top + height + line / 2)
        pen.text(middle, _fitted(caption, font, width), "black", font, anchor="mm")
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return Image(file.getvalue())


def _fitted(caption: str, font: Any, width: int) -> str:
    """Return the caption, or as much of it as fits into ``width`` pixels with dots behind it."""
    text, shown = caption, caption
    while font.getlength(shown) > width:
        text = text[:-1]
        shown = f"{text}..."
    return shown
