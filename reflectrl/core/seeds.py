"""Seeds that depend on what they are for, never on what ran before: the reason resumed equals never killed."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: str | int) -> int:
    """A seed in [0, 2**31) for the purpose named by ``parts``, e.g. ``derive_seed(recipe.seed, "rollout", 7)``."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
