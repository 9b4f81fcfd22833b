"""Handling of a loss or gradient that is not finite: training stops before the weights change, and saves the batch."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from reflectrl.core import WorkFailed
from reflectrl.core.files import write_text


@dataclass(frozen=True)
class BrokenStep:
    """Report of an optimizer step that was not made."""

    folder: Path
    """Folder for the file with the batch."""
    name: str
    """Name of the file without its suffix."""
    where: str
    """Place in the training, e.g. "iteration 12"."""
    rows: Sequence[Mapping[str, Any]]
    """Rows of the batch, as plain values."""
    advice: str
    """Advice at the end of the error message."""

    def failure(self, loss: float, norm: float, *, rank: int) -> WorkFailed:
        """Write the batch to its file, and return the error that names it."""
        path = self.folder / f"{self.name}{f'-rank{rank}' if rank else ''}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(json.dumps(_plain(row), ensure_ascii=False) + "\n" for row in self.rows))
        return WorkFailed(
            f"the loss became {loss:g} and the norm of its gradient {norm:g} in {self.where}; the weights were not "
            f"changed, the last checkpoint is kept, and the batch is in {path}. Correct what is odd there, or "
            f"{self.advice}."
        )


class FiniteSteps(Trainer, ABC):
    """Mixin that makes a trainer of transformers or TRL stop at a loss or gradient that is not finite."""

    gradient_norm = 0.0
    """Norm of the gradient of the last optimizer step, before clipping."""

    @abstractmethod
    def step_loss(self) -> Tensor:
        """Return the loss of the next optimizer step on this process."""

    @abstractmethod
    def broken_step(self) -> BrokenStep:
        """Describe the batch of the next optimizer step."""

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return the norm of the gradient; transformers asks for it just before each step of the optimizer.

        Raises:
            WorkFailed: the norm or the loss is not finite on some process.

        """
        norm = super()._get_grad_norm(model, grad_norm)
        loss = self.step_loss()
        found = torch.stack([loss.float(), torch.as_tensor(norm, device=loss.device).float()])
        if not torch.isfinite(self.accelerator.gather(found)).all():
            raise self.broken_step().failure(*found.tolist(), rank=self.args.process_index)
        self.gradient_norm = float(norm)
        return norm


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in which NaN and infinities are text, because JSON has none."""
    odd = {name: str(v) for name, v in row.items() if isinstance(v, float) and not math.isfinite(v)}
    return {**row, **odd}
