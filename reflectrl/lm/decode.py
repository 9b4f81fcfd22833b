"""Autoregressive decoding of many sequences in parallel, on a ``PrefixCache`` of earlier sequences.

Differences to ``transformers``' ``generate``: prefixes shared with earlier sequences are not read again, a finished
sequence is replaced by a waiting one immediately, and no states are copied between tokens.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from reflectrl.core.profile import part
from reflectrl.lm.head import next_logits
from reflectrl.lm.prefix_cache import PrefixCache
from reflectrl.lm.sequences import Tokens

_BLOCK = 128
"""Number of neighbouring tokens whose weights are summed in a large vocabulary, before a draw is looked for."""
_LARGE = 32 * _BLOCK
"""Size of a vocabulary above which this is faster than summing over all tokens."""
_AT_ONCE = 2**18
"""Logits of a step on a CPU, whose temporaries would otherwise be new pages of memory each time."""


def chosen(logits: Tensor, draws: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the (N,) tokens where (N, V) logits accumulate to (N,) draws, and their log-probabilities in nats."""
    rows = max(1, _AT_ONCE // logits.size(1)) if logits.device.type == "cpu" else len(logits)
    steps = [_chosen(*step, temperature) for step in zip(logits.split(rows), draws.split(rows), strict=True)]
    tokens, logprobs = zip(*steps, strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def _chosen(logits: Tensor, draws: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logprobs = (logits.float() / temperature).log_softmax(-1)
    # integers, because a GPU adds floats in varying order
    weights = logprobs.exp().mul_(2**40).long()
    # in double precision, a draw below 1 stays below the total
    tokens = _inverted(weights, (draws[:, None] * weights.sum(-1, keepdim=True)).long())
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]


def _inverted(weights: Tensor, points: Tensor) -> Tensor:
    """Return (N, 1) columns, the first where (N, V) weights accumulate to more than (N, 1) points."""
    if weights.size(1) <= _LARGE:
        return torch.searchsorted(weights.cumsum(-1), points, right=True)
    missing = -weights.size(1) % _BLOCK
    blocks = (F.pad(weights, (0, missing)) if missing else weights).unflatten(1, (-1, _BLOCK))
    sums = blocks.sum(-1)
    block = _inverted(sums, points)
    before = (sums.cumsum(-1) - sums).gather(1, block)
    inside = blocks.take_along_dim(block[:, :, None], 1)[:, 0]
    return block * _BLOCK + _inverted(inside, points - before)


class Sampler:
    """Sampler of next tokens, with a separate generator for each sequence, so that batching does not change samples."""

    def __init__(self, draws: Sequence[float], temperature: float) -> None:
        self._rngs = [random.Random(draw) for draw in draws]
        self._drawn: list[list[float]] = [[] for _ in draws]
        self._logprobs: list[dict[int, float]] = [{} for _ in draws]
        self.temperature = temperature
        """0 for the most probable tokens."""

    def choose(self, logits: Tensor, places: Sequence[tuple[int, int]]) -> list[int]:
        """Return one token for each row of ``logits`` (N, V): the most probable at temperature 0, else a sample.

        Samples invert the cumulative distribution at the draw of the row's place, which is a sequence and the number of
        the token in its text.
        """
        if self.temperature == 0:
            return [int(token) for token in logits.argmax(-1).tolist()]
        draws = torch.tensor([self.draw(*place) for place in places], dtype=torch.double, device=logits.device)
        tokens, logprobs = chosen(logits, draws, self.temperature)
        found = torch.stack([tokens.double(), logprobs.double()], 1).tolist()
        for (sequence, number), (_, logprob) in zip(places, found, strict=True):
            self._logprobs[sequence][number] = logprob
        return [int(token) for token, _ in found]

    def logprobs(self, sequence: int, count: int) -> tuple[float, ...]:
        """Return the log-probabilities, in nats, with which a text's first ``count`` tokens were sampled.

        Empty at temperature 0, where tokens are not sampled.
        """
        return tuple(self._logprobs[sequence][number] for number in range(count)) if self.temperature else ()

    def note(self, sequence: int, logprobs: Sequence[float]) -> None:
        """Record the log-probabilities of a text that another loop sampled with these draws."""
        self._logprobs[sequence] = dict(enumerate(logprobs))

    def draw(self, sequence: int, number: int) -> float:
        """Return a sequence's draw for a token of its text; repeated calls return the same draw."""
        drawn = self._drawn[sequence]
        while len(drawn) <= number:
            drawn.append(self._rngs[sequence].random())
        return drawn[number]


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
    """Return the continuation of each of distinct sequences, without the token that ends it.

    Each token is chosen with the sequence's own draw, so the other sequences of a forward pass change the rounding of
    its logits only.

    Args:
        model: the transformers model, without a wrapper for adapters.
        cache: cache of this model's key-value states.
        rows: the sequences, as token ids.
        sampler: chooses tokens; its sequences are numbered as in ``rows``.
        ends: token ids that end a text.
        limit: maximum number of tokens of a text.
    """
    said: list[list[int]] = [[] for _ in rows]
    waiting = deque(range(len(rows)))
    active: list[int] = []
    while waiting or active:
        chosen: list[tuple[int, int]] = []  # (sequence, next token), by slot
        if active:
            with part("reflector: write"):
                inputs = cache.extend([[said[sequence][-1]] for sequence in active])
                places = [(sequence, len(said[sequence])) for sequence in active]
                chosen += zip(active, sampler.choose(next_logits(model, inputs), places), strict=True)
        fresh = [waiting.popleft() for _ in range(min(len(waiting), cache.limit - len(active)))]
        if fresh:
            with part("reflector: read"):
                for indices, inputs in cache.read([rows[sequence] for sequence in fresh], first=len(active)):
                    logits = next_logits(model, inputs)
                    firsts = [(fresh[index], 0) for index in indices]
                    if firsts:  # otherwise the pass read only the prefix that all of them share
                        tokens = sampler.choose(logits, firsts)
                        chosen += ((sequence, token) for (sequence, _), token in zip(firsts, tokens, strict=True))
        unfinished = []
        for slot, (sequence, token) in enumerate(chosen):
            if token in ends:
                continue
            said[sequence].append(token)
            if len(said[sequence]) < limit:
                unfinished.append(slot)
        active = [chosen[slot][0] for slot in cache.keep(unfinished)]
    return said
