"""Evaluation of any policy on a fixed list of episodes."""

from reflectrl.evaluation.evaluate import EvalRow, evaluate, fixed_episodes, read_rows, write_rows

__all__ = ["EvalRow", "evaluate", "fixed_episodes", "read_rows", "write_rows"]
