"""Settings with which TRL's trainers run in a test: on the CPU, in float32, without files or lines of their own."""

from __future__ import annotations

from typing import Any

QUIET: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "activation_checkpointing": False,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 1,
}
