"""Evaluation of any policy on a fixed list of episodes."""

from reflectrl.evaluation.evaluate import evaluate, fixed_episodes

__all__ = ["evaluate", "fixed_episodes"]
