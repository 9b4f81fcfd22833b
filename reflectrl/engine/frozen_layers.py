"""Layers below the first one that is trained: their states stay valid while the rest learns, so they are kept.

Where only upper layers have adapters, later passes over the same prompts begin at the first of these.
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
"""Size of the states that are kept, at most; those of further sequences are computed each time."""
_ROWS = ((1, 2, 3, 4, 5), (1, 2, 3, 6, 7, 5), (1, 4, 2, 5))
_EXACT = 1e-3
"""Largest error of right logits, which are computed by the same operations."""


class FrozenLayers:
    """States of the sequences read so far at the first trained layer of a model: one for each token of their trees.

    Args:
        model: a causal language model.
        layers: its decoder layers.
        count: number of those below the first trained one.
        most_bytes: size of the states that are kept.

    """

    def __init__(self, model: PreTrainedModel, layers: nn.ModuleList, count: int, most_bytes: int = MOST_BYTES) -> None:
        self.count = count
        self._model = model
        self._below, self._above = layers[:count], layers[count:]
        self._most_bytes = most_bytes
        self.clear()

    def clear(self) -> None:
        """Forget all states."""
        self._kept: list[Tensor] = []  # (T, D) of each pass
        self._places: dict[Tokens, tuple[int, NDArray[np.int64]]] = {}  # of a sequence: the pass, and places in it
        self.held_bytes = 0
        """Size of what is kept."""

    @contextmanager
    def skipped(self, rows: Sequence[Tokens], inputs: Inputs) -> Iterator[None]:
        """Have the model begin at its first trained layer when it reads ``inputs``, which end in ``rows``."""
        states = self._states(rows, inputs).view(*inputs.input_ids.shape, -1)
        with _all_instead(self._below, lambda *_, **__: states):
            yield

    def _states(self, rows: Sequence[Tokens], inputs: Inputs) -> Tensor:
        """(B T, D) states of all tokens of ``inputs``; those behind the end of a padded row are of any token."""
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
        """(B T, D) states of ``inputs``; the layers above hand on what they get."""
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
    """Where the tokens of each of ``rows`` lie in ``inputs``, which end in them."""
    if inputs.tree is None:
        width = inputs.input_ids.size(1)
        return {row: number * width + np.arange(len(row)) for number, row in enumerate(dict.fromkeys(rows))}
    ends = dict(zip(rows, inputs.tree.ends.tolist(), strict=True))
    return {row: np.flatnonzero(inputs.tree.exits[: end + 1] > end) for row, end in ends.items()}


def frozen_layers(model: PreTrainedModel) -> FrozenLayers | None:
    """Return the layers of ``model`` below the first trained one; ``None`` if there are none that can be skipped.

    What is trained is seen from a few tokens that are read with gradient, and so is whether the architecture gives the
    same logits when it begins at that layer: one whose layers see more than the states before them does not. A
    compiled model would be compiled again, and one of images is read whole.
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
    """The list of as many modules as the model has layers."""
    number = model.config.get_text_config().num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next(each for each in lists if len(each) == number)


def _count_frozen(model: PreTrainedModel, layers: nn.ModuleList, inputs: Inputs) -> int:
    """Number of layers that come before anything with a gradient."""
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
