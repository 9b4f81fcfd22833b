"""Writing token by token for many sequences side by side, on a ``PrefixCache`` of everything read before.

Against ``transformers``' ``generate``: what a sequence shares with an earlier one is not read again, a sequence that
ends leaves at once and a waiting one takes its place, and no states are copied from token to token.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reflectrl.core.profile import part
from reflectrl.engine.head import next_logits
from reflectrl.engine.prefix_cache import PrefixCache
from reflectrl.engine.sequences import Tokens


class Sampler:
    """The next token of each of some sequences, each from a generator of its own, so that batches do not matter."""

    def __init__(self, draws: Sequence[float], temperature: float) -> None:
        self._rngs = [random.Random(draw) for draw in draws]
        self._temperature = temperature

    def choose(self, logits: Tensor, sequences: Sequence[int]) -> list[int]:
        """One token for each row of ``logits`` (N, V): the most probable at temperature 0, else a sample.

        A sample is where the cumulative distribution passes the sequence's next draw.
        """
        if self._temperature == 0:
            return [int(token) for token in logits.argmax(-1).tolist()]
        draws = [self._rngs[sequence].random() for sequence in sequences]
        # in double precision a draw below 1 stays below the total, so the last token is never stepped past
        cumulative = (logits.float() / self._temperature).softmax(-1).double().cumsum(-1)
        points = torch.tensor(draws, dtype=torch.double, device=logits.device)[:, None] * cumulative[:, -1:]
        return [int(token) for token in torch.searchsorted(cumulative, points, right=True)[:, 0].tolist()]


@torch.no_grad()
def write(
    model: PreTrainedModel,
    cache: PrefixCache,
    rows: Sequence[Tokens],
    sampler: Sampler,
    *,
    ends: Collection[int],
    limit: int,
) -> list[list[int]]:
    """Return the text that follows each of different sequences, without the token that ends it.

    Args:
        model: the transformers model, without adapters' wrapper around it.
        cache: key-value states of this model.
        rows: the sequences.
        sampler: chooses tokens, by the positions of the sequences in ``rows``.
        ends: ids of tokens, each of which ends a text.
        limit: tokens of a text, at most.

    """
    said: list[list[int]] = [[] for _ in rows]
    waiting = deque(range(len(rows)))
    active: list[int] = []
    while waiting or active:
        chosen: list[tuple[int, int]] = []  # (sequence, next token), by slot
        if active:
            with part("reflector: write"):
                inputs = cache.extend([said[sequence][-1:] for sequence in active])
                chosen += zip(active, sampler.choose(next_logits(model, inputs), active), strict=True)
        fresh = [waiting.popleft() for _ in range(min(len(waiting), cache.limit - len(active)))]
        if fresh:
            with part("reflector: read"):
                for indices, inputs in cache.read([rows[sequence] for sequence in fresh], first=len(active)):
                    logits = next_logits(model, inputs)
                    sequences = [fresh[index] for index in indices]
                    if sequences:  # otherwise a beginning that all of them share
                        chosen += zip(sequences, sampler.choose(logits, sequences), strict=True)
        unfinished = []
        for slot, (sequence, token) in enumerate(chosen):
            if token not in ends:
                said[sequence].append(token)
                if len(said[sequence]) < limit:
                    unfinished.append(slot)
        active = [chosen[slot][0] for slot in cache.keep(unfinished)]
    return said
