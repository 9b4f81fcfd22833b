"""``Terms``: how a command may spend money."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Terms:
    """No part of the recipe, since no result depends on it."""

    max_cost: float | None = None
    """US dollars that may be spent in a run folder in all."""
    dry_run: bool = False
    """gen-data only tells what would be asked and what it may cost."""
    batch: Literal["submit", "collect"] | None = None
    """gen-data asks through OpenAI's Batch mode, at half the price: hand the calls in, or fetch the replies."""
