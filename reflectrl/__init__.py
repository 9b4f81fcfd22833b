"""reflectrl: small language models become agents by online reinforcement learning.

Two players share every step of an episode (Reflect-RL, Zhou, Du and Li 2024): a frozen *reflector* writes a short
reflection on the state, and a trained *policy* reads state, reflection and the enumerated legal actions and answers
with one token. This package root is light: it loads no torch until a name that needs it is used. The rooms below it
are documented in their own docstrings; the command line is ``reflectrl --help``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from reflectrl.core import (
    Hints,
    IndexedActions,
    InvalidInput,
    NatLangEnv,
    Observation,
    Outcome,
    Task,
    Utterance,
    check_env,
    env_names,
    make_env,
    register_env,
)
from reflectrl.core.origin import VERSION as __version__
from reflectrl.core.types import Drawn

if TYPE_CHECKING:
    from reflectrl.config import Recipe, load_recipe
    from reflectrl.config.advantage import GAE, BatchMean, EpisodeGroup, LeaveOneOut, NoBaseline, StepGroup, ValueHead
    from reflectrl.config.training import (
        PPO,
        EntropyBonus,
        EntropyTarget,
        Lesson,
        Reinforce,
        Replay,
        Term,
        Terms,
        Validation,
    )
    from reflectrl.pipeline.agent import Agent, load_agent
    from reflectrl.pipeline.run import Run, compare
    from reflectrl.prompts import PromptFormat
    from reflectrl.prompts.players import Player, Policy
    from reflectrl.prompts.views import MenuView, View
    from reflectrl.rollout import Episode, policy_views
    from reflectrl.rollout.loop import evaluate
    from reflectrl.seats.others import RandomPolicy
    from reflectrl.seats.table import Seat
    from reflectrl.training.config import ReflectRLConfig
    from reflectrl.training.rlft import ReflectRLTrainer

__all__ = [
    "Agent",
    "BatchMean",
    "EntropyBonus",
    "EntropyTarget",
    "Episode",
    "EpisodeGroup",
    "GAE",
    "Hints",
    "IndexedActions",
    "InvalidInput",
    "LeaveOneOut",
    "MenuView",
    "NatLangEnv",
    "NoBaseline",
    "Observation",
    "Outcome",
    "PPO",
    "Player",
    "Policy",
    "PromptFormat",
    "RandomPolicy",
    "Recipe",
    "ReflectRLConfig",
    "ReflectRLTrainer",
    "Reinforce",
    "Replay",
    "Run",
    "Seat",
    "Lesson",
    "StepGroup",
    "Task",
    "Term",
    "Terms",
    "Utterance",
    "Validation",
    "ValueHead",
    "View",
    "__version__",
    "check_env",
    "compare",
    "env_names",
    "evaluate",
    "load_agent",
    "load_recipe",
    "make_env",
    "policy_views",
    "register_env",
]

_HOMES = {
    name: home
    for home, names in {
        "reflectrl.config": "Recipe load_recipe",
        "reflectrl.config.advantage": "BatchMean EpisodeGroup GAE LeaveOneOut NoBaseline StepGroup ValueHead",
        "reflectrl.config.training": "EntropyBonus EntropyTarget Lesson PPO Reinforce Replay Term Terms Validation",
        "reflectrl.pipeline.agent": "Agent load_agent",
        "reflectrl.pipeline.run": "Run compare",
        "reflectrl.prompts": "PromptFormat",
        "reflectrl.prompts.players": "Player Policy",
        "reflectrl.prompts.views": "MenuView View",
        "reflectrl.rollout": "Episode policy_views",
        "reflectrl.rollout.loop": "evaluate",
        "reflectrl.seats.others": "RandomPolicy",
        "reflectrl.seats.table": "Seat",
        "reflectrl.training.config": "ReflectRLConfig",
        "reflectrl.training.rlft": "ReflectRLTrainer",
    }.items()
    for name in names.split()
}
"""Module of each public name that is imported on first use."""

Drawn.as_html = lambda value: str(import_module("reflectrl.report.notebook").drawn(value))

if not TYPE_CHECKING:  # otherwise mypy would accept any attribute

    def __getattr__(name: str) -> object:
        """Import a name of ``_HOMES`` on first access."""
        if name not in _HOMES:
            raise AttributeError(f"module 'reflectrl' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
