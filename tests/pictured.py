"""NumberLine with a picture of each state."""

from __future__ import annotations

from dataclasses import replace

from reflectrl.core import Image, Observation
from reflectrl.envs.number_line import NumberLine

PICTURES = [Image(b"\x89PNG\r\n\x1a\n one"), Image(b"\x89PNG\r\n\x1a\n two")]


class Pictured(NumberLine):
    """Environment that shows two pictures in turn, with or without the text of NumberLine."""

    words = True

    def observe(self) -> Observation:
        seen = super().observe()
        return replace(seen, text=seen.text if self.words else "", images=(PICTURES[self.steps % 2],))
