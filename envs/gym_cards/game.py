"""``Game``: the rules of one of the four games, and the state of one episode of it; cards, which have no suits.

Pictures of the table are drawn by Pillow with its own font: 300 by 300 pixels, as in the paper.
"""

from __future__ import annotations

import io
import random
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from numpy.random import Generator

from reflectrl.core import Image, Outcome, Reading, Task
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


RANKS = range(1, 14)
"""Ranks of playing cards, from the ace to the king."""
NAMES = ("A", *map(str, range(2, 11)), "J", "Q", "K")
SHARES = {"train": slice(0, None, 2), "test": slice(1, None, 4), "validation": slice(3, None, 4)}
"""Part of the shuffled deals in each split: half, a quarter, a quarter."""
SHUFFLE = 8
"""Seed with which EZPoints, which has only seven deals, has sums and products both in training and in test."""


class Game(ABC):
    """Base class of the games. ``GymCards`` counts the steps and decides on success."""

    instructions: str
    """Instructions of the environment, shown to the player."""
    actions: tuple[str, ...]
    """All actions of the paper, legal or not."""
    horizon: int

    @abstractmethod
    def splits(self) -> Mapping[str, tuple[Task, ...]]:
        """Return the tasks of each split, which share no deal."""

    @abstractmethod
    def deal(self, task: Task, rng: Generator) -> None:
        """Set the state to the beginning of ``task``; whatever the task leaves open is drawn."""

    @abstractmethod
    def common(self) -> tuple[str, ...]:
        """Return the actions that may be legal in this episode, now or later."""

    @abstractmethod
    def legal(self) -> tuple[str, ...]:
        """Return the actions that are legal now, whether they are wise or not."""

    @abstractmethod
    def play(self, action: str, rng: Generator) -> Outcome:
        """Play one of ``actions``; the outcome does not say whether the game was a success."""

    @abstractmethod
    def best(self) -> str | None:
        """Return the action with the highest return; ``None`` at the end."""

    @property
    def is_hopeful(self) -> bool:
        """True if the goal can still be reached."""
        return True

    @abstractmethod
    def mistaken(self) -> bool:
        """Return whether the last action was worse than ``best``; there must be one."""

    @abstractmethod
    def standing(self) -> str:
        """Describe the situation, from what the visible state shows."""

    @abstractmethod
    def read(self, thought: str) -> Reading:
        """Return whether a thought about the present state, in words like those of ``standing``, is right."""

    @abstractmethod
    def text(self) -> str:
        """Describe the state in words."""

    @abstractmethod
    def sketch(self) -> Sketch:
        """Describe the picture of the state; equal states have equal pictures."""


def value(rank: int) -> int:
    """Return 1 for an ace, 10 for ten, jack, queen and king, and the number of any other card."""
    return min(rank, 10)


def names(ranks: Iterable[int]) -> tuple[str, ...]:
    """Return the names on the cards."""
    return tuple(NAMES[rank - 1] for rank in ranks)


def shared_out(deals: Iterable[tuple[Hashable, Task]]) -> dict[str, tuple[Task, ...]]:
    """Return the tasks of each split, where tasks with equal deals (first of each pair) share a split."""
    tasks: dict[Hashable, list[Task]] = {}
    for deal, task in deals:
        tasks.setdefault(deal, []).append(task)
    order = list(tasks)
    random.Random(SHUFFLE).shuffle(order)
    return {split: tuple(task for deal in order[share] for task in tasks[deal]) for split, share in SHARES.items()}
