"""NumberLine: the tutorial environment."""

from reflectrl.envs.number_line.env import NumberLine

__all__ = ["NumberLine"]
