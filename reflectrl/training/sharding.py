"""Weights that are shared out to the processes (FSDP2, by ``accelerate``): each process holds a part of every tensor.

They are whole inside of ``gathered`` alone, where no pass waits for another process, so that each may make as many as
its episodes need. Outside of it parameters are ``DTensor``s, which may be copied, averaged and set part by part; what
is written to a file is whole, as one process writes it. All processes have to call each of these functions; weights
that are not sharded are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import parse_flag_from_env
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from reflectrl.core import InvalidInput
from reflectrl.lm.load import LanguageModel


def check_launch() -> None:
    """Check what the launch asks of ``accelerate``.

    Raises:
        InvalidInput: a way to shard weights that is not supported.
    """
    if parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        raise InvalidInput(
            "DeepSpeed was asked for, which counts forward passes, but each process makes as many as its episodes "
            "need; shard the weights by FSDP instead, as in recipes/accelerate/fsdp2.yaml."
        )
    if parse_flag_from_env("ACCELERATE_USE_FSDP") and parse_flag_from_env("FSDP_CPU_RAM_EFFICIENT_LOADING"):
        raise InvalidInput(
            "FSDP was asked for with fsdp_cpu_ram_efficient_loading, by which only one process has weights before "
            "training; set it to false, as in recipes/accelerate/fsdp2.yaml."
        )


def check_sharding(accelerator: Accelerator, lm: LanguageModel) -> None:
    """Check that ``accelerate`` shares out a model if the launch asks for it.

    Raises:
        InvalidInput: it cannot, or would not.
    """
    if parse_flag_from_env("ACCELERATE_USE_FSDP") and not accelerator.is_fsdp2:
        raise InvalidInput(
            "FSDP was asked for, but accelerate shards nothing here: it needs several processes with a GPU each and "
            "fsdp_version: 2, as in recipes/accelerate/fsdp2.yaml; start with torchrun for whole weights."
        )
    if accelerator.is_fsdp2 and getattr(lm.base, "is_quantized", False):
        raise InvalidInput(
            "FSDP was asked for with a quantized base (model.quantization), whose layers cannot be sharded; start with "
            "torchrun, which keeps the small base whole in each process, or leave model.quantization out."
        )


def is_sharded(model: nn.Module) -> bool:
    """Return whether the weights of ``model`` are shared out."""
    return any(isinstance(weight, DTensor) for weight in model.parameters())


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Give each process whole weights inside the block, for passes of its own; a change of a weight is lost there."""
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.set_reshard_after_backward(False, recurse=False)
    for unit in units:
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()
            unit.set_reshard_after_forward(True, recurse=False)
            unit.set_reshard_after_backward(True, recurse=False)


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor with the parts of all processes."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_of(tensor: Tensor, weight: Tensor) -> Tensor:
    """Return the part of a whole tensor that this process holds of ``weight``."""
    if isinstance(weight, DTensor) and not isinstance(tensor, DTensor):
        placed = tensor.to(weight.device, weight.dtype)
        return distribute_tensor(placed, weight.device_mesh, weight.placements, src_data_rank=None)
    return tensor


def whole_weights(model: nn.Module) -> dict[str, Tensor] | None:
    """Return all weights of a sharded model, on the CPU, for ``save_pretrained``; ``None`` for another model."""
    if not is_sharded(model):
        return None
    gathered_once: dict[int, Tensor] = {}
    found = dict(model.state_dict())
    for name, weight in model.named_parameters(remove_duplicate=False):
        if id(weight) not in gathered_once:
            gathered_once[id(weight)] = whole(weight.detach()).cpu()
        found[name] = gathered_once[id(weight)]  # tied weights stay one tensor
    return found


@contextmanager
def taking_whole_weights(model: nn.Module) -> Iterator[None]:
    """Let ``model.load_state_dict`` take whole weights inside the block."""

    def share_out(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        for name, weight in model.named_parameters(remove_duplicate=False):
            if isinstance(state.get(f"{prefix}{name}"), Tensor):
                state[f"{prefix}{name}"] = part_of(state[f"{prefix}{name}"], weight)

    hook = model.register_load_state_dict_pre_hook(share_out)
    try:
        yield
    finally:
        hook.remove()


def save_whole(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Save tensors as a file, which the main process writes."""
    found = {name: whole(tensor) for name, tensor in tensors.items()}
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        save_file(found, path)
