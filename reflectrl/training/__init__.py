"""Supervised fine-tuning and reinforcement learning; the only package that imports trl."""
