"""Who speaks and who acts: protocols and the players that need no local model."""

from reflectrl.players.base import Policy, Reflector
from reflectrl.players.expert import ExpertPolicy, ExpertReflector
from reflectrl.players.scripted import RandomPolicy, ScriptedReflector, ShuffledReflector

__all__ = [
    "ExpertPolicy",
    "ExpertReflector",
    "Policy",
    "RandomPolicy",
    "Reflector",
    "ScriptedReflector",
    "ShuffledReflector",
]
