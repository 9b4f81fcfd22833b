"""Exchange of numbers and episodes between the processes of a launch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import torch
from accelerate import Accelerator

from reflectrl.core import Trajectory
from reflectrl.core.jsonl import decode, encode


def numbers_of_ranks(accelerator: Accelerator, numbers: Sequence[float]) -> list[list[float]]:
    """Return the numbers of each process, without rounding."""
    if accelerator.num_processes == 1:  # a device may lack 64-bit floats
        return [list(numbers)]
    rows = torch.tensor([numbers], dtype=torch.float64, device=accelerator.device)
    gathered: list[list[float]] = accelerator.gather(rows).tolist()
    return gathered


def episodes_of_ranks(accelerator: Accelerator, episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the episodes of all processes, in the order of processes; if there are several, without pictures."""
    if accelerator.num_processes == 1:
        return list(episodes)
    text = json.dumps(encode([_without_pictures(each) for each in episodes])).encode()
    row = torch.tensor([list(text)], dtype=torch.uint8, device=accelerator.device)
    rows = accelerator.gather(accelerator.pad_across_processes(row, dim=1, pad_index=ord(" ")))
    texts = (bytes(each) for each in rows.tolist())
    return [decode(Trajectory, each, "an episode of another process") for text in texts for each in json.loads(text)]


def _without_pictures(trajectory: Trajectory) -> Trajectory:
    turns = [replace(turn, observation=replace(turn.observation, images=())) for turn in trajectory.turns]
    last = trajectory.last and replace(trajectory.last, images=())
    return replace(trajectory, turns=tuple(turns), last=last)
