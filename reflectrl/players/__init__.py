"""Protocols of players and policies, and the players that need no local model."""

from reflectrl.players.base import Player, Policy, ReadsHints, Seat, reflecting
from reflectrl.players.scripted import (
    CarelessExpert,
    ExpertCorrector,
    ExpertPolicy,
    ExpertReflector,
    GivenActions,
    RandomPolicy,
    ScriptedReflector,
    ShuffledReflector,
)

__all__ = [
    "CarelessExpert",
    "ExpertCorrector",
    "ExpertPolicy",
    "ExpertReflector",
    "GivenActions",
    "Player",
    "Policy",
    "RandomPolicy",
    "ReadsHints",
    "ScriptedReflector",
    "Seat",
    "ShuffledReflector",
    "reflecting",
]
