"""Writing token by token for many sequences side by side, where ``PrefixCache`` keep what was read before.

Against ``transformers``' ``generate``: what a sequence shares with one that was written to before is not read again, a
sequence that ends leaves at once and a waiting one takes its place, and no states are copied from token to token.
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


class Decoder:
    """Writes with a language model.

    Args:
        model: the transformers model, without adapters' wrapper around it.
        prefix_cache: key-value states of this model.
        ends: ids of tokens, each of which ends a text.
        limit: tokens of a text, at most.

    """

    def __init__(self, model: PreTrainedModel, prefix_cache: PrefixCache, ends: Collection[int], limit: int) -> None:
        self._model = model
        self._prefix_cache = prefix_cache
        self._ends = frozenset(ends)
        self._limit = limit

    @torch.no_grad()
    def write(self, rows: Sequence[Tokens], sampler: Sampler) -> list[list[int]]:
        """The text that follows each of different sequences, without the token that ends it."""
        said: list[list[int]] = [[] for _ in rows]
        waiting = deque(range(len(rows)))
        active: list[int] = []
        while waiting or active:
            fresh = [waiting.popleft() for _ in range(min(len(waiting), self._prefix_cache.limit - len(active)))]
            chosen = self._extend(active, said, sampler)
            chosen += self._begin(fresh, rows, sampler, first=len(active))
            active = self._still_active(chosen, said)
        return said

    def _extend(self, active: Sequence[int], said: Sequence[Sequence[int]], sampler: Sampler) -> list[tuple[int, int]]:
        """(sequence, next token) of those that go on."""
        if not active:
            return []
        with part("reflector: write"):
            inputs = self._prefix_cache.extend([said[sequence][-1] for sequence in active])
            return list(zip(active, sampler.choose(next_logits(self._model, inputs), active), strict=True))

    def _begin(
        self, fresh: Sequence[int], rows: Sequence[Tokens], sampler: Sampler, first: int
    ) -> list[tuple[int, int]]:
        """(sequence, first token) of those that begin."""
        chosen: list[tuple[int, int]] = []
        if not fresh:
            return chosen
        with part("reflector: read"):
            for indices, inputs in self._prefix_cache.read([rows[sequence] for sequence in fresh], first):
                logits = next_logits(self._model, inputs)
                sequences = [fresh[index] for index in indices]
                if sequences:
                    chosen += zip(sequences, sampler.choose(logits, sequences), strict=True)
        return chosen

    def _still_active(self, chosen: Sequence[tuple[int, int]], said: Sequence[list[int]]) -> list[int]:
        """Note the tokens, by slot; the sequences that are not at their end come to lie in front, in this order."""
        on = []
        for slot, (sequence, token) in enumerate(chosen):
            if token not in self._ends:
                said[sequence].append(token)
                if len(said[sequence]) < self._limit:
                    on.append(slot)
        return [chosen[slot][0] for slot in self._prefix_cache.keep(on)]
