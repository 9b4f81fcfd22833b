"""Choice between float32 and bfloat16, by the time that a block of the model's size takes on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from reflectrl.config.model import ModelSection
from reflectrl.engine.seeding import seeded
from reflectrl.models.load import BUILTIN, read_config

Precision = Literal["float32", "bfloat16"]

SMALL_WIDTH = 256
"""Hidden size below which bfloat16 gains nothing, and a second thread only adds cost."""
MARGIN = 1.2
"""Minimum speed of bfloat16 relative to float32 for it to be chosen."""
_TOKENS = 128


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer."""

    layers: int
    """Number of blocks."""
    width: int
    """Hidden size."""
    inner: int
    """Width of the feed-forward layer."""


def shape_of(section: ModelSection) -> Shape:
    """Return the shape of a model whose weights need not be there yet; raises as ``read_config`` does."""
    if section.name == BUILTIN:
        return Shape(section.builtin.layers, section.builtin.width, 4 * section.builtin.width)
    config = read_config(section.name, section).get_text_config()
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return Shape(config.num_hidden_layers, config.hidden_size, inner)


def given_precision(section: ModelSection) -> Precision | None:
    """Return the precision that the section implies; ``None`` if its model is large enough to have a choice."""
    if section.compute != "auto":
        return section.compute
    if section.dtype == "bfloat16" or section.quantization != "none":
        return section.dtype
    return "float32" if shape_of(section).width < SMALL_WIDTH else None


def has_bfloat16() -> bool:
    """Return whether the device that models use has instructions for bfloat16; torch emulates them elsewhere."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def bfloat16_speedup(shape: Shape, seconds: float = 1.0) -> float:
    """Return how many times as fast as float32 a block is in bfloat16, forward and backward, on the device models use.

    A CPU is timed in one thread, by processor time, which other processes do not change. Takes a second or two.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    heads = next(heads for heads in range(max(1, shape.width // 64), 0, -1) if shape.width % heads == 0)
    with seeded(0):
        block = nn.TransformerEncoderLayer(
            shape.width, heads, shape.inner, dropout=0.0, batch_first=True, device=device
        )
        rows = torch.randn(1 if device.type == "cpu" else 16, _TOKENS, shape.width, device=device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _seconds(block, rows, autocast=False)
        _seconds(block, rows, autocast=True)
        float32, bfloat16 = list[float](), list[float]()
        until = time.monotonic() + seconds
        while not float32 or time.monotonic() < until:
            float32.append(_seconds(block, rows, autocast=False))
            bfloat16.append(_seconds(block, rows, autocast=True))
    finally:
        torch.set_num_threads(threads)
    return min(float32) / min(bfloat16)


def _seconds(block: nn.Module, rows: torch.Tensor, *, autocast: bool) -> float:
    clock = time.process_time
    if rows.is_cuda:
        torch.cuda.synchronize()
        clock = time.perf_counter
    began = clock()
    with torch.autocast(rows.device.type, torch.bfloat16, enabled=autocast):
        out = block(rows)
    (out * rows).sum().backward()
    if rows.is_cuda:
        torch.cuda.synchronize()
    return clock() - began
