"""The core: records of episodes, the base class of environments, their registry and their checker."""

from reflectrl.core.check import check_env
from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import EpisodeFailed, InvalidInput, ReflectRLError, WorkFailed, nearest
from reflectrl.core.indexed import IndexedActions
from reflectrl.core.registry import env_names, make_env, register_env, register_gym_ids
from reflectrl.core.types import (
    NO_MENU,
    Choice,
    Decision,
    Hints,
    Image,
    Observation,
    Outcome,
    Reading,
    Task,
    Trajectory,
    Turn,
    Utterance,
    Written,
    seed_tasks,
)

__all__ = [
    "NO_MENU",
    "Choice",
    "Decision",
    "EpisodeFailed",
    "Hints",
    "Image",
    "IndexedActions",
    "InvalidInput",
    "NatLangEnv",
    "Observation",
    "Outcome",
    "Reading",
    "ReflectRLError",
    "Task",
    "Trajectory",
    "Turn",
    "Utterance",
    "Written",
    "WorkFailed",
    "check_env",
    "env_names",
    "make_env",
    "nearest",
    "register_env",
    "seed_tasks",
]

register_gym_ids()
