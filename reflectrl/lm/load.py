"""Loading and saving models, in folders that the ``Auto`` classes of transformers and peft load too."""

from __future__ import annotations

import json
import logging
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from huggingface_hub import is_offline_mode
from safetensors import safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.activations import GELUTanh, NewGELUActivation
from transformers.pytorch_utils import Conv1D
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, has_file
from transformers.utils import logging as transformers_logging

from reflectrl.core import InvalidInput
from reflectrl.core.errors import ReflectRLError
from reflectrl.core.files import in_one_move
from reflectrl.core.foreign import message_of
from reflectrl.core.text import shortened
from reflectrl.lm.adapters import (
    add_lora,
    load_lora,
    prepare_quantized,
    quantization_config,
    would_be_rounded_away,
)
from reflectrl.lm.chat import use_template
from reflectrl.lm.packages import local_name
from reflectrl.lm.pictures import Pictures, read_pictures
from reflectrl.lm.safe_files import ADAPTER_CONFIG, check_adapter, check_folder, check_no_adapter, checked
from reflectrl.lm.section import ModelSection
from reflectrl.lm.seeding import seeded
from reflectrl.lm.tokenizer import add_label_tokens, end_with_text, label_ids

if TYPE_CHECKING:
    from peft import PeftModel


def adopt_kernels(model: PreTrainedModel, section: ModelSection) -> None:
    """Make the trunk of ``model`` compute as ``section`` says.

    GPT-2's activation is computed by one kernel instead of eight, each of which keeps a tensor for the gradient.
    Compiled code is used for prompts and updates, not for passes over cached key-value states, whose shapes change with
    each step. Under autocast the output of the trunk keeps the type of the weights. The caller has to replace ``auto``
    before.

    Raises:
        InvalidInput: an architecture whose trunk has no name.
    """
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, GELUTanh())
    autocast = section.compute == "bfloat16"
    if not (autocast or section.compile):
        return
    trunk = model.base_model
    if trunk is model:
        raise InvalidInput(
            f"{type(model).__name__} has no trunk that transformers knows by name, so it can neither compute in "
            "bfloat16 nor be compiled; set model.compute=float32, model.dtype=float32 and model.compile=false."
        )
    plain = trunk.forward.__func__
    compiled = torch.compile(plain, dynamic=True) if section.compile else plain

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = compiled if kwargs.get("past_key_values") is None and not kwargs.get("use_cache") else plain
        with torch.autocast(self.device.type, torch.bfloat16, enabled=autocast):
            done = run(self, *args, **kwargs)
        done.last_hidden_state = done.last_hidden_state.to(self.dtype)
        return done

    trunk.forward = types.MethodType(forward, trunk)
    model.compiled = section.compile
    if autocast:
        model.autocast_dtype = torch.bfloat16


def round_frozen(model: PreTrainedModel | PeftModel, section: ModelSection) -> None:
    """Round the frozen matrices of the trunk once as autocast would at each pass: equal products in less time.

    Torch caches the rounded copies of trained weights only, and the time of a reflector's token is that of reading
    weights.
    """
    if section.compute != "bfloat16" or section.quantization != "none":
        return
    base: PreTrainedModel = model.get_base_model() if hasattr(model, "get_base_model") else model
    for module in base.base_model.modules():
        if isinstance(module, nn.Linear | Conv1D) and not any(weight.requires_grad for weight in module.parameters()):
            module.to(torch.bfloat16)


BUILTIN = "builtin/nano"
_TEXT_MODELS = AutoModelForCausalLM._model_mapping  # transformers has no public name for it
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model")
_LAYERS = ("n_layer", "n_layers", "num_hidden_layers", "num_layers")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model, which may read images, and its tokenizer."""

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def base(self) -> PreTrainedModel:
        """The transformers model, without adapters around it: the one whose ``forward`` is patched."""
        return self.model.get_base_model() if self.adapted else self.model

    @property
    def adapted(self) -> bool:
        """True if the model is a ``PeftModel``."""
        return hasattr(self.model, "get_base_model")

    @property
    def pictures(self) -> Pictures | None:
        """Converter of images to the model's input; ``None`` for a model that reads text only."""
        return getattr(self.base, "pictures", None)


def new_model(section: ModelSection, *, labels: Sequence[str], seed: int) -> LanguageModel:
    """Return a player before any training: the base of ``section``, with new LoRA adapters if the section has them.

    Args:
        section: the recipe's model; ``builtin/nano`` must have gone through ``make_base``.
        labels: all menu labels; those of the kind "added" are added to the tokenizer.
        seed: seed of new adapters and new embeddings.

    Raises:
        InvalidInput: the model cannot be loaded or does not fit the section.
    """
    _check_folder(local_name(section.name))
    _warn_of_code(section.name, section)
    processor, tokenizer = load_processor(section.name, section)
    token_ids = add_label_tokens(tokenizer, labels)
    with seeded(seed):
        model = _load_weights(section.name, section, tokenizer)
        if section.images:
            read_pictures(model, Pictures(processor, model.config, section.name))
        if section.lora is not None:
            model = add_lora(model, section.lora, token_ids)
    round_frozen(model, section)
    return LanguageModel(model, tokenizer)


def check_labels(section: ModelSection, labels: Sequence[str]) -> None:
    """Check that the tokenizer of a model can write all ``labels``; raises as ``label_ids`` and ``new_model`` do."""
    _, tokenizer = load_processor(section.name, section)
    add_label_tokens(tokenizer, labels)
    label_ids(tokenizer, labels)


def check_base(section: ModelSection) -> None:
    """Check all of a base model that can be known before its weights are loaded; raises as ``new_model`` does."""
    config, name = read_config(section.name, section), local_name(section.name)
    _check_folder(name)
    with _loading(section.name, "model"):
        if not any(has_file(name, file) for file in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)):
            raise OSError(f"it has no {SAFE_WEIGHTS_NAME}")
        with torch.device("meta"):  # the attention kernel may not go with the model, or not be installed
            _kind(section).from_config(
                config, attn_implementation=section.attn_implementation, trust_remote_code=section.trust_remote_code
            )
    load_processor(section.name, section)


def load_model(folder: Path, section: ModelSection, *, trainable: bool) -> LanguageModel:
    """Load a player that ``save_model`` wrote.

    Args:
        folder: folder it was saved to.
        section: the recipe's model: the base of an adapter, and how to load it.
        trainable: False freezes every weight, and merges an adapter into a base that is not quantised if rounding loses
            nothing of it; True lets the adapter be trained further.

    Raises:
        InvalidInput: the folder is missing, holds no such player, or has weights that are not finite.
    """
    if not folder.is_dir():
        raise InvalidInput(f"the model folder {str(folder)!r} does not exist; train this player, or fix the path.")
    _warn_of_code(str(folder), section)
    adapted = (folder / ADAPTER_CONFIG).is_file()
    (check_adapter if adapted else check_folder)(folder)
    base = _base_of(folder, section) if adapted else str(folder)
    _check_folder(local_name(base))
    if section.lora is not None and not adapted:
        raise InvalidInput(
            f"{str(folder)!r} holds no adapter ({ADAPTER_CONFIG}) but the recipe sets model.lora; expected a player "
            "trained with adapters: train it again, or set model.lora=null."
        )
    processor, tokenizer = load_processor(str(folder), section)
    with seeded(0):  # new rows of resized embeddings are drawn, and then overwritten by those in the folder
        model = _load_weights(base, section, tokenizer)
        if section.images:
            read_pictures(model, Pictures(processor, model.config, str(folder)))
        if adapted:
            with _loading(str(folder), "adapter"):
                model = load_lora(model, folder, trainable=trainable)
    if not trainable:
        if adapted and section.quantization == "none" and not would_be_rounded_away(model, section):
            model = model.merge_and_unload()
        model.requires_grad_(False)
    _check_finite(folder, model)
    round_frozen(model, section)
    return LanguageModel(model, tokenizer)


def _check_finite(folder: Path, model: PreTrainedModel | PeftModel) -> None:
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not weight.isfinite().all():
            raise InvalidInput(
                f"the model in {str(folder)!r} has weights that are not finite, in {name}; its training has failed or "
                "its file is damaged: train this player again."
            )


def without_weights(name: str, section: ModelSection) -> LanguageModel:
    """Return the tokenizer of the model ``name`` beside a model that computes nothing: a server has its weights."""
    _, tokenizer = load_processor(name, section)
    return LanguageModel(cast(Any, nn.Identity()), tokenizer)


def save_model(lm: LanguageModel, folder: Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write adapter or weights (safetensors) and tokenizer or processor to ``folder``, all or nothing.

    ``weights`` are those of a model that is sharded.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with in_one_move(folder) as fresh, no_progress_bars():
        if lm.adapted:
            # added labels are saved as separate rows, so the whole embedding need not be saved
            lm.model.save_pretrained(str(fresh), save_embedding_layers=False, state_dict=weights)
        else:
            lm.model.save_pretrained(fresh, state_dict=weights)
        (lm.pictures.processor if lm.pictures else lm.tokenizer).save_pretrained(fresh)


def _base_of(folder: Path, section: ModelSection) -> str:
    """Return the base under an adapter; a built-in base is found also after the whole run folder was moved."""
    if section.name != BUILTIN:
        return section.name
    from peft import PeftConfig

    with _loading(str(folder), "adapter"):
        recorded = Path(PeftConfig.from_pretrained(str(folder)).base_model_name_or_path)
    beside = folder.parent / recorded.name
    return str(beside if beside.is_dir() else recorded)


def _warn_of_code(name: str, section: ModelSection) -> None:
    """Warn before any code of the model runs; tokenizers may come with code too."""
    if section.trust_remote_code:
        _log.warning("model.trust_remote_code=true: running the Python code that comes with %r.", name)


def load_processor(name: str, section: ModelSection) -> tuple[Any, PreTrainedTokenizerBase]:
    """Return a model's processor and its tokenizer; the tokenizer of a text model is both.

    Raises:
        InvalidInput: none is there, it cannot be loaded, or it has no end-of-text token.
    """
    folder = Path(name)
    if folder.is_dir() and not any(match for kind in _TOKENIZER_FILES for match in folder.glob(kind)):
        raise InvalidInput(
            f"the folder {name!r} has no tokenizer; save it beside the model, with tokenizer.save_pretrained."
        )
    kind, what = (AutoProcessor, "processor") if section.images else (AutoTokenizer, "tokenizer")
    with _loading(name, what):
        processor = kind.from_pretrained(**checked(name), trust_remote_code=section.trust_remote_code)
    if section.images and not hasattr(processor, "image_processor"):
        raise InvalidInput(
            f"{name!r} has no processor of images that loads here, as model.images=true needs; set model.images=false "
            "for a model of text, or install what its processor needs (torchvision, for the Qwen2-VL family)."
        )
    tokenizer: PreTrainedTokenizerBase = processor.tokenizer if section.images else processor
    tokenizer.name_or_path = name
    use_template(tokenizer, section.chat)
    if processor is not tokenizer:
        processor.chat_template = tokenizer.chat_template
    if tokenizer.eos_token_id is None:
        raise InvalidInput(f"the tokenizer of {name!r} has no end-of-text token, so a reflection could not end.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    end_with_text(tokenizer)
    return processor, tokenizer


def read_config(name: str, section: ModelSection) -> PreTrainedConfig:
    """Return the configuration of the model ``name``.

    Raises:
        InvalidInput: it cannot be loaded, or the model reads fewer tokens than ``max_length``, or no images where the
            section wants them, or images where it does not.
    """
    with _loading(name, "model"):
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            **checked(name), trust_remote_code=section.trust_remote_code
        )
    of_images, of_text = (type(config) in each for each in (AutoModelForImageTextToText._model_mapping, _TEXT_MODELS))
    if section.images and not of_images:
        raise InvalidInput(
            f"images=true was given for {name!r} ({config.model_type}), which reads text alone; set images=false, or "
            "name an image-text model."
        )
    if of_images and not of_text and not section.images:
        raise InvalidInput(f"{name!r} ({config.model_type}) is an image-text model; set its images=true.")
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is not None and context < section.max_length:
        raise InvalidInput(
            f"max_length={section.max_length} was given for {name!r}, which reads {context} tokens; set it to "
            f"{context}."
        )
    return config


def _kind(section: ModelSection) -> Any:
    return AutoModelForImageTextToText if section.images else AutoModelForCausalLM


def _load_weights(name: str, section: ModelSection, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    with _loading(name, "model"):
        config = read_config(name, section)
        model, report = _kind(section).from_pretrained(
            **checked(name, weights=True),
            config=config,
            dtype=getattr(torch, section.dtype),
            attn_implementation=section.attn_implementation,
            quantization_config=quantization_config(section),
            device_map={"": f"cuda:{os.environ.get('LOCAL_RANK', '0')}"} if torch.cuda.is_available() else None,
            trust_remote_code=section.trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
    model.name_or_path = model.config.name_or_path = name  # not a folder of this machine's cache
    missing = sorted(report["missing_keys"])
    if missing:
        raise InvalidInput(
            f"{name!r} lacks {len(missing)} weights of its own architecture, such as {missing[0]!r}; "
            "expected a complete causal language model: save or download it again."
        )
    if len(tokenizer) > model.get_input_embeddings().weight.size(0):
        model.resize_token_embeddings(len(tokenizer))
    prepare_quantized(model)
    # nothing of its own for generating, which players ignore, and which transformers refuses to save if it is unusual
    ends = {name: getattr(model.generation_config, name) for name in ("bos_token_id", "eos_token_id")}
    model.generation_config = GenerationConfig(**ends, pad_token_id=tokenizer.pad_token_id)
    adopt_kernels(model, section)
    return model


def _check_folder(name: str) -> None:
    """Refuse a folder for which the message of ``from_pretrained`` would not help."""
    folder = Path(name)
    if name == BUILTIN:
        raise InvalidInput(f"{BUILTIN!r} has no weights before reflectrl.lm.builtin.make_base has written them.")
    if not folder.is_dir():
        return
    check_folder(folder)
    check_no_adapter(folder, name)
    if not (folder / "config.json").is_file():
        raise InvalidInput(f"the folder {name!r} has no config.json; expected a transformers model folder.")
    if not any(folder.glob("*.safetensors")):
        raise _no_weights(f"the folder {name!r}")
    with _loading(name, "model"):
        _check_layers(folder)


def _check_layers(folder: Path) -> None:
    """Refuse a configuration with more layers than weights: all layers would be created before one is found missing."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            tensors += len(file.keys())
    for part in (config, config.get("text_config") or {}):
        for key in _LAYERS:
            if isinstance(part.get(key), int) and part[key] > tensors:
                raise InvalidInput(
                    f"{str(folder)!r} has {tensors} weights but config.json says {key}={part[key]}; expected a "
                    "complete causal language model: save or download it again."
                )


@contextmanager
def _loading(name: str, what: str) -> Iterator[None]:
    try:
        with no_progress_bars():
            yield
    except ReflectRLError:
        raise
    except Exception as error:  # noqa: BLE001 - damaged files raise errors of any kind, even plain ones
        if "trust_remote_code" in message_of(error):
            raise InvalidInput(
                f"the {what} {name!r} comes with Python code of its own, which was not run; read that code, then set "
                "model.trust_remote_code=true, or choose another model."
            ) from error
        if "attn_implementation=" in message_of(error) or "FlashAttention" in message_of(error):
            others = "sdpa or eager" if "FlashAttention" in message_of(error) else "eager"
            raise InvalidInput(
                f"the {what} {name!r} does not go with this model.attn_implementation: "
                f"{_first_line(error).split('. ')[0]}; set model.attn_implementation to {others}."
            ) from error
        if "use_safetensors" in message_of(error):
            raise _no_weights(repr(name)) from error
        is_folder, fetches = Path(name).is_dir(), not is_offline_mode()
        hub = "the Hugging Face hub and its cache" if fetches else "the hub's cache alone, as HF_HUB_OFFLINE is set"
        where = "that folder" if is_folder else f"a folder, then {hub}"
        fetch = "" if is_folder or fetches else "unset HF_HUB_OFFLINE to fetch it, or "
        cure = f"{fetch}set model.name to {BUILTIN!r}, or to the name or folder of a causal language model"
        raise InvalidInput(
            f"the {what} {name!r} cannot be loaded; tried {where}: {_first_line(error)}; "
            f"{'train that player again' if what == 'adapter' else cure}."
        ) from error


def _no_weights(where: str) -> InvalidInput:
    return InvalidInput(
        f"{where} has no *.safetensors weights (pickled .bin files can run code and are not read); convert it with "
        "model.save_pretrained."
    )


def _first_line(error: BaseException) -> str:
    """Return the first line of ``error``, with the reason that follows a colon."""
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()] or [type(error).__name__]
    line = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return shortened(line.rstrip("."), 400)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hide the bars that transformers draws for local files; downloads still show theirs."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
