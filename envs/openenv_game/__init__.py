"""Any environment of OpenEnv, behind its server, as an environment of this library."""

from reflectrl.envs.openenv_game.env import OpenEnvGame
from reflectrl.envs.openenv_game.mastermind import Mastermind
from reflectrl.envs.openenv_game.translation import TextMap

__all__ = ["Mastermind", "OpenEnvGame", "TextMap"]
