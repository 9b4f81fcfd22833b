"""Copies of the weights that a policy trains: those of an adapter, or all, and the value head's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

Weights: TypeAlias = Mapping[str, Tensor]


def copy_weights(model: nn.Module) -> Weights:
    """Return a copy of the weights that are trained, by their names."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}


@torch.no_grad()
def load_weights(model: nn.Module, weights: Weights) -> None:
    """Give the trained weights of ``model`` the values of a copy, in place."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weight.copy_(weights[name])
