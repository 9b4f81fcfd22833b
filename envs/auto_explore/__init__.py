"""AutoExplore: walk a file tree to the file that answers a question (appendix C of the paper)."""

from reflectrl.envs.auto_explore.env import AutoExplore

__all__ = ["AutoExplore"]
