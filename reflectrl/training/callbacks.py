"""Callbacks of ``transformers.Trainer`` for events that have no method to override."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback


class OptimizerStepped(TrainerCallback):
    """Callback that calls a function with Trainer's ``control`` after each optimizer step."""

    def __init__(self, call: Callable[[Any], None]) -> None:
        self._call = call

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Call the function."""
        self._call(control)
