"""Protocols of players and policies, and players without a local model."""

from reflectrl.players.base import (
    CountsMisses,
    Informed,
    Player,
    Policy,
    ReadsHints,
    Remembers,
    Seat,
    acting,
    check_roles,
    reflecting,
)
from reflectrl.players.scripted import (
    CarelessExpert,
    ExpertCorrector,
    ExpertPolicy,
    ExpertReflector,
    GivenActions,
    RandomPolicy,
    RuleCorrector,
    ScriptedReflector,
    ShuffledReflector,
)

__all__ = [
    "CarelessExpert",
    "CountsMisses",
    "ExpertCorrector",
    "ExpertPolicy",
    "ExpertReflector",
    "GivenActions",
    "Informed",
    "Player",
    "Policy",
    "RandomPolicy",
    "ReadsHints",
    "Remembers",
    "RuleCorrector",
    "ScriptedReflector",
    "Seat",
    "ShuffledReflector",
    "acting",
    "check_roles",
    "reflecting",
]
