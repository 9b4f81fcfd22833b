"""Section of a recipe's memory of past episodes (RAP)."""

from __future__ import annotations

from typing import Literal

from reflectrl.core.settings import Count, Section


class MemoryPlayerSection(Section):
    """The frozen player that shows, before each action, parts of past successful episodes that resemble it."""

    embedder: Literal["hashing", "minilm"] = "hashing"
    """Similarity of texts: by hashed words, or by the embeddings of all-MiniLM-L6-v2, a wheel of 84 MB."""
    key: Literal["observation", "action", "either", "none"] = "observation"
    """What is looked for in the steps of past episodes: what followed the last action, among their observations; the
    reflection, among their actions (without a reflector, the thought at the step before; without either, the last
    action); that of these two which finds the better match; or nothing."""
    episodes: Count = 8
    """Episodes that are shown at once, at most."""
    steps: Count = 5
    """Steps that are shown before the step that resembles the present one most, and as many from it on."""
    max_chars: Count = 2000
    """Most characters that are shown; whole episodes and steps are left out."""
