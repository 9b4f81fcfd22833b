"""A robot arm on Meta-World's simulator, moved by skills and described in words (RAP, arXiv 2402.03610)."""

from reflectrl.envs.robots.env import Robots

__all__ = ["Robots"]
