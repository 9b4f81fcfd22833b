"""Writing token by token for many sequences side by side, on a ``PrefixCache`` of everything read before.

Against ``transformers``' ``generate``: what a sequence shares with an earlier one is not read again, a sequence that
ends leaves at once and a waiting one takes its place, no states are copied from token to token, and what earlier texts
lead to expect (``Drafts``) is checked many tokens at once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reflectrl.core.profile import part
from reflectrl.engine.drafts import Drafts
from reflectrl.engine.head import next_logits
from reflectrl.engine.prefix_cache import PrefixCache
from reflectrl.engine.sequences import Tokens


class Sampler:
    """The next tokens of each of some sequences, each from a generator of its own, so that batches do not matter."""

    def __init__(self, draws: Sequence[float], temperature: float) -> None:
        self._rngs = [random.Random(draw) for draw in draws]
        self._drawn: list[list[float]] = [[] for _ in draws]
        self._logprobs: list[dict[int, float]] = [{} for _ in draws]
        self._temperature = temperature

    def choose(self, logits: Tensor, places: Sequence[tuple[int, int]]) -> list[int]:
        """One token for each row of ``logits`` (N, V): the most probable at temperature 0, else a sample.

        A sample is where the cumulative distribution passes a draw: the one of the row's place, which is a sequence and
        the number of the token in its text.
        """
        if self._temperature == 0:
            return [int(token) for token in logits.argmax(-1).tolist()]
        logprobs = (logits.float() / self._temperature).log_softmax(-1)
        # in double precision a draw below 1 stays below the total, so the last token is never stepped past
        cumulative = logprobs.exp().double().cumsum(-1)
        draws = torch.tensor([self._draw(*place) for place in places], dtype=torch.double, device=logits.device)
        chosen = torch.searchsorted(cumulative, draws[:, None] * cumulative[:, -1:], right=True)
        found = torch.cat([chosen.double(), logprobs.gather(1, chosen).double()], 1).tolist()
        for (sequence, number), (_, logprob) in zip(places, found, strict=True):
            self._logprobs[sequence][number] = logprob
        return [int(token) for token, _ in found]

    def logprobs(self, sequence: int, count: int) -> tuple[float, ...]:
        """Return the natural logs of the probabilities with which a text's first ``count`` tokens were sampled.

        Empty at temperature 0, where none was.
        """
        return tuple(self._logprobs[sequence][number] for number in range(count)) if self._temperature else ()

    def _draw(self, sequence: int, number: int) -> float:
        """Return a sequence's draw for a token of its text, however often it is asked for."""
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
    drafts: Drafts,
    ends: Collection[int],
    limit: int,
) -> list[list[int]]:
    """Return the text that follows each of different sequences, without the token that ends it.

    A pass reads a sequence's last token and a draft of those to come. The token for each place is chosen as it would be
    without a draft, by the sequence's own draw, and the draft holds as far as it is what was chosen: so drafts, like
    the sequences written beside, decide how many tokens a pass finds, and the last bits of its logits, but not words.

    Args:
        model: the transformers model, without adapters' wrapper around it.
        cache: key-value states of this model.
        rows: the sequences.
        sampler: chooses tokens, by the positions of the sequences in ``rows``.
        drafts: texts written before, which these are added to.
        ends: ids of tokens, each of which ends a text.
        limit: tokens of a text, at most.

    """
    said: list[list[int]] = [[] for _ in rows]
    waiting = deque(range(len(rows)))
    active: list[int] = []
    while waiting or active:
        chosen: list[tuple[int, list[int]]] = []  # (sequence, next tokens), by slot
        if active:
            with part("reflector: write"):
                texts = [said[sequence] for sequence in active]
                guesses = drafts.guess(texts, [limit - len(text) - 1 for text in texts])
                inputs = cache.extend([[text[-1], *guess] for text, guess in zip(texts, guesses, strict=True)])
                places = [
                    (sequence, len(text) + ahead)
                    for sequence, text, guess in zip(active, texts, guesses, strict=True)
                    for ahead in range(len(guess) + 1)
                ]
                found = _confirmed(sampler.choose(next_logits(model, inputs), places), guesses)
                cache.drop([len(guess) + 1 - len(tokens) for guess, tokens in zip(guesses, found, strict=True)])
                chosen += zip(active, found, strict=True)
        fresh = [waiting.popleft() for _ in range(min(len(waiting), cache.limit - len(active)))]
        if fresh:
            with part("reflector: read"):
                for indices, inputs in cache.read([rows[sequence] for sequence in fresh], first=len(active)):
                    logits = next_logits(model, inputs)
                    firsts = [(fresh[index], 0) for index in indices]
                    if firsts:  # otherwise a beginning that all of them share
                        tokens = sampler.choose(logits, firsts)
                        chosen += ((sequence, [token]) for (sequence, _), token in zip(firsts, tokens, strict=True))
        unfinished = []
        for slot, (sequence, tokens) in enumerate(chosen):
            text = said[sequence]
            start = len(text)
            text += tokens[: next((at + 1 for at, token in enumerate(tokens) if token in ends), None)]
            drafts.learn(text, start)
            if text[-1] in ends:
                text.pop()
            elif len(text) < limit:
                unfinished.append(slot)
        active = [chosen[slot][0] for slot in cache.keep(unfinished)]
    return said


def _confirmed(tokens: Sequence[int], guesses: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the tokens chosen for each sequence, up to the first that its guess has otherwise, or one more."""
    remaining = iter(tokens)
    found = []
    for guess in guesses:
        chosen = list(islice(remaining, len(guess) + 1))
        right = next((at for at, token in enumerate(guess) if token != chosen[at]), len(guess))
        found.append(chosen[: right + 1])
    return found
