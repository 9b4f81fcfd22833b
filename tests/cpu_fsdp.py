"""FSDP2 on a CPU, where ``accelerate`` has it not: the rest of its path works there, with gloo."""

from __future__ import annotations

import inspect
import os
import textwrap
from pathlib import Path

import yaml
from accelerate import state

CONFIG = Path(__file__).parents[1] / "recipes" / "accelerate" / "fsdp2.yaml"


def allow() -> None:
    """Let ``accelerate`` of this process shard models on CPUs, by one more kind of launch in a list of its own."""
    source = textwrap.dedent(inspect.getsource(state.AcceleratorState.__init__))
    kinds = "elif self.distributed_type in [\n            DistributedType.MULTI_GPU,"
    assert kinds in source
    scope = dict(vars(state))
    exec(source.replace(kinds, kinds.replace("[", "[DistributedType.MULTI_CPU,")), scope)
    state.AcceleratorState.__init__ = scope["__init__"]  # type: ignore[method-assign]


def asked() -> dict[str, str]:
    """Return the environment variables that ``accelerate launch --config_file`` sets for the shipped configuration."""
    settings = yaml.safe_load(CONFIG.read_text())["fsdp_config"]
    return {name.upper(): str(value) for name, value in settings.items()} | {"ACCELERATE_USE_FSDP": "true"}


def ask() -> None:
    """Set these variables in this process."""
    os.environ |= asked()
