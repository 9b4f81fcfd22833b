"""``Drafts``: guesses at how texts go on, from those written before, so that one forward pass can check many tokens."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

_CONTEXTS = (6, 3, 1)
"""Numbers of last tokens that a guess may go by; the longest known one decides."""
_MAX_CONTEXTS = 1 << 18
"""Contexts in memory at most, about 40 MB; then all are forgotten, and known again after some dozens of texts."""


class Drafts:
    """What followed the last tokens of a text when they were last written, and how often in a row.

    Args:
        pass_tokens: tokens that cost as much as a forward pass does by itself; see ``pass_tokens``.

    """

    def __init__(self, pass_tokens: float) -> None:
        self._pass_tokens = pass_tokens
        self._followers: dict[int, tuple[int, int]] = {}  # by the hash of a context: a wrong guess costs no more

    def clear(self) -> None:
        """Forget all texts."""
        self._followers.clear()

    def learn(self, text: Sequence[int], start: int) -> None:
        """Note the tokens of ``text`` from ``start`` on; the first one follows its beginning."""
        if len(self._followers) > _MAX_CONTEXTS:
            self.clear()
        for place in range(start, len(text)):
            token = text[place]
            for context in _contexts(text[max(0, place - _CONTEXTS[0]) : place]):
                known, times = self._followers.get(context, (token, 0))
                self._followers[context] = token, times + 1 if known == token else 1

    def guess(self, texts: Sequence[Sequence[int]], most: Sequence[int]) -> list[list[int]]:
        """Return tokens that probably come next, at most ``most`` for each text, none where they are not worth it.

        They are worth it while a column of them, one a text, adds more expected tokens for its cost than there are so
        far; a token that followed n times in a row is expected to do so with (n + 1) / (n + 2), Laplace's rule.
        """
        guesses: list[list[int]] = [[] for _ in texts]
        chances = {row: 1.0 for row, limit in enumerate(most) if limit > 0}
        expected, cost = float(len(texts)), self._pass_tokens + len(texts)
        while chances:
            column: dict[int, tuple[int, float]] = {}
            for row, chance in chances.items():
                context = (*texts[row][-_CONTEXTS[0] :], *guesses[row])[-_CONTEXTS[0] :]
                found = next(filter(None, map(self._followers.get, _contexts(context))), None)
                if found is not None:
                    token, times = found
                    column[row] = token, chance * (times + 1) / (times + 2)
            gain = sum(chance for _, chance in column.values())
            if gain * cost <= expected * len(texts):
                break
            expected, cost = expected + gain, cost + len(texts)
            for row, (token, _) in column.items():
                guesses[row].append(token)
            chances = {row: chance for row, (_, chance) in column.items() if len(guesses[row]) < most[row]}
        return guesses


def _contexts(last: Sequence[int]) -> list[int]:
    """Return hashes of a text's last tokens, the longest first; of a short text all, with a mark at the beginning."""
    found = [hash(tuple(last[-length:])) for length in _CONTEXTS if length <= len(last)]
    return found if len(last) >= _CONTEXTS[0] else [hash((-1, *last)), *found]


def pass_tokens(model: PreTrainedModel) -> float:
    """Return how many tokens cost as much as a forward pass of ``model`` does by itself, as a rule of thumb.

    On a processor a pass is Python, about a millisecond a layer, and reading the weights; elsewhere it is waiting for
    memory, which some hundred tokens share.
    """
    if model.device.type != "cpu":
        return 256.0
    config = model.config.get_text_config()
    return 12.0 + 5e6 * config.num_hidden_layers / model.num_parameters()
