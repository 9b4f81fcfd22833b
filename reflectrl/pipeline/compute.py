"""How a run computes: each role's precision, chosen once a run; torch's threads, once a stage; its memory."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from reflectrl.config import Recipe
from reflectrl.config.model import ModelSection
from reflectrl.core.files import write_text
from reflectrl.core.jsonl import decode, encode, read_json
from reflectrl.core.layout import COMPUTE
from reflectrl.models.adapters import check_layers
from reflectrl.models.precision import (
    MARGIN,
    SMALL_WIDTH,
    Precision,
    Shape,
    bfloat16_speedup,
    given_precision,
    has_bfloat16,
    shape_of,
)
from reflectrl.pipeline.folder import RunFolder, is_main_process


@dataclass(frozen=True)
class ChosenPrecision:
    """Precision of one role's model, where the recipe leaves it open."""

    compute: Precision
    speedup: float | None
    """Speed of a block in bfloat16 relative to float32; ``None`` where it was not measured."""


def decided(section: ModelSection, run: RunFolder, role: str) -> ModelSection:
    """Return ``section`` with this run's precision for ``role``, which is chosen now if no stage has begun.

    Raises:
        InvalidInput: the model's configuration cannot be loaded, or the record of the choice was changed.

    """
    if section.compute != "auto":
        return section
    chosen = _recorded(run).get(role) or _decide(section)
    return section.model_copy(update={"compute": chosen.compute})


def _recorded(run: RunFolder) -> dict[str, ChosenPrecision]:
    path = run.recorded(COMPUTE)
    expected = "the precision that was chosen for each model"
    return decode(dict[str, ChosenPrecision], read_json(path, expected), str(path)) if path.exists() else {}


def _decide(section: ModelSection) -> ChosenPrecision:
    precision = given_precision(section)
    if precision is not None:
        return ChosenPrecision(precision, None)
    speedup = round(bfloat16_speedup(shape_of(section)), 2)
    return ChosenPrecision("bfloat16" if speedup >= MARGIN else "float32", speedup)


def check_models(recipe: Recipe) -> tuple[dict[str, ModelSection], dict[str, Shape]]:
    """Return the sections of the trained players' models and their shapes, by role, read from their configurations.

    Raises:
        InvalidInput: no such model, one that does not go with its section (see ``read_config``), or adapters in layers
            that it does not have.

    """
    sections = {"policy": recipe.model}
    if recipe.reflector_model is not None and recipe.players.reflector.player == "local":
        sections["reflector"] = recipe.reflector_model
    shapes = {role: shape_of(section) for role, section in sections.items()}
    for role, section in sections.items():
        if section.lora is not None:
            check_layers(section.lora, shapes[role].layers, section.name)
    return sections, shapes


def prepare_compute(recipe: Recipe, run: RunFolder, stage: str, report: Callable[[str], None]) -> None:
    """Check the models, record the precisions that the recipe leaves open, and set torch's threads.

    Small models compute in one thread, others in as many as torch has been given (``OMP_NUM_THREADS``). A resumed stage
    keeps its number of threads, since sums in other numbers of threads are rounded differently.

    Raises:
        InvalidInput: see ``decided`` and ``check_models``.

    """
    sections, shapes = check_models(recipe)
    _record({role: section for role, section in sections.items() if section.compute == "auto"}, run, report)
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


def _record(sections: Mapping[str, ModelSection], run: RunFolder, report: Callable[[str], None]) -> None:
    while sections and not is_main_process() and not (run / COMPUTE).exists():  # one process decides for all
        time.sleep(0.1)
    known = _recorded(run)
    new = {role: _decide(section) for role, section in sections.items() if role not in known}
    if not new:
        return
    write_text(run / COMPUTE, json.dumps(encode({**known, **new}), indent=1, sort_keys=True) + "\n")
    for role, chosen in new.items():
        if chosen.speedup is not None:
            report(f"{role} in {chosen.compute}: bfloat16 is {chosen.speedup:g} times as fast here")
