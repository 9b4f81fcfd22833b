"""How a run computes: float32 or bfloat16 by a model's width, torch's threads, chosen once a stage, and its memory."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from reflectrl.config import Recipe
from reflectrl.lm.adapters import check_layers
from reflectrl.lm.load import BUILTIN, read_config
from reflectrl.lm.section import ModelSection
from reflectrl.pipeline.folder import RunFolder

Precision = Literal["float32", "bfloat16"]

SMALL_WIDTH = 256
"""Hidden size below which bfloat16 gains nothing, and a second thread only adds cost."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer."""

    layers: int
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


def check_models(recipe: Recipe) -> tuple[dict[str, ModelSection], dict[str, Shape]]:
    """Return the sections of the trained players' models and their shapes, by role, read from their configurations.

    Raises:
        InvalidInput: no such model, one that does not go with its section (see ``read_config``), or adapters in layers
            that it does not have.
    """
    sections = {"policy": recipe.model}
    if recipe.reflector_model is not None and recipe.players.reflector.fine_tuned:
        sections["reflector"] = recipe.reflector_model
    shapes = {role: shape_of(section) for role, section in sections.items()}
    for role, section in sections.items():
        if section.lora is not None:
            check_layers(section.lora, shapes[role].layers, section.name)
    return sections, shapes


def prepare_compute(recipe: Recipe, run: RunFolder, stage: str, report: Callable[[str], None]) -> None:
    """Check the models, and set torch's threads.

    Small models compute in one thread, others in as many as torch has been given (``OMP_NUM_THREADS``). A resumed stage
    keeps its number of threads, since sums in other numbers of threads are rounded differently.

    Raises:
        InvalidInput: see ``check_models``.
    """
    sections, shapes = check_models(recipe)
    if any("bfloat16" in (section.dtype, section.compute) for section in sections.values()) and not has_bfloat16():
        report(
            "this machine has no instructions for bfloat16, which is slower than float32 here; where the recipe names "
            "it, set model.dtype=float32 and model.compute=auto"
        )
    small = all(shape.width < SMALL_WIDTH for shape in shapes.values())
    threads = run.threads(stage, 1 if small else torch.get_num_threads())
    torch.set_num_threads(min(threads, os.cpu_count() or threads))


def release_memory() -> None:
    """Return free memory of the C library's heap to the system, where it is glibc's.

    Batches of many lengths leave holes between the tensors of a training, which glibc keeps: an SFT of a 135 M model on
    long prompts held up to 15 GB without it.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
