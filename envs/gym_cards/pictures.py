"""Pictures of a table with cards, drawn by Pillow with its own font: 300 by 300 pixels, as in the paper."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache

from reflectrl.core import Image
from reflectrl.core.drawing import pillow

SIZE = 300
"""Pixels in each direction."""
PAPER, TABLE = "#ffffff", "#35654d"
_INK, _BACK = "#000000", "#8b1a1a"


@dataclass(frozen=True)
class Words:
    """A line of text in a picture."""

    text: str
    left: int
    top: int
    size: int
    """Height of the font in pixels."""


@dataclass(frozen=True)
class Card:
    """A card in a picture, 1.4 times as high as wide."""

    name: str
    """Name on the card; "" for its back."""
    left: int
    top: int
    width: int


@dataclass(frozen=True)
class Sketch:
    """Contents of a picture; equal sketches give equal bytes."""

    background: str
    words: tuple[Words, ...] = ()
    cards: tuple[Card, ...] = ()


def row(names: tuple[str, ...], width: int, top: int) -> tuple[Card, ...]:
    """Place cards of this width side by side; narrower ones if there are too many."""
    narrow = min(width, int((SIZE - 10) / (1.1 * len(names))))
    return tuple(Card(name, 5 + int(number * narrow * 1.1), top, narrow) for number, name in enumerate(names))


@lru_cache(maxsize=4096)
def draw(sketch: Sketch) -> Image:
    """Draw a picture, as a PNG file in colours."""
    tools = pillow()
    image = tools.Image.new("RGB", (SIZE, SIZE), sketch.background)
    pen = tools.ImageDraw.Draw(image)
    for card in sketch.cards:
        right, bottom = card.left + card.width, card.top + card.width * 7 // 5
        pen.rounded_rectangle(
            (card.left, card.top, right, bottom), card.width // 12, fill=PAPER if card.name else _BACK, outline=_INK
        )
        font = tools.ImageFont.load_default(card.width * 3 // 5)
        pen.text(((card.left + right) / 2, (card.top + bottom) / 2), card.name, _INK, font, anchor="mm")
    ink = _INK if sketch.background == PAPER else PAPER
    for words in sketch.words:
        pen.text((words.left, words.top), words.text, ink, tools.ImageFont.load_default(words.size))
    file = io.BytesIO()
    image.save(file, "PNG")
    return Image(file.getvalue())
