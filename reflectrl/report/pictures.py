"""``Album``: the pictures of the states that a page shows, each once."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from reflectrl.core import Image

LEFT_OUT = -1
"""Number of a picture for which a page has no room."""


@dataclass
class Album:
    """Pictures with their numbers, in the order in which they were first seen."""

    room: int = 0
    """Characters that are left for further pictures."""
    numbers: dict[Image, int] = field(default_factory=dict)
    """Number of each picture that was seen; ``LEFT_OUT`` where it did not fit."""
    pictures: list[str] = field(default_factory=list)
    """Base64 of the PNG file of each picture, by number."""

    def number(self, image: Image) -> int:
        """Return the number of a picture, which is added where it is new and fits."""
        if image not in self.numbers:
            data = base64.b64encode(image.data).decode()
            fits = len(data) <= self.room
            self.numbers[image] = len(self.pictures) if fits else LEFT_OUT
            if fits:
                self.room -= len(data)
                self.pictures.append(data)
        return self.numbers[image]

    def copy(self) -> Album:
        """Return an album of the same pictures, to which others can be added."""
        return Album(self.room, dict(self.numbers), list(self.pictures))

    @property
    def left_out(self) -> int:
        """Number of pictures that did not fit."""
        return list(self.numbers.values()).count(LEFT_OUT)
