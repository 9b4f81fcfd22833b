"""Seeds that depend only on their purpose, not on what ran before: a resumed run then equals an uninterrupted one."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: str | int) -> int:
    """Return a seed in [0, 2**31) for the purpose ``parts``, e.g. ``derive_seed(recipe.seed, "rollout", 7)``."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def draw(seed: int, step: int, role: str) -> float:
    """Return a uniform number in [0, 1): the draw of ``role`` at ``step`` of the episode with ``seed``.

    It depends on nothing else: an additional role changes no other draw, and a step can be drawn without earlier steps.
    """
    digest = hashlib.sha256(f"{seed}/{step}/{role}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53
