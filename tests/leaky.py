"""A number line whose states and tasks tell a key and a folder of this machine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from reflectrl.core import Observation, Task
from reflectrl.envs.number_line import NumberLine


class Leaky(NumberLine):
    name = "leaky"

    def tasks(self, split: str) -> list[Task]:
        return [replace(task, id=f"{task.id}-{os.environ['VAULT_TOKEN']}") for task in super().tasks(split)]

    def start(self, task: Task) -> None:
        super().start(replace(task, id=task.id.removesuffix(f"-{os.environ['VAULT_TOKEN']}")))

    def observe(self) -> Observation:
        seen = super().observe()
        key, folder = os.environ["VAULT_TOKEN"], Path.home() / "keys"
        return replace(seen, text=f"{seen.text} The key is {key}, in {folder}.")
