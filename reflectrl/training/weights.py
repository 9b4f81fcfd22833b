"""Copies of the weights that a policy trains: those of an adapter, or all, and the value head's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


@contextmanager
def using(model: nn.Module, weights: Weights | None) -> Iterator[None]:
    """Give ``model`` a copy's weights meanwhile, or leave it its own; what it computed before is not valid within."""
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
    """Move a copy towards the weights of ``model``, in place: ``decay`` of it stays."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weights[name].lerp_(weight, 1 - decay)
