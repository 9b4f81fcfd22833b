"""The package that ``new-env`` writes: a small game that trains in a minute, as a starting point."""

from reflectrl.skeleton.write import checked_name, write_package

__all__ = ["checked_name", "write_package"]
