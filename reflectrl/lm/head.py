"""A language model's output head, restricted to the logits that are needed: at ends of sequences, for label rows.

Everything before and after the output matrix (a transform, a scale, a cap) is computed by the model's own ``forward``,
so nothing here depends on the architecture. A test with a few tokens shows whether an architecture allows this; one
that does not computes the logits of its whole vocabulary at every position.

The masked action head is inside ``forward``, because only calls through the outermost wrapper (DDP, FSDP, PEFT)
synchronise gradients; calling the unwrapped module would silently train each rank separately.
"""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from reflectrl.core import InvalidInput
from reflectrl.core.foreign import message_of
from reflectrl.lm.seeding import seeded
from reflectrl.lm.sequences import Inputs, Paths, Tokens, attending, padded

_log = logging.getLogger(__name__)
_LENGTHS = (6, 4, 2)
"""Lengths, in tokens, of the rows with which a head is tested; shorter ones are padded."""
_CLOSE = 0.01
"""Maximum relative error of correct logits; rounding to bfloat16 changes a number by up to 0.004 of it."""
_UNSEEN = 0.05
"""Maximum relative change of a causal model's logits by later tokens, which quantised layers cause by rounding."""
_BARRED = 1e4
"""Magnitude from which logits are ignored in comparisons; architectures mark impossible tokens with them."""


def next_logits(model: PreTrainedModel, inputs: Inputs) -> Tensor:
    """Return the (N, V) logits of the token after each of N sequences, as the model's own ``forward`` computes them."""
    if not hasattr(model, "_narrow_head"):
        try_head(model)
    return _read(model, model, inputs.last, None, input_ids=inputs.input_ids, **inputs.extra)[0]


def _read(
    model: Any,
    forward: Callable[..., Any],
    last: Tensor,
    choice_ids: Tensor | None,
    *args: Any,
    paths: Paths | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return logits at the positions ``last``, (N, V) or in float32 (N, A) for ``choice_ids``, and (N, D) states.

    The states are the inputs of the output matrix; for a head that cannot be restricted, the last hidden states.
    """
    kwargs["use_cache"] = "past_key_values" in kwargs
    if paths is not None:
        forward = attending(model, forward, paths)
    if model._narrow_head:
        states: list[Tensor] = []
        with _narrowed(model.get_output_embeddings(), last, choice_ids, states):
            logits = forward(*args, **kwargs).logits.flatten(0, -2)
        (state,) = states
        return logits, state
    output = forward(*args, **kwargs, output_hidden_states=choice_ids is not None or hasattr(model, "value_head"))
    logits, hidden = output.logits.flatten(0, 1)[last], output.hidden_states
    if choice_ids is not None:
        logits = logits[:, choice_ids].float()
    return logits, hidden[-1].flatten(0, 1)[last] if hidden else None


@contextmanager
def _narrowed(head: nn.Module, last: Tensor, choice_ids: Tensor | None, states: list[Tensor]) -> Iterator[None]:
    """Let ``head`` compute only the positions ``last`` and rows ``choice_ids``; append its input to ``states``."""
    whole = head.forward

    def forward(hidden: Tensor) -> Tensor:
        states.append(hidden.flatten(0, 1)[last])
        logits = whole(states[-1]) if choice_ids is None else _choice_logits(head, whole, states[-1], choice_ids)
        return logits[None]

    with instead(head, forward):
        yield


@contextmanager
def instead(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace the ``forward`` of ``module`` inside the block."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def _choice_logits(head: nn.Module, whole: Callable[[Tensor], Tensor], hidden: Tensor, choice_ids: Tensor) -> Tensor:
    """Return the (N, A) float32 logits of the label rows for (N, D) hidden states."""
    if type(head) is not nn.Linear:  # e.g. peft's trainable tokens, whose weight is not the effective matrix
        return whole(hidden)[:, choice_ids].float()
    weight = head.weight.full_tensor() if hasattr(head.weight, "full_tensor") else head.weight  # FSDP2 shards
    bias = None if head.bias is None else head.bias[choice_ids].float()
    with torch.autocast(hidden.device.type, enabled=False):  # autocast would compute the product in bfloat16
        return F.linear(hidden.float(), weight[choice_ids].float(), bias)


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Put ``model`` in eval mode inside the block; skipped if it already is, because it costs as much as a layer."""
    if not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()


@contextmanager
def trying(model: PreTrainedModel) -> Iterator[None]:
    """Run ``model`` without dropout and gradients inside the block; restore its mode and the random state after it."""
    with in_eval_mode(model), torch.no_grad(), seeded(0):
        yield


def known_tokens(model: PreTrainedModel, count: int) -> Tokens:
    """Return the first ``count`` token ids of ``model`` from 1 on, or fewer, without the padding token."""
    config = model.config.get_text_config()
    return tuple(token for token in range(1, min(count + 2, config.vocab_size)) if token != config.pad_token_id)[:count]


def try_head(model: PreTrainedModel) -> int | None:
    """Record on ``model`` whether its head can be restricted to positions and rows; log a warning if it cannot.

    The choice logits of a few short rows are compared with the logits of the model's own ``forward``.

    Returns:
        The width of the states that come with choice logits; ``None`` without states.

    Raises:
        InvalidInput: the model needs other inputs than token ids, or is not causal.
    """
    tokens = known_tokens(model, max(_LENGTHS) + 1)
    inputs = padded([tokens[:length] for length in _LENGTHS], model.device)
    with trying(model):
        own = _own_logits(model, inputs, tokens[-1])
        # neither from 0 nor ascending, so that a head which depends on the order of its rows is detected
        choice_ids = torch.arange(1, own.size(1), -(-own.size(1) // 16), device=model.device).flip(0)
        own = own[:, choice_ids]
        model._narrow_head = True
        try:
            logits, states = _read(model, model, inputs.last, choice_ids, input_ids=inputs.input_ids)
            model._narrow_head = logits.shape == own.shape and not off(logits, own) > _CLOSE
        except Exception:  # noqa: BLE001 - an architecture may answer with an error of any kind
            model._narrow_head = False
        if not model._narrow_head:
            _, states = _read(model, model, inputs.last, choice_ids, input_ids=inputs.input_ids)
    if not model._narrow_head:
        _log.warning(
            "%s computes the logits of its whole vocabulary at every position, which takes time and memory: its "
            "output matrix cannot be asked for single positions and rows.",
            type(model).__name__,
        )
    return None if states is None else states.size(-1)


class LogitScale:
    """Multiplies all logits of a model by a factor, exactly, through the parameters of its last norm.

    Args:
        model: any causal language model of transformers; all ranks call this if its weights are sharded.

    Raises:
        InvalidInput: the norm is not trained, or the logits do not follow it, because of a bias or a cap.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        vectors = [module for module in model.base_model.modules() if getattr(module, "weight", None) is not None]
        norms = [module for module in vectors if module.weight.dim() == 1]
        self._parameters = [*norms[-1].parameters(recurse=False)] if norms else []
        if not self._parameters or not all(weight.requires_grad for weight in self._parameters):
            raise InvalidInput(
                "rlft.sharpen was given, but the last norm of the policy is not trained; train all weights "
                "(model.lora=null), or remove rlft.sharpen."
            )
        self._weights = [weight.detach().clone() for weight in self._parameters]
        inputs = padded([known_tokens(model, max(_LENGTHS))], model.device)
        with trying(model):
            own = next_logits(model, inputs).float()
            self.set(2.0)
            scaled = next_logits(model, inputs).float()
            self.set(1.0)
        if off(scaled, 2 * own) > _CLOSE:
            raise InvalidInput(
                f"rlft.sharpen was given, but the logits of {type(model).__name__} are not proportional to its last "
                "norm; remove it."
            )

    @torch.no_grad()
    def set(self, factor: float) -> None:
        """Make the logits ``factor`` times those of the model as it was given."""
        for parameter, weight in zip(self._parameters, self._weights, strict=True):
            parameter.copy_(weight * factor)


def _own_logits(model: Any, inputs: Inputs, other: int) -> Tensor:
    """Return (N, V) logits of the model's own ``forward``; raise if they change when padding is ``other``."""
    width = inputs.input_ids.size(1)
    behind = torch.arange(width, device=model.device) > (inputs.last % width)[:, None]
    try:
        own, changed = (
            model(input_ids=ids, use_cache=False).logits.flatten(0, 1)[inputs.last].float()
            for ids in (inputs.input_ids, inputs.input_ids.masked_fill(behind, other))
        )
    except Exception as error:
        raise InvalidInput(
            f"{type(model).__name__} could not read token ids alone ({type(error).__name__}: "
            f"{message_of(error)[:200]}); correct what the error names, or set model.name to a causal language model."
        ) from error
    if off(changed, own) > _UNSEEN:
        raise InvalidInput(
            f"{type(model).__name__} attends to tokens that come later, so prompts of different lengths cannot be read "
            "side by side; set model.name to a causal language model, or, for one that was made from an encoder, set "
            "is_decoder (XLM: causal) to true in its config.json."
        )
    return own


def off(logits: Tensor, own: Tensor) -> float:
    """Return the error of (N, V) logits relative to the norm of ``own``, as the maximum over the N rows."""
    barred = own.abs() >= _BARRED
    error, size = ((values.masked_fill(barred, 0)).norm(dim=-1) for values in (logits - own, own))
    return float((error / size.clamp_min(torch.finfo(size.dtype).tiny)).max())


def _check_head(head: Any) -> None:
    """Refuse an output matrix whose label rows cannot be read."""
    if hasattr(head, "lora_A"):
        raise InvalidInput(
            "the lm_head of the policy carries a LoRA adapter; the label rows would ignore it: leave lm_head out of "
            "model.lora.target_modules."
        )
    weight = getattr(head, "weight", None)
    if weight is not None and not weight.dtype.is_floating_point:
        raise InvalidInput(
            f"the lm_head of the policy is quantised ({weight.dtype}); its label rows cannot be read: load the model "
            "without quantising lm_head (the default of model.quantization)."
        )


def add_choice_head(model: PreTrainedModel, *, value_head: bool = False, value_trains_trunk: bool = True) -> None:
    """Extend ``model.forward`` by the masked action head; call this before DDP wraps the model.

    ``forward(input_ids=(B, T), choice_ids=(A,), last=(N,))`` returns ``(logits, values)``: float32 logits (N, A) of the
    rows ``choice_ids`` of the lm_head at the positions ``last`` in the flattened inputs, and (N,) values in units of
    return (zeros without a value head). With ``written=(M,)`` and ``firsts=(N,)`` it also returns (M, V) logits at the
    positions ``written``, and the values are those at the positions ``written[firsts]``. Without ``choice_ids`` it
    returns the logits at the positions ``written`` alone, or without these either, what the original forward does.

    Args:
        model: any causal language model of transformers.
        value_head: add a linear value head on the inputs of the output matrix; ``save_pretrained`` does not save it.
        value_trains_trunk: whether the loss of the value head also trains the layers below it.

    Raises:
        InvalidInput: LoRA on the lm_head, a quantised lm_head, or a model that ``try_head`` refuses.
    """
    _check_head(model.get_output_embeddings())
    width = try_head(model)
    if value_head:
        if width is None:
            raise InvalidInput(
                f"{type(model).__name__} gives no hidden states, which a value head reads; set "
                "rlft.advantage.kind to batch."
            )
        model.value_head = nn.Linear(width, 1, device=model.device)
        nn.init.zeros_(model.value_head.weight)
        nn.init.zeros_(model.value_head.bias)
        model.value_trains_trunk = value_trains_trunk
        model._keys_to_ignore_on_save = {"value_head.weight", "value_head.bias"}
    bound = model.forward
    # unbound, so that copies of the model call their own; accelerate's hooks leave no method to unbind
    original = getattr(bound, "__func__", lambda _, *args, **kwargs: bound(*args, **kwargs))

    @functools.wraps(type(model).forward)  # generate() reads the signature
    def forward(
        self: Any,
        *args: Any,
        choice_ids: Tensor | None = None,
        last: Tensor | None = None,
        written: Tensor | None = None,
        firsts: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        whole = functools.partial(original, self)
        if choice_ids is None or last is None:
            return whole(*args, **kwargs) if written is None else _read(self, whole, written, None, *args, **kwargs)[0]
        if written is None:
            logits, states = _read(self, whole, last, choice_ids, *args, **kwargs)
            return logits, _values(self, logits, states)
        # one pass with the whole vocabulary, because operations after the output matrix may depend on all logits
        logits, states = _read(self, whole, torch.cat([last, written]), None, *args, **kwargs)
        labels, words = logits[: len(last), choice_ids].float(), logits[len(last) :]
        return labels, _values(self, labels, None if states is None else states[len(last) :][firsts]), words

    model.forward = types.MethodType(forward, model)


def _values(model: Any, logits: Tensor, states: Tensor | None) -> Tensor:
    """Return (N,) estimates of the return from (N, D) states; zeros without a value head."""
    if states is None or not hasattr(model, "value_head"):
        return logits.new_zeros(logits.size(0))
    values: Tensor = model.value_head((states if model.value_trains_trunk else states.detach()).float()).squeeze(-1)
    return values
