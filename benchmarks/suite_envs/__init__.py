"""The development suite: small environments of different kinds, on which defaults are chosen; see ``suite.py``."""

from pathlib import Path

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")


def target(name: str) -> str:
    """Return ``module:Class`` of a member, whose class is called like its module: ``Ice`` of ``ice``."""
    return f"{__name__}.{name}:{name.title().replace('_', '')}"
