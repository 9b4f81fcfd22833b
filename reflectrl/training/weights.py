"""Copies of a policy's trainable weights: those of an adapter, or all weights, and the value head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn

Weights: TypeAlias = Mapping[str, Tensor]


def copy_weights(model: nn.Module, device: str | None = None) -> Weights:
    """Return a copy of the trainable weights, keyed by name, on ``device`` or where they are."""
    return {
        name: weight.detach().to(device or weight.device, copy=True)
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


@torch.no_grad()
def load_weights(model: nn.Module, weights: Weights) -> None:
    """Set the trainable weights of ``model`` to the values of a copy, in place."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weight.copy_(weights[name])


@contextmanager
def using(model: nn.Module, weights: Weights | None) -> Iterator[None]:
    """Let ``model`` use a copy's weights inside the block, or its own for ``None``; earlier caches are invalid."""
    own = None if weights is None else copy_weights(model)
    try:
        if weights is not None:
            load_weights(model, weights)
        yield
    finally:
        if own is not None:
            load_weights(model, own)


@torch.no_grad()
def average(weights: Weights, model: nn.Module, decay: float) -> None:
    """Update an exponential average in place: ``weights = decay * weights + (1 - decay) * model's weights``."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weights[name].lerp_(weight, 1 - decay)
