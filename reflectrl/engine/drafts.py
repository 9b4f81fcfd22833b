"""``Drafts``: continuations predicted from earlier texts, so that one forward pass can verify several tokens."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

_CONTEXTS = (6, 3, 1)
"""Context lengths, in tokens, from which the next token is predicted; the longest known context is used."""
_MAX_CONTEXTS = 1 << 18
"""Maximum number of contexts, about 40 MB; beyond it all are cleared, and learned again from some dozens of texts."""


class Drafts:
    """Table of the token that followed each context last, and how many times in a row it did.

    Args:
        pass_tokens: fixed cost of a forward pass, in tokens; see the function ``pass_tokens``.

    """

    def __init__(self, pass_tokens: float) -> None:
        self._pass_tokens = pass_tokens
        self._followers: dict[int, tuple[int, int]] = {}  # by hash of the context; a collision only costs a guess

    def clear(self) -> None:
        """Forget all texts."""
        self._followers.clear()

    def learn(self, text: Sequence[int], start: int) -> None:
        """Add the tokens of ``text`` from ``start`` on to the table, each with the contexts before it."""
        if len(self._followers) > _MAX_CONTEXTS:
            self.clear()
        for place in range(start, len(text)):
            token = text[place]
            for context in _contexts(text[max(0, place - _CONTEXTS[0]) : place]):
                known, times = self._followers.get(context, (token, 0))
                self._followers[context] = token, times + 1 if known == token else 1

    def guess(self, texts: Sequence[Sequence[int]], most: Sequence[int]) -> list[list[int]]:
        """Return the predicted next tokens, at most ``most`` for each text, as far as they are worth their cost.

        Guesses grow by one token per text as long as this increases the expected number of tokens per cost of the pass.
        A token that followed n times in a row is expected with probability (n + 1) / (n + 2), Laplace's rule.
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
    """Return hashes of a text's last tokens, the longest context first; a short text adds its start as a context."""
    found = [hash(tuple(last[-length:])) for length in _CONTEXTS if length <= len(last)]
    return found if len(last) >= _CONTEXTS[0] else [hash((-1, *last)), *found]


def pass_tokens(model: PreTrainedModel) -> float:
    """Return the approximate fixed cost of a forward pass of ``model``, in tokens.

    On a CPU it is the time of Python, about a millisecond per layer, and of reading the weights; on an accelerator it
    is memory latency, which a few hundred tokens share.
    """
    if model.device.type != "cpu":
        return 256.0
    config = model.config.get_text_config()
    return 12.0 + 5e6 * config.num_hidden_layers / model.num_parameters()
