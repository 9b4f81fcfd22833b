"""Copies of trained weights."""

from __future__ import annotations

import torch
from torch import nn

from reflectrl.training.learner import average, copy_weights, using


def test_a_model_uses_other_weights_for_a_while_and_frozen_ones_stay():
    model = nn.Linear(1, 1)
    model.bias.requires_grad_(requires_grad=False)
    with torch.no_grad():
        model.weight.fill_(4.0)
    first = copy_weights(model)
    assert set(first) == {"weight"}
    with torch.no_grad():
        model.weight.fill_(8.0)
    with using(model, first):
        assert model.weight.item() == 4.0
    assert model.weight.item() == 8.0
    average(first, model, decay=0.75)
    assert first["weight"].item() == 5.0
