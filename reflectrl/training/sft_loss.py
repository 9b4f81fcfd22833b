"""Losses of supervised fine-tuning: pure functions of a model and encoded rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reflectrl.models.encode import PromptBatch, action_distribution
from reflectrl.training.sft_examples import TextExample

IGNORED = -100
"""Label of positions without a loss."""


def text_losses(model: Any, examples: Sequence[TextExample], device: torch.device) -> Tensor:
    """Return the (N,) negative log-likelihoods of the completions in nats, summed over tokens (L_reflect of the paper).

    Only the first ``scored`` tokens of a completion count.
    """
    return text_results(model, examples, device)[0]


def text_results(
    model: Any, examples: Sequence[TextExample], device: torch.device
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return ``text_losses`` and, for each example, whether each (scored,) token is the most probable one."""
    width = max(len(example.prompt) + len(example.completion) for example in examples)
    ids = torch.empty(len(examples), width, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for number, example in enumerate(examples):
        start, stop = len(example.prompt), len(example.prompt) + len(example.completion)
        ids[number, :stop] = torch.tensor(example.prompt + example.completion)
        ids[number, stop:] = ids[number, stop - 1]  # padding on the right, which causal attention does not see
        end = start + example.scored
        labels[number, start - 1 : end - 1] = ids[number, start:end]  # the token before predicts it
    # only these last positions need logits, whose size is otherwise (batch, length, vocabulary)
    keep = width - min(len(example.prompt) for example in examples) + 1
    logits = model(input_ids=ids.to(device), use_cache=False, logits_to_keep=keep).logits[:, -keep:]
    labels = labels[:, -keep:].to(device)
    scored = labels != IGNORED
    chosen, targets = logits[scored].float(), labels[scored]
    losses = F.cross_entropy(chosen, targets, reduction="none")
    summed = torch.zeros(scored.shape, device=device).masked_scatter(scored, losses).sum(1)
    return summed, (chosen.argmax(1) == targets).split([example.scored for example in examples])


def action_losses(model: Any, batch: PromptBatch, targets: Tensor, label_smoothing: float) -> Tensor:
    """Return the (N,) cross-entropies, in nats, of targets (N,) under the distribution that RL samples from.

    Targets are positions in the row's menu. ``label_smoothing`` of the target probability is spread evenly over that
    menu.
    """
    return action_results(model, batch, targets, label_smoothing)[0]


def action_results(model: Any, batch: PromptBatch, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Return ``action_losses`` and, (N,), whether the target is the most probable action of its menu."""
    distribution, _ = action_distribution(model, batch)
    logprobs: Tensor = distribution.logits  # normalised
    beyond = torch.arange(logprobs.size(1), device=logprobs.device) >= batch.menu_size[:, None]
    chosen = logprobs.gather(1, targets[:, None]).squeeze(1)
    spread = -logprobs.masked_fill(beyond, 0.0).sum(1) / batch.menu_size
    losses = (1.0 - label_smoothing) * -chosen + label_smoothing * spread
    return losses, logprobs.argmax(1) == targets
