"""``LearningRates``: learning rates of the policy and the value head, and their schedule."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer

from reflectrl.training.config import ReflectRLConfig


class LearningRates(Trainer):
    """Mixin that makes the optimizer and the scheduler of ``ReflectRLTrainer``."""

    args: ReflectRLConfig
    _value_head: nn.Module | None

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Create the optimizer, with a separate learning rate for the value head if one is set."""
        optimizer = super().create_optimizer(*args, **kwargs)
        rate = None if self.args.value is None else self.args.value.learning_rate
        if rate is not None and self._value_head is not None:
            head = set(self._value_head.parameters())
            for group in [*optimizer.param_groups]:
                own = [weight for weight in group["params"] if weight in head]
                group["params"] = [weight for weight in group["params"] if weight not in head]
                if own:
                    optimizer.add_param_group({**group, "params": own, "lr": rate})
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the scheduler, which lowers the learning rate to the fraction ``learning_rate_end``."""
        end, cosine = self.args.learning_rate_end, self.args.learning_rate_schedule == "cosine"

        def factor(step: int) -> float:
            done = min(1.0, step / num_training_steps)
            return 1 - (1 - end) * ((1 - math.cos(math.pi * done)) / 2 if cosine else done)

        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
        return self.lr_scheduler
