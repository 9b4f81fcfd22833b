"""Access to Pillow and its built-in scalable font, for pictures that contain text."""

from __future__ import annotations

from typing import Any

from reflectrl.core.errors import InvalidInput


def need_pillow(what: str, otherwise: str) -> None:
    """Check that Pillow and its built-in scalable font are available.

    Args:
        what: what is to be drawn, for the error message.
        otherwise: advice in that message for those who do not install Pillow.

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
