"""Supervised fine-tuning of a tiny model for a few steps, for tests of training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny_models import LABELS, MAX_LENGTH

from reflectrl.config.schema import SFTPlayerSection, SFTPolicySection
from reflectrl.data_gen.rows import Row
from reflectrl.lm.load import LanguageModel
from reflectrl.training.sft import SFTSummary, train_sft
from reflectrl.training.sft_examples import Player

STEPS = {"steps": 4, "batch_size": 4, "micro_batch_size": 4, "learning_rate": 0.01, "max_grad_norm": 1.0}


def fine_tune(lm: LanguageModel, rows: Sequence[Row], folder: Path, player: Player, **given: Any) -> SFTSummary:
    """Train with ``given`` arguments of ``train_sft`` or settings of its section."""
    options = {
        "labels": LABELS,
        "max_length": MAX_LENGTH,
        "max_new_tokens": {"reflector": 8, "policy": 8},
        "drop_long_rows": False,
        "seed": 3,
    }
    options |= {"on_step": None, "save_every": 100, "stop": None, "failures": None, "on_check": None, "unchecked": ()}
    options |= {name: given.pop(name) for name in list(given) if name in options}
    section = SFTPlayerSection if player == "reflector" else SFTPolicySection
    settings = section.model_validate({**STEPS, **given})
    return train_sft(lm, rows, player=player, section=settings, output_dir=folder, **options)
