"""Pillow with the scalable font that it brings, for pictures with words in them."""

from __future__ import annotations

from typing import Any

from reflectrl.core.errors import InvalidInput


def need_pillow(what: str, otherwise: str) -> None:
    """Check that Pillow is there with its own scalable font, to draw ``what``; ``otherwise`` says how to do without.

    Raises:
        InvalidInput: it is missing, older than 10.1, or built without FreeType.

    """
    try:
        pillow().ImageFont.load_default(12)
    except (ImportError, TypeError) as error:
        raise InvalidInput(
            f"{what} need pillow 10.1 or later, with FreeType ({error}); run pip install 'reflectrl[vision]', or "
            f"{otherwise}."
        ) from error


def pillow() -> Any:
    """Return the package, with its modules for pictures, for drawing and for fonts."""
    import PIL.Image
    import PIL.ImageDraw
    import PIL.ImageFont

    return PIL
