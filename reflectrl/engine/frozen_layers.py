"""Cache of the states of layers below the first trained layer, which stay valid while the layers above are trained.

If only upper layers have adapters, later passes over the same prompts start at the first of these layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from reflectrl.engine.head import instead, known_tokens, next_logits, off, trying
from reflectrl.engine.path_attention import attending
from reflectrl.engine.sequences import Inputs, Tokens, padded, read_tree

MOST_BYTES = 2**30
"""Maximum size of the kept states, in bytes; those of further sequences are computed each time."""
_ROWS = ((1, 2, 3, 4, 5), (1, 2, 3, 6, 7, 5), (1, 4, 2, 5))
_EXACT = 1e-3
"""Maximum relative error of correct logits, which are computed by the same operations."""


class FrozenLayers:
    """Cache of the inputs of a model's first trained layer, one state for each token of the sequences read so far.

    Args:
        model: a causal language model.
        layers: the decoder layers of the model.
        count: number of layers below the first trained one.
        most_bytes: maximum size of the kept states, in bytes.

    """

    def __init__(self, model: PreTrainedModel, layers: nn.ModuleList, count: int, most_bytes: int = MOST_BYTES) -> None:
        self.count = count
        self._model = model
        self._below, self._above = layers[:count], layers[count:]
        self._most_bytes = most_bytes
        self.clear()

    def clear(self) -> None:
        """Clear the cache."""
        self._kept: list[Tensor] = []  # (T, D) states of each pass
        self._places: dict[Tokens, tuple[int, NDArray[np.int64]]] = {}  # pass and token positions of each sequence
        self.held_bytes = 0
        """Size of the kept states, in bytes."""

    @contextmanager
    def skipped(self, rows: Sequence[Tokens], inputs: Inputs) -> Iterator[None]:
        """Let the model start at its first trained layer in the block, for ``inputs`` that consist of ``rows``."""
        states = self._states(rows, inputs).view(*inputs.input_ids.shape, -1)
        with _all_instead(self._below, lambda *_, **__: states):
            yield

    def _states(self, rows: Sequence[Tokens], inputs: Inputs) -> Tensor:
        """Return the (B T, D) states of all tokens of ``inputs``; those of padding are arbitrary."""
        missing = [row for row in dict.fromkeys(rows) if row not in self._places]
        kept, known = self._kept, self._places
        if missing:
            whole = len(missing) == len(set(rows))
            fresh = inputs if whole else self._inputs_like(inputs, missing)
            states = self._compute(fresh)
            found = {row: (len(kept), places) for row, places in _places(rows if whole else missing, fresh).items()}
            if self.held_bytes + states.nbytes <= self._most_bytes:
                self.held_bytes += states.nbytes
                kept.append(states)
                known |= found
            else:
                kept, known = [*kept, states], {**known, **found}
            if whole:
                return states
        number, place = np.zeros((2, inputs.input_ids.numel()), dtype=np.int64)
        for row, here in _places(rows, inputs).items():
            number[here], place[here] = known[row]
        order = number.argsort(kind="stable")
        sent = torch.from_numpy(np.stack([place[order], order.argsort()])).to(inputs.input_ids.device)  # at once
        parts = sent[0].split(np.bincount(number, minlength=len(kept)).tolist())
        return torch.cat([states[part] for states, part in zip(kept, parts, strict=True)])[sent[1]]

    def _inputs_like(self, inputs: Inputs, rows: Sequence[Tokens]) -> Inputs:
        return padded(rows, inputs.input_ids.device) if inputs.tree is None else read_tree(rows, self._model)

    @torch.no_grad()
    def _compute(self, inputs: Inputs) -> Tensor:
        """Compute the (B T, D) states of ``inputs``, skipping the layers above."""
        states: list[Tensor] = []

        def note(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
            states.append(hidden_states)
            return hidden_states

        extra = dict(inputs.extra)
        forward = self._model.base_model.forward
        if (paths := extra.pop("paths", None)) is not None:
            forward = attending(self._model, forward, paths)
        with _all_instead(self._above, note):
            forward(input_ids=inputs.input_ids, use_cache=False, **extra)
        return states[0].flatten(0, 1)


@contextmanager
def _all_instead(layers: Iterable[nn.Module], forward: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(instead(layer, forward))
        yield


def _places(rows: Sequence[Tokens], inputs: Inputs) -> dict[Tokens, NDArray[np.int64]]:
    """Return the positions of the tokens of each of ``rows`` in ``inputs``, which consist of ``rows``."""
    if inputs.tree is None:
        width = inputs.input_ids.size(1)
        return {row: number * width + np.arange(len(row)) for number, row in enumerate(dict.fromkeys(rows))}
    ends = dict(zip(rows, inputs.tree.ends.tolist(), strict=True))
    return {row: np.flatnonzero(inputs.tree.exits[: end + 1] > end) for row, end in ends.items()}


def frozen_layers(model: PreTrainedModel) -> FrozenLayers | None:
    """Return a cache for the layers of ``model`` below the first trained one; ``None`` if they cannot be skipped.

    A pass over a few tokens with gradient shows which layers are trained. Further passes check that the logits are the
    same when the model starts at that layer, which fails if layers read more than the states of the layer below. A
    compiled model would be compiled again, and a model that reads images has no such cache.
    """
    if getattr(model, "compiled", False) or hasattr(model, "pictures"):
        return None
    tokens = known_tokens(model, max(map(max, _ROWS)) + 1)
    rows = [tuple(tokens[number] for number in row) for row in _ROWS]
    try:
        with trying(model):
            layers = _decoder_layers(model)
            count = _count_frozen(model, layers, padded(rows, model.device))
            if not 0 < count < len(layers):
                return None
            found = FrozenLayers(model, layers, count)
            tried = [(each, padded(each, model.device)) for each in (rows, rows[::-1], rows[1:])]
            own = [next_logits(model, inputs) for _, inputs in tried]
            errors = [
                off(_logits(model, each, inputs, found), logits)
                for (each, inputs), logits in zip(tried, own, strict=True)
            ]
    except Exception:  # noqa: BLE001 - an architecture may answer with an error of any kind
        return None
    found.clear()
    return found if all(error < _EXACT for error in errors) else None


def _decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """Return the list of decoder layers: the first module list whose length is the number of layers."""
    number = model.config.get_text_config().num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next(each for each in lists if len(each) == number)


def _count_frozen(model: PreTrainedModel, layers: nn.ModuleList, inputs: Inputs) -> int:
    """Return the number of layers whose outputs have no gradient."""
    depend: list[bool] = []
    hooks = [layer.register_forward_hook(lambda _, __, out: depend.append(out.requires_grad)) for layer in layers]
    try:
        with torch.enable_grad():
            model(input_ids=inputs.input_ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return len(list(itertools.takewhile(lambda each: not each, depend)))


def _logits(model: PreTrainedModel, rows: Sequence[Tokens], inputs: Inputs, found: FrozenLayers) -> Tensor:
    with found.skipped(rows, inputs):
        return next_logits(model, inputs)
