"""Started by torchrun, on each rank: train, go on from the middle as if killed, write down what came out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny import gpt2
from tiny_rlft import config, run

from reflectrl.rollout.jsonl import encode
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


def main(folder: Path) -> None:
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
