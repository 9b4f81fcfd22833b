"""The processes of a `torchrun` or `accelerate launch`: which one this is, and waiting for one another.

The main process alone writes what all share: ledger, models, results, lines in the terminal. Others read it, so the run
folder must be on a file system that all of them see.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from reflectrl.core import InvalidInput, WorkFailed


def process_rank() -> int:
    """Return the rank of this process in a launch; 0 without one."""
    return int(os.environ.get("RANK", "0"))


def process_count() -> int:
    """Return the number of processes of a launch; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Return whether this process writes the files that all processes share."""
    return process_rank() == 0


def wait_for_all() -> None:
    """Wait until all processes of the launch are here, however long that takes.

    Raises:
        WorkFailed: one of them has ended.
    """
    if process_count() == 1:
        return
    import torch.distributed

    group = _patient_group()
    try:
        torch.distributed.barrier(group)
    except RuntimeError as error:
        raise WorkFailed(
            f"process {process_rank()} of {process_count()} ends, because another one has ended; its message says why."
        ) from error


def check_agreement(asked: str) -> None:
    """Check that all processes of the launch were asked for the same: a recipe and a run folder, as text.

    Raises:
        InvalidInput: some were asked for something else.
    """
    if process_count() == 1:
        return
    import torch

    own = torch.tensor(list(hashlib.sha256(asked.encode()).digest()))
    found = [torch.empty_like(own) for _ in range(process_count())]
    torch.distributed.all_gather(found, own, _patient_group())
    if others := [str(rank) for rank, each in enumerate(found) if not torch.equal(each, found[0])]:
        raise InvalidInput(
            f"processes {', '.join(others)} of {process_count()} have another recipe or run folder than process 0; "
            "start all with the same command, from the same folder, with the same files."
        )


@functools.cache
def _patient_group() -> Any:
    """Return a group of all processes that waits for hours: NCCL gives up after ten minutes."""
    import torch
    from accelerate import PartialState

    PartialState(cpu=not torch.cuda.is_available())
    return torch.distributed.new_group(backend="gloo", timeout=timedelta(days=365))


@contextmanager
def main_first() -> Iterator[None]:
    """Let the main process run the block before the others."""
    if not is_main_process():
        wait_for_all()
    yield
    if is_main_process():
        wait_for_all()
