"""Choice between float32 and bfloat16 by a model's width and the device's instructions."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from reflectrl.lm.load import BUILTIN, read_config
from reflectrl.lm.section import ModelSection

Precision = Literal["float32", "bfloat16"]

SMALL_WIDTH = 256
"""Hidden size below which bfloat16 gains nothing, and a second thread only adds cost."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer."""

    layers: int
    """Number of blocks."""
    width: int
    """Hidden size."""


def shape_of(section: ModelSection, saved: Path | None = None) -> Shape:
    """Return the shape of a model whose weights need not be there yet, or of one that was ``saved`` with all weights.

    Raises:
        InvalidInput: as ``read_config`` does.
    """
    if section.name == BUILTIN:
        return Shape(section.builtin.layers, section.builtin.width)
    config = read_config(section.name if saved is None else str(saved), section).get_text_config()
    return Shape(config.num_hidden_layers, config.hidden_size)


def with_precision(section: ModelSection, saved: Path | None = None) -> ModelSection:
    """Return a section that names the precision in which its model computes; its base need not be there if ``saved``.

    ``compute: auto`` is bfloat16 for a model at least ``SMALL_WIDTH`` wide where the device has instructions for it,
    and otherwise float32; weights that are stored in bfloat16, or quantised, decide for themselves.
    """
    if section.compute != "auto":
        return section
    if section.dtype == "bfloat16" or section.quantization != "none":
        chosen: Precision = section.dtype
    else:
        chosen = "bfloat16" if shape_of(section, saved).width >= SMALL_WIDTH and has_bfloat16() else "float32"
    return section.model_copy(update={"compute": chosen})


def has_bfloat16() -> bool:
    """Return whether the device that models use has instructions for bfloat16; torch emulates them elsewhere."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if platform.machine() in ("x86_64", "AMD64"):
        return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
