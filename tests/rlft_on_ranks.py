"""Started by torchrun, on each rank, with a folder and what to do there.

``train``: train, go on from the middle as if killed, write down what came out.
``die NAME``: train until somebody ends it. ``inherit NAME...``: go on with these, and train undisturbed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny import gpt2
from tiny_rlft import config, run

from reflectrl.core.jsonl import encode
from reflectrl.core.stop import gentle_stops
from reflectrl.training.checkpoints import last_checkpoint
from reflectrl.training.curriculum import Stage

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
    "stages": [Stage("main", 40, env={"size": 6})],
    "replay_size": 6,
    "replay_episodes": 2,
    "learning_rate": 0.01,
    "save_every": 2,
    "save_total_limit": 2,
}


def train(folder: Path) -> None:
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


def die(folder: Path, name: str) -> None:
    rank = config(folder, **LONG).process_index
    (folder / f"{name}_{rank}.pid").write_text(str(os.getpid()))
    with gentle_stops() as stop:
        run(folder / name, gpt2(spread=0.1), stop=stop, **LONG).train()


def inherit(folder: Path, *names: str) -> None:
    rank = config(folder, **LONG).process_index
    for name in ("undisturbed", *names):
        done = run(folder / name, gpt2(spread=0.1), **LONG).train(last_checkpoint(folder / name))
        save_file(done.weights, folder / f"{name}_{rank}.safetensors")
        (folder / f"{name}_{rank}.json").write_text(json.dumps(encode(done.iterations)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"train": train, "die": die, "inherit": inherit}[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
