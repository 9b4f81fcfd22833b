"""Adapters and quantisation: LoRA through peft, 8-bit and 4-bit bases through bitsandbytes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from reflectrl.core import InvalidInput, nearest
from reflectrl.core.text import first_line
from reflectrl.lm.section import LoraSection, ModelSection

if TYPE_CHECKING:  # imported only where there is an adapter, because the import takes seconds
    from peft import PeftModel


def quantization_config(section: ModelSection) -> BitsAndBytesConfig | None:
    """Return the ``quantization_config`` of ``from_pretrained``."""
    if section.quantization == "none":
        return None
    if section.quantization == "8bit":
        # it logs one line a layer and call about computing in float16
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        # the default threshold picks outlier columns depending on the rest of the batch: a prompt's probabilities would
        # differ between sampling and the update
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=getattr(torch, section.dtype)
    )


def prepare_quantized(model: PreTrainedModel) -> None:
    """Make the 4-bit layers of ``model`` compute the same way on every processor; raises as ``check_4bit`` does."""
    if not getattr(model, "is_loaded_in_4bit", False):
        return
    from bitsandbytes.nn import Linear4bit

    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Linear4bit)}
    for layer in layers.values():
        # where the processor has avx512_bf16, the first forward pass would change the layer to a layout for inference:
        # without gradients, in bfloat16, and for sides that are multiples of 32 and 64 only
        layer.support_avx512bf16_for_cpu = False
    check_4bit(model.name_or_path, layers)


@torch.no_grad()
def check_4bit(base: str, layers: Mapping[str, nn.Linear]) -> None:
    """Check that this machine can compute the layers in 4 bits, by one row through a layer of each shape.

    Raises:
        InvalidInput: a layer that cannot be computed in 4 bits on this machine.
    """
    by_shape = {(layer.out_features, layer.in_features): (name, layer) for name, layer in layers.items()}
    for name, layer in by_shape.values():
        training = layer.training
        try:
            layer.eval()(torch.zeros(1, layer.in_features, device=layer.weight.device))
        except (AssertionError, RuntimeError) as error:
            raise InvalidInput(
                f"the layer {name!r} of {base!r}, {layer.out_features} x {layer.in_features}, cannot be computed in 4 "
                f"bits on this machine ({error}); set model.quantization=8bit or none, or choose another base."
            ) from error
        layer.train(training)


def add_lora(model: PreTrainedModel, lora: LoraSection, token_ids: Sequence[int]) -> PeftModel:
    """Wrap ``model`` with new LoRA adapters; the embeddings of ``token_ids`` (added labels) are trained as well.

    Raises:
        InvalidInput: unknown target modules or layers, or an adapter on the lm_head.
    """
    from peft import LoraConfig, get_peft_model

    check_layers(lora, model.config.get_text_config().num_hidden_layers, model.name_or_path or "the model")
    output = model.get_output_embeddings()
    if token_ids and output.weight is not model.get_input_embeddings().weight and output.bias is not None:
        raise InvalidInput(
            "prompt.labels=added was given with model.lora, but the output matrix of this model has a bias, which "
            "adapters of single rows leave out; set prompt.labels to letters or numbers, or model.lora=null."
        )
    names = {module: name for name, module in model.named_modules()}
    head = names.get(model.get_output_embeddings(), "")
    linear = {name.rpartition(".")[2] for module, name in names.items() if isinstance(module, nn.Linear | Conv1D)}
    targets = lora.target_modules
    if lora.layers is not None and targets == "all-linear":  # with layers, peft wants names
        targets = sorted(linear - {head.rpartition(".")[2]})
    if not isinstance(targets, str) and any(head == target or head.endswith(f".{target}") for target in targets):
        raise InvalidInput(
            f"model.lora.target_modules={targets} puts an adapter on {head!r}, but the policy reads that layer's label "
            "rows directly and would ignore it: leave it out."
        )
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        layers_to_transform=lora.layer_numbers,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        trainable_token_indices=_token_indices(model, names, token_ids),
    )
    try:
        with _without_noise():
            return _sorted(get_peft_model(_prepare(model), config)).eval()  # the mode of a model that is loaded
    except ValueError as error:  # the message of peft names the missing modules
        why = str(error).removesuffix(".")
        raise InvalidInput(
            f"model.lora.target_modules={targets} cannot be adapted: {why}; {nearest(str(targets[0]), linear)}"
        ) from error


def check_layers(lora: LoraSection, layers: int, name: str) -> None:
    """Check that the model ``name``, which has this number of ``layers``, has the layers that ``lora`` adapts.

    Raises:
        InvalidInput: the model has fewer layers.
    """
    if lora.layer_numbers and lora.layer_numbers[-1] >= layers:
        raise InvalidInput(
            f"lora.layers={lora.layers} was given for {name}, which has {layers} layers; "
            f"expected the first and the last of those to adapt, from 0 to {layers - 1}."
        )


def _token_indices(
    model: PreTrainedModel, names: dict[nn.Module, str], token_ids: Sequence[int]
) -> dict[str, list[int]] | None:
    """Return the rows to train of the embedding, and of the lm_head if it has a matrix of its own."""
    if not token_ids:
        return None
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    layers = [embedding] if head.weight is embedding.weight else [embedding, head]
    return {names[layer]: list(token_ids) for layer in layers}


def _sorted(adapted: PeftModel) -> PeftModel:
    """Sort the names of the adapted modules: peft keeps them as a set, whose order differs between processes."""
    for config in adapted.peft_config.values():
        if not isinstance(config.target_modules, str):  # a downloaded adapter may have a pattern here
            config.target_modules = sorted(config.target_modules)
    return adapted


def load_lora(model: PreTrainedModel, folder: Path, *, trainable: bool) -> PeftModel:
    """Wrap ``model`` with the adapter saved in ``folder``, which ``check_adapter`` has checked.

    Raises:
        InvalidInput: the adapter belongs to another base.
    """
    from peft import PeftModel

    try:
        with _without_noise():
            warnings.filterwarnings("error", message="Found missing adapter keys")
            return _sorted(PeftModel.from_pretrained(_prepare(model), str(folder), is_trainable=trainable)).eval()
    except (UserWarning, RuntimeError, ValueError, TypeError, OSError, SafetensorError) as error:
        raise InvalidInput(
            f"the adapter in {str(folder)!r} does not fit the base {model.name_or_path!r} "
            f"({first_line(error)}); load it with the model section it was trained with."
        ) from error


def would_be_rounded_away(model: PeftModel, section: ModelSection) -> bool:
    """Return whether adapters that are merged lose what they learned, because the model computes in bfloat16.

    Weights that are numbers of bfloat16, as most models are published, stay the same when less than half of their last
    digit is added. Other weights are rounded with and without adapters, to different sides.
    """
    if "bfloat16" not in (section.dtype, section.compute):
        return False
    from peft.tuners.lora import LoraLayer

    weights = (module.get_base_layer().weight for module in model.modules() if isinstance(module, LoraLayer))
    return any(bool((weight == weight.bfloat16()).all()) for weight in weights)


def _prepare(model: PreTrainedModel) -> PreTrainedModel:
    """Freeze a quantised base and convert its small layers to float32; leave other bases as they are."""
    if getattr(model, "is_quantized", False):
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return model


@contextmanager
def _without_noise() -> Iterator[None]:
    """Silence a warning of peft, which reads a deprecated property of transformers at each wrapping."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".is_gradient_checkpointing.", category=FutureWarning)
        yield
