"""Any gymnasium environment with discrete actions and a text rendering, as an environment of this library."""

from reflectrl.envs.gymnasium_game.env import GymnasiumGame, check_seeds, drawn_from

__all__ = ["GymnasiumGame", "check_seeds", "drawn_from"]
