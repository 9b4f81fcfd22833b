"""The development suite: small environments of different kinds, on which defaults are chosen; see ``suite.py``.

Importing the package registers each environment by the name of its module.
"""

from pathlib import Path

from reflectrl import register_env

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")


def target(name: str) -> str:
    """Return ``module:Class`` of a member, whose class is called like its module: ``Ice`` of ``ice``."""
    return f"{__name__}.{name}:{name.title().replace('_', '')}"


for name in MODULES:
    register_env(name, target(name))
