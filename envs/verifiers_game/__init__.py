"""Any text environment of the package verifiers, as an environment of this library."""

from reflectrl.envs.verifiers_game.env import VerifiersGame

__all__ = ["VerifiersGame"]
