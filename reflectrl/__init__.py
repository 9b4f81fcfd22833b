"""reflectrl: small language models become agents by online reinforcement learning.

Two players share every step of an episode (Reflect-RL, Zhou, Du and Li 2024): a frozen *reflector* writes a short
reflection on the state, and a trained *policy* reads state, reflection and the enumerated legal actions and answers
with one token. This package root is light: it loads no torch. The rooms below it are documented in their own
docstrings; the command line is ``reflectrl --help``.
"""

from reflectrl.core import (
    Hints,
    NatLangEnv,
    Observation,
    Outcome,
    Task,
    check_env,
    env_names,
    make_env,
    register_env,
)

__version__ = "0.1.0"

__all__ = [
    "Hints",
    "NatLangEnv",
    "Observation",
    "Outcome",
    "Task",
    "__version__",
    "check_env",
    "env_names",
    "make_env",
    "register_env",
]
