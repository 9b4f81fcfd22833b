"""The package that ``new-env`` writes: a small game that trains in a minute, to be changed into one's own."""

from reflectrl.skeleton.name import checked_name
from reflectrl.skeleton.write import write_package

__all__ = ["checked_name", "write_package"]
