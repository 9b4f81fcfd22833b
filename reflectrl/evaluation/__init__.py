"""Evaluation of any policy on a fixed list of episodes."""

from reflectrl.evaluation.evaluate import evaluate, fixed_episodes, no_such_tasks

__all__ = ["evaluate", "fixed_episodes", "no_such_tasks"]
