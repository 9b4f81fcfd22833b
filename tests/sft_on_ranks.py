"""Supervised fine-tuning that a test runs in several processes; each writes what it has found to files of its rank."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accelerate import PartialState
from cpu_fsdp import allow, ask
from safetensors.torch import save_file
from tiny_models import LABELS, policy_row, reflector_row
from tiny_sft import fine_tune
from torch.distributed.tensor import DTensor

from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import encode
from reflectrl.core.stop import Stop
from reflectrl.lm.load import LanguageModel, new_model
from reflectrl.lm.section import LoraSection, ModelSection
from reflectrl.training.checkpoints import last_checkpoint
from reflectrl.training.sharding import whole

ROWS = {
    "reflector": [
        replace(reflector_row(f"|T{' ' * (i % 4)}P|", f" Mistake. Taxi at row {i % 5}."), task=str(i))
        for i in range(48)
    ],
    "policy": [replace(policy_row(f"|T{' ' * (i % 4)}P|", LABELS[i % 4]), task=str(i)) for i in range(48)],
}
CHECKED: dict[str, Any] = {"steps": 6, "save_every": 3, "batch_size": 8, "held_out": 0.5, "check_every": 2}


def tuned(base: ModelSection, folder: Path, name: str, player: Any, stop: Stop | None = None) -> LanguageModel:
    """Fine-tune and record weights and checks; stop after the fourth step of one process, if ``stop`` is given."""
    rank, lm, checks = PartialState(cpu=True).process_index, new_model(base, labels=LABELS, seed=0), {}

    def on_step(step: int, steps: int, loss: float) -> None:  # noqa: ARG001 - as train_sft calls it
        if stop is not None and step == 4:
            stop.signal = 15

    done = fine_tune(
        lm,
        ROWS[player],
        folder / f"{name}-{player}",
        player,
        on_check=checks.update,
        on_step=on_step,
        stop=stop,
        **CHECKED,
    )
    weights = {key: whole(weight.detach()).clone() for key, weight in lm.model.named_parameters()}
    save_file(weights, folder / f"{name}-{player}_{rank}.safetensors")
    found = [done.steps, done.last_loss, encode(checks)]
    (folder / f"{name}-{player}_{rank}.json").write_text(json.dumps(found))
    return lm


def share(base: ModelSection, folder: Path) -> None:
    """Fine-tune both players with whole weights and with sharded ones, the latter also with a stop of one process."""
    allow()
    rank = PartialState(cpu=True).process_index
    for player in ROWS:
        tuned(base, folder, "whole", player)
    ask()
    refused = {
        "a single player": (base, "both", {}),
        "a quantized base": (base.model_copy(update={"quantization": "8bit", "lora": LoraSection(r=4)}), "policy", {}),
        "batch_size=5 was given with 2 processes": (base, "policy", {"batch_size": 5, "micro_batch_size": 5}),
    }
    for fact, (section, player, given) in refused.items():
        with pytest.raises(InvalidInput, match=fact):
            fine_tune(new_model(section, labels=LABELS, seed=0), ROWS["policy"], folder / "refused", player, **given)
    for player in ROWS:
        lm = tuned(base, folder, "sharded", player)
        assert all(isinstance(weight, DTensor) for weight in lm.model.parameters())
    stop = Stop()
    (folder / "resumed-policy").mkdir(exist_ok=True)
    tuned(base, folder, "resumed", "policy", stop if rank else Stop())
    [checkpoints] = [path for path in (folder / "resumed-policy").iterdir() if path.is_dir()]
    found = last_checkpoint(checkpoints)
    assert found is not None
    assert found.name == "checkpoint-4"
    tuned(base, folder, "resumed", "policy")
