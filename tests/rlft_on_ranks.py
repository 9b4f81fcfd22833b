"""Trainings that a test starts in several processes; each leaves its results in files named after its rank."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from interruptions import end_at
from safetensors.torch import save_file
from tiny import gpt2
from tiny_rlft import config, run

from reflectrl.config.rlft import Stage
from reflectrl.core.jsonl import encode
from reflectrl.core.stop import gentle_stops
from reflectrl.training.checkpoints import last_checkpoint

OPTIONS = {
    "stages": [Stage("main", 4, env={"size": 6}, replay_threshold=-100.0)],
    "replay_size": 1000,
    "replay_episodes": 0,
    "micro_batch_tokens": 100,
    "optim": "sgd",
    "learning_rate": 0.1,
    "weight_decay": 0.0,
    "max_grad_norm": 1e9,
    "baseline": "value",
    "save_every": 1,
}


LONG = {
    **OPTIONS,
    "stages": [Stage("main", 8, env={"size": 6})],
    "replay_size": 6,
    "replay_episodes": 2,
    "learning_rate": 0.01,
    "save_every": 2,
    "save_total_limit": 2,
}


def train(folder: Path) -> None:
    """Train, and go on from the middle as if killed."""
    rank = config(folder, **OPTIONS).process_index
    straight = run(folder / "run", gpt2(spread=0.1), **OPTIONS).train()
    again = run(folder / "run", gpt2(spread=0.1), **OPTIONS).train(folder / "run" / "checkpoint-2")
    save_file(straight.weights, folder / f"straight_{rank}.safetensors")
    save_file(again.weights, folder / f"again_{rank}.safetensors")
    told = {
        "iterations": encode(straight.iterations),
        "resumed": encode(again.iterations),
        "episodes": encode(tuple(straight.trainer.replay)),
    }
    (folder / f"told_{rank}.json").write_text(json.dumps(told))


def die(folder: Path, name: str, rank: int, file: str, number: int) -> None:
    """Train; the rank ``rank`` gets a signal when it writes ``file`` for the second time."""
    if config(folder, **LONG).process_index == rank:
        end_at(file, 2 if number == signal.SIGTERM else 1, number)
    with gentle_stops() as stop:
        run(folder / name, gpt2(spread=0.1), stop=stop, **LONG).train()


def inherit(folder: Path, *names: str) -> None:
    """Train undisturbed, and go on with the trainings called ``names``."""
    rank = config(folder, **LONG).process_index
    for name in ("undisturbed", *names):
        done = run(folder / name, gpt2(spread=0.1), **LONG).train(last_checkpoint(folder / name))
        save_file(done.weights, folder / f"{name}_{rank}.safetensors")
        (folder / f"{name}_{rank}.json").write_text(json.dumps(encode(done.iterations)))
