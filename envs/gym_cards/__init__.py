"""The four card games of RL4VLM's gym_cards, in words and in pictures."""

from reflectrl.envs.gym_cards.env import GymCards

__all__ = ["GymCards"]
