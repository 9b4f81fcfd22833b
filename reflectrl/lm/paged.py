"""Decoding on a GPU by transformers' continuous batching: pages of key-value states, and CUDA graphs of whole passes.

Tokens are those of ``decode``'s sampler: a logits processor leaves the manager no other choice, without waiting for the
GPU. On a CPU ``decode.write`` does the same in less time.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.continuous_batching import ContinuousBatchingManager, PagedAttentionCache
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)

from reflectrl.core.foreign import message_of
from reflectrl.core.garbage import living_objects_left_out
from reflectrl.core.profile import part
from reflectrl.lm.decode import Sampler, chosen
from reflectrl.lm.head import known_tokens, next_logits, trying
from reflectrl.lm.sequences import Tokens, padded, state_bytes

_log = logging.getLogger(__name__)
_PAGE_TOKENS = 64
_PASS_TOKENS = 512
"""Maximum number of tokens of a forward pass, which is also that of the texts side by side."""
_SIDE_BY_SIDE = 256
"""Number of texts for which there is room at once; others wait."""
_MEMORY = 0.25
"""Share of the free memory that pages may take, with as much again for passes over them; updates need the rest."""
_WIDTH_TOKENS = 256
"""Prompts and texts may get longer by so many tokens, rounded up, before more memory is reserved."""
_LENGTHS, _NEW = (40, 7, 21), 4
"""Numbers of tokens of the prompts with which a model is tried, and of the texts after them."""
_BELOW = 0.1
"""Maximum difference of the logits of a chosen and the most probable token, in standard deviations; texts that are
written with wrong states are off by more than one."""


class _Choices(ContinuousBatchingLogitsProcessor):
    """Leaves the manager the sampler's tokens; all is in fixed tensors, whose places a CUDA graph reads and writes."""

    supported_kwargs: dict[str, type] = {}  # noqa: RUF012 - as the base class has it
    ignored_kwargs = ()

    def __init__(self, temperature: float, count: int, limit: int, device: torch.device) -> None:
        self._temperature = temperature
        self._limit = limit
        self._lengths: list[int] = []
        self._draws = torch.zeros(count * limit + 1, dtype=torch.double, device=device)  # the last for padding
        self._logprobs = torch.zeros(count * limit + 1, device=device)

    def begin(self, rows: Sequence[Tokens], sampler: Sampler) -> None:
        """Sample with the draws of ``sampler`` for the texts after ``rows``."""
        self._lengths = [len(row) for row in rows]
        draws = [sampler.draw(row, number) for row in range(len(rows)) for number in range(self._limit)]
        self._draws[: len(draws)] = torch.tensor(draws, dtype=torch.double)

    def logprobs(self) -> list[list[float]]:
        """Return the log-probabilities with which tokens were chosen, by row and number in its text."""
        return [each.tolist() for each in self._logprobs[:-1].cpu().split(self._limit)]

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """Give the last place to rows of padding."""
        int32_tensor.fill_(len(self._draws) - 1)

    def prepare_tensor_args(self, requests_with_new_token: Any) -> Tensor:
        """Return the place of each row's draw: its text's number times the limit, and its token's number."""
        states = (each.state for each in requests_with_new_token)
        places = [
            int(state.request_id) * self._limit + state.position_offset - self._lengths[int(state.request_id)]
            for state in states
        ]
        return torch.tensor(places, dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """Return (N, V) scores: 0 for the token that was chosen, minus infinity for all others."""
        places = tensor_arg[: len(scores)].long()
        tokens, logprobs = chosen(scores, self._draws[places], self._temperature)
        self._logprobs[places] = logprobs
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)


class PagedWriter:
    """Continues texts with one model and its present weights, like ``decode.write``."""

    def __init__(self, model: PreTrainedModel, *, ends: Collection[int], limit: int) -> None:
        self._model = model
        self._ends = sorted(ends) or [-1]
        self._limit = limit
        self._managers: list[ContinuousBatchingManager] = []  # of the last call, if any
        self._choices: _Choices | None = None
        self._room: tuple[float, int, int] = (0.0, 0, 0)  # temperature, number of texts, tokens of each
        weakref.finalize(self, self._managers.clear)  # a manager that outlives Python's own modules ends with an error

    def forget(self) -> None:
        """Drop states and graphs; needed when the weights have changed."""
        self._managers.clear()
        self._room = (0.0, 0, 0)

    def write(self, rows: Sequence[Tokens], sampler: Sampler) -> list[list[int]]:
        """Return the continuation of each of some sequences, without the token that ends it."""
        if not rows:
            return []
        manager = self._managing(rows, sampler)
        if self._choices is not None:
            self._choices.begin(rows, sampler)
        with part("reflector: write"):
            self._run(manager, rows)
        results = [manager.get_result(timeout=1) for _ in rows]
        said = {int(each.request_id): each for each in results if each is not None and each.error is None}
        if len(said) < len(rows):
            failure = manager.background_thread_status.fatal_error
            raise RuntimeError(f"transformers' continuous batching failed: {failure}") from failure
        if self._choices is not None:
            for number, logprobs in zip(range(len(rows)), self._choices.logprobs(), strict=False):
                sampler.note(number, logprobs)
        texts = [said[number].generated_tokens for number in range(len(rows))]
        return [text[:-1] if text[-1] in self._ends else text for text in texts]

    def _run(self, manager: ContinuousBatchingManager, rows: Sequence[Tokens]) -> None:
        """Continue ``rows`` in the manager's thread, which then ends."""
        if self._model.device.type == "cuda":
            torch.cuda.synchronize()  # the thread has a stream of its own
        manager.start()
        with manager.pause():  # all at once, because what shares a pass decides the last bits of logits
            for number, row in enumerate(rows):
                manager.add_request([*row], str(number), self._limit, eos_token_id=self._ends)
        with living_objects_left_out():  # stop() collects garbage
            manager.stop(keep_for_next_session=True)  # once all texts are written
        manager.model.destroy_cached_continuous_batching_manager()  # kept here: its states are of these weights

    def _managing(self, rows: Sequence[Tokens], sampler: Sampler) -> ContinuousBatchingManager:
        """Return the manager of the last call, or a new one if it has not enough room."""
        width = -(-(max(map(len, rows)) + self._limit) // _WIDTH_TOKENS) * _WIDTH_TOKENS
        temperature, most, widest = self._room
        if self._managers and temperature == sampler.temperature and len(rows) <= most and width <= widest:
            return self._managers[0]
        self._managers.clear()
        count, width = max(len(rows), most), max(width, widest)
        self._room = sampler.temperature, count, width
        manager = _in_its_type(self._model).init_continuous_batching(
            GenerationConfig(max_new_tokens=self._limit, do_sample=False, eos_token_id=self._ends),
            ContinuousBatchingConfig(
                page_size=_PAGE_TOKENS,
                num_blocks=self._pages(min(count, _SIDE_BY_SIDE), width),
                max_batch_tokens=_PASS_TOKENS,
                auto_switch_to_flash=False,  # texts are scored with the model's own attention
                use_cuda_graph=self._model.device.type == "cuda" or None,
            ),
        )
        self._managers.append(manager)
        self._choices = None
        if sampler.temperature:
            self._choices = _Choices(sampler.temperature, count, self._limit, self._model.device)
            manager.logit_processor = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([self._choices]))
            manager.logit_processor.tensors_required = 1
        return manager

    def _pages(self, count: int, width: int) -> int:
        """Return the number of pages for so many texts at once, or for as many of them as there is memory for."""
        pages = width // _PAGE_TOKENS
        if self._model.device.type != "cuda":
            return count * pages
        free, _ = torch.cuda.mem_get_info(self._model.device)
        return pages * max(min(int(_MEMORY * free) // (width * state_bytes(self._model)), count), 1)


class _Cache(PagedAttentionCache):
    """Keeps states in one type; autocast gives keys and values in two."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store states, and return those to attend to."""
        found: tuple[Tensor, Tensor] = super().update(
            key_states.to(self.dtype), value_states.to(self.dtype), *args, **kwargs
        )
        return found


def _in_its_type(model: PreTrainedModel) -> Any:
    """Return ``model`` with the type in which it computes as its own, in which continuous batching keeps states."""

    def call(_: Any, *, cache: PagedAttentionCache, **inputs: Any) -> Any:
        cache.__class__ = _Cache
        return model(cache=cache, **inputs)

    view = copy(model)  # with the same weights
    changed = {"dtype": getattr(model, "autocast_dtype", model.dtype), "__call__": call}
    view.__class__ = type(type(model).__name__, (type(model),), changed)
    return view


def writes_in_pages(model: PreTrainedModel) -> bool:
    """Return whether continuous batching continues texts as the model's own ``forward`` does; log why not.

    Some texts are written with it once, and the result is kept on the model.
    """
    if not hasattr(model, "_writes_in_pages"):
        try:
            with trying(model):
                reason = _refusal(model)
        except Exception as error:  # noqa: BLE001 - an architecture may answer with an error of any kind
            reason = f"its architecture does not take it ({type(error).__name__}: {message_of(error)[:100]})"
        if reason is not None:
            _log.warning("%s writes without continuous batching: %s.", type(model).__name__, reason)
        model._writes_in_pages = reason is None
    return bool(model._writes_in_pages)


def _refusal(model: PreTrainedModel) -> str | None:
    """Return why greedy words differ from those of ``forward``, as a clause; ``None`` if they do not."""
    kernel = model.config.get_text_config()._attn_implementation  # transformers has no public name for it
    if kernel != "sdpa":
        return f"its attention kernel is {kernel}, not sdpa"
    tokens = known_tokens(model, max(_LENGTHS))
    rows = [tuple(tokens[(3 * at + length) % len(tokens)] for at in range(length)) for length in _LENGTHS]
    said = PagedWriter(model, ends=(), limit=_NEW).write(rows, Sampler([], 0.0))
    begun = [(*row, *text[:number]) for row, text in zip(rows, said, strict=True) for number in range(_NEW)]
    logits = next_logits(model, padded(begun, model.device)).float()
    written = torch.tensor([token for text in said for token in text], device=model.device)
    below = (logits.amax(-1) - logits.gather(1, written[:, None])[:, 0]) / logits.std(-1)
    return None if below.max() <= _BELOW else f"its words are {float(below.max()):.1g} standard deviations off"
