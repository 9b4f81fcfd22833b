"""ALFWorld: household tasks as text, on the real engine, with games of our own or the published ones."""

from reflectrl.envs.alfworld.env import AlfWorld

__all__ = ["AlfWorld"]
