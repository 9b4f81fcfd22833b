"""Any TextWorld game as an environment."""

from reflectrl.envs.textworld_game.env import TextWorldGame

__all__ = ["TextWorldGame"]
