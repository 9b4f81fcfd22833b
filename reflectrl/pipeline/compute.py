"""How a run computes: torch's threads, chosen once a stage, and its memory."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

import torch

from reflectrl.config import Recipe
from reflectrl.lm.adapters import check_layers
from reflectrl.lm.precision import SMALL_WIDTH, Shape, has_bfloat16, shape_of
from reflectrl.lm.section import ModelSection
from reflectrl.pipeline.folder import RunFolder


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
