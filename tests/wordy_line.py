"""A number line with the whole path in its states and possibly long tasks, so that prompts exceed a model's length."""

from __future__ import annotations

from dataclasses import replace

from reflectrl.core import Observation
from reflectrl.envs.number_line import NumberLine


class WordyLine(NumberLine):
    name = "wordy_line"

    def __init__(self, size: int = 10, path: bool = True, asides: int = 0) -> None:
        super().__init__(size)
        self.path = path
        self.asides = asides

    def observe(self) -> Observation:
        seen = super().observe()
        path = f"Path: {'0123456789 ' * self.steps}here. " if self.path else ""
        return replace(seen, text=path + seen.text, task=" ".join(f"({n})" for n in range(self.asides)))
