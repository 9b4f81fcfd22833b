"""Supervised fine-tuning and reinforcement learning; the only room that imports trl."""
