"""Callbacks of ``transformers.Trainer`` for what it has no method for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback


class OptimizerStepped(TrainerCallback):
    """Calls a function with Trainer's ``control`` once the optimizer has stepped."""

    def __init__(self, call: Callable[[Any], None]) -> None:
        self._call = call

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Call it."""
        self._call(control)
