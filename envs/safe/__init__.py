"""Safe: wheels whose stops are some steps of computing, or of remembering, away."""

from reflectrl.envs.safe.env import Safe

__all__ = ["Safe"]
