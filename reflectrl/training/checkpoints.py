"""Checkpoints of safetensors and JSON: atomic, exact to resume from, and without pickle.

checkpoint-12/  model.safetensors or adapter_model.safetensors, config, tokenizer: an ordinary model folder
                optimizer.safetensors, optimizer.json (with the schedule), and the state of each kind of training
                process_0.safetensors, process_0.json, ...: states of each process's random generators
                checkpoint.json: number of processes that wrote it, and size and digest of each file
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from reflectrl.config.training import NOVELTY
from reflectrl.core import InvalidInput, Trajectory, WorkFailed
from reflectrl.core.files import fresh_place, in_one_move, open_regular
from reflectrl.core.jsonl import decode, encode, read_json
from reflectrl.core.text import first_line
from reflectrl.lm.load import no_progress_bars
from reflectrl.lm.safe_files import check_file
from reflectrl.rollout.record import HOLDERS, with_images, without_images
from reflectrl.training.sharding import save_whole, taking_whole_weights, whole_weights

if TYPE_CHECKING:  # peft takes a second to import
    from peft import PeftModel

    from reflectrl.training.rlft import ReflectRLTrainer


MANIFEST = "checkpoint.json"
FORMAT = "reflectrl-checkpoint"
VERSION = 1

_NAME = re.compile(r"checkpoint-(\d+)")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _File:
    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class _Manifest:
    format: str
    version: int
    processes: int
    files: tuple[_File, ...]


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest intact checkpoint in ``folder``, if any; log a warning about newer ones that are damaged.

    Raises:
        InvalidInput: there are checkpoints, but all are damaged.
    """
    faults: list[str] = []
    for path in reversed(_checkpoints(folder).values()):
        if fault := _fault(path):
            faults.append(fault)
            continue
        for fault in faults:
            _log.warning("passing over a checkpoint that is not whole: %s; continuing from %s.", fault, path)
        return path
    if faults:
        raise InvalidInput(
            f"no checkpoint in {folder} is whole: {'; '.join(faults)}. Delete that folder to start this stage again."
        )
    return None


def checkpoint_step(checkpoint: Path) -> int:
    """Return the number of optimizer steps after which a checkpoint was written."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def _checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in ``folder`` by step, oldest first."""
    found = {int(match[1]): path for path in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))}
    return dict(sorted(found.items()))


def _fault(folder: Path) -> str | None:
    """Return a description of the first fault of a checkpoint; ``None`` if it is intact."""
    try:
        for file in _read_manifest(folder).files:
            path = folder / file.name
            if path.stat().st_size != file.size:
                return f"{path} has {path.stat().st_size} bytes instead of {file.size}"
            check_file(path, folder)
            if _digest(path) != file.sha256:
                return f"{path} does not hold the bytes that were written"
    except OSError as error:
        return f"a file of {folder} cannot be read ({error})"
    except InvalidInput as error:
        return str(error).rstrip(".")
    return None


def _read_manifest(folder: Path) -> _Manifest:
    path = folder / MANIFEST
    if not path.exists():
        raise InvalidInput(f"{folder} holds no {MANIFEST}, so it is not a checkpoint of reflectrl or was cut short.")
    manifest = decode(_Manifest, read_json(path, "the digests of a checkpoint: choose another one"), str(path))
    if (manifest.format, manifest.version) != (FORMAT, VERSION):
        raise InvalidInput(f"{path} is of {manifest.format} {manifest.version}; expected {FORMAT} {VERSION}.")
    return manifest


def _write_manifest(folder: Path, processes: int) -> None:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = tuple(_File(path.relative_to(folder).as_posix(), path.stat().st_size, _digest(path)) for path in paths)
    manifest = _Manifest(FORMAT, VERSION, processes, files)
    (folder / MANIFEST).write_text(json.dumps(encode(manifest), indent=1), encoding="utf-8")


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checkpoint(
    folder: Path, write: Callable[[Path], None], accelerator: Accelerator, *, keep: int | None
) -> None:
    """Write a checkpoint in one move, and remove older ones.

    Args:
        folder: the checkpoint, ``checkpoint-STEP``.
        write: called on each process with the folder to write to.
        accelerator: of the training.
        keep: number of checkpoints to keep; ``None`` for all.

    Raises:
        WorkFailed: it cannot be written.
    """
    main = accelerator.is_main_process
    try:
        with _in_one_move(folder, accelerator) as fresh:
            _write_generators(fresh / f"process_{accelerator.process_index}", accelerator.device)
            write(fresh)
            accelerator.wait_for_everyone()
            if main:
                _write_manifest(fresh, accelerator.num_processes)
        if main:
            _rotate(folder, keep)
    except (OSError, SafetensorError) as error:
        raise WorkFailed(
            f"checkpoint {folder} cannot be written ({error}); the one before is kept: make room, or fix the "
            "rights, and start the same command again, which continues from it."
        ) from error
    accelerator.wait_for_everyone()


@contextlib.contextmanager
def _in_one_move(folder: Path, accelerator: Accelerator) -> Iterator[Path]:
    """Yield the temporary folder for all processes; the main one creates it and finally moves it to ``folder``."""
    if not accelerator.is_main_process:
        accelerator.wait_for_everyone()  # until the folder exists
        yield fresh_place(folder)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with in_one_move(folder) as fresh:
        fresh.mkdir()
        accelerator.wait_for_everyone()
        yield fresh


def check_processes(folder: Path, accelerator: Accelerator, own: Sequence[str]) -> Sequence[int]:
    """Return the ranks whose states this process continues from: its own, or all if there were more or fewer of them.

    Args:
        folder: the checkpoint.
        accelerator: of the training.
        own: names of what each process has for itself.

    Raises:
        InvalidInput: it was written by another number of processes, and they have something for themselves.
    """
    written, processes = _read_manifest(folder).processes, accelerator.num_processes
    if written == processes:
        return [accelerator.process_index]
    if own:
        raise InvalidInput(
            f"{folder} was written by {written} processes but is read by {processes}, and each has its own "
            f"{' and '.join(own)}; continue with as many as before, or start again in another folder."
        )
    return range(written)


def write_weights(folder: Path, model: Any, tokenizer: Any) -> None:
    """Save a model or its adapters, with its tokenizer, as an ordinary model folder; the main process does."""
    weights = whole_weights(model)
    if not PartialState().is_main_process:
        return
    with no_progress_bars():
        if hasattr(model, "get_base_model"):  # has adapters
            model.save_pretrained(str(folder), save_embedding_layers=False, state_dict=weights)
        else:  # one file, with the weights' names in memory
            model.save_pretrained(folder, max_shard_size=10**18, save_original_format=False, state_dict=weights)
        tokenizer.save_pretrained(folder)


def read_weights(folder: Path, model: Any) -> None:
    """Load the weights that ``write_weights`` saved.

    Raises:
        InvalidInput: they are of another model.
    """
    with fitting(folder), taking_whole_weights(model):
        if hasattr(model, "get_base_model"):  # has adapters
            unexpected = [key for name in model.peft_config for key in _load_adapter(folder, model, name)]
        else:  # not strict, because tied weights are not in the file
            unexpected = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)[1]
        if unexpected:
            raise KeyError(unexpected[0])


def _load_adapter(folder: Path, model: PeftModel, name: str) -> list[str]:
    """Load one adapter; return unexpected keys. Peft saves all adapters but ``default`` in subfolders."""
    from peft import set_peft_model_state_dict

    path = folder if name == "default" else folder / name
    weights = load_file(path / "adapter_model.safetensors")
    return list(set_peft_model_state_dict(model, weights, adapter_name=name).unexpected_keys)


@contextlib.contextmanager
def fitting(folder: Path) -> Iterator[None]:
    """Turn torch's errors about shapes and names into ``InvalidInput``."""
    try:
        yield
    except InvalidInput:
        raise
    except (KeyError, RuntimeError, ValueError, OSError, SafetensorError) as error:
        raise InvalidInput(
            f"{folder} does not fit this training ({first_line(error)}); it was written for another model or "
            "optimizer: continue with that one, or start again in another folder."
        ) from error


def _rotate(newest: Path, limit: int | None) -> None:
    """Remove checkpoints beyond ``limit``, and those of later steps than ``newest``, which were skipped as damaged."""
    for leftover in newest.parent.glob(".checkpoint-*"):  # of a killed run
        shutil.rmtree(leftover)
    found = _checkpoints(newest.parent)
    last = [*found.values()].index(newest) + 1
    for number, path in enumerate(found.values()):
        if number >= last or (limit and number < last - limit):
            # hidden first, so that a partly removed checkpoint is never found
            shutil.rmtree(path.replace(path.with_name(f".{path.name}.stale")))


def split_tensors(optimizer: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split the state of an optimizer into plain values and tensors, named like ``3.exp_avg`` (of weight 3).

    The values of a dictionary, which bitsandbytes' optimizers have, are named like ``3.quantised/absmax``.
    """
    plain: dict[str, dict[str, Any]] = {str(weight): {} for weight in optimizer["state"]}
    tensors: dict[str, Tensor] = {}
    for weight, state in optimizer["state"].items():
        for name, value in _leaves(state):
            if isinstance(value, Tensor):
                shared = "/" in name  # bitsandbytes' tables, which safetensors refuses to save twice
                tensors[f"{weight}.{name}"] = value.detach().clone() if shared else value.detach().contiguous()
            else:
                plain[str(weight)][name] = value
    return {"state": plain, "param_groups": optimizer["param_groups"]}, tensors


def _leaves(state: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{inside}{name}/")
        else:
            yield f"{inside}{name}", value


def joined(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the state of an optimizer that ``split_tensors`` split."""
    state: dict[int, dict[str, Any]] = {int(weight): {} for weight in plain["state"]}
    given = {f"{weight}.{name}": value for weight, values in plain["state"].items() for name, value in values.items()}
    for key, value in (*given.items(), *tensors.items()):
        weight, _, path = key.partition(".")
        *outer, name = path.split("/")
        place = state[int(weight)]
        for each in outer:
            place = place.setdefault(each, {})
        place[name] = value
    return {"state": state, "param_groups": plain["param_groups"]}


def _write_generators(path: Path, device: torch.device) -> None:
    """Save the states of the global random generators of this process."""
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - libraries draw from the global generator
    numbers = {"python": random.getstate(), "numpy": [name, np.asarray(keys).tolist(), *rest]}
    path.with_suffix(".json").write_text(json.dumps(numbers), encoding="utf-8")
    cuda = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    save_file({"cpu": torch.get_rng_state(), **cuda}, path.with_suffix(".safetensors"))


def read_generators(folder: Path, accelerator: Accelerator) -> None:
    """Restore the states of the global random generators of this process, if as many have written them."""
    if _read_manifest(folder).processes != accelerator.num_processes:
        return
    path = folder / f"process_{accelerator.process_index}"
    numbers = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    tensors = load_file(path.with_suffix(".safetensors"))
    version, internal, gauss = numbers["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = numbers["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(tensors["cpu"])
    if accelerator.device.type == "cuda" and "cuda" in tensors:  # not in a checkpoint that was written on a CPU
        torch.cuda.set_rng_state(tensors["cuda"], accelerator.device)


STATE_NAME = "reflectrl_state_{rank}.json"
VALUE_HEAD_NAME = "value_head.safetensors"
VISITS_NAME = "visits.safetensors"


def write_state(trainer: ReflectRLTrainer, folder: Path) -> None:
    """Save the state of this process (iteration, curriculum, replay buffer), and what all processes share."""
    if trainer.value_head is not None:
        save_whole(trainer.value_head.state_dict(), folder / VALUE_HEAD_NAME)
    if NOVELTY in trainer.args.rewards:
        save_whole({"counts": trainer.novelty.counts}, folder / VISITS_NAME)
    path = folder / STATE_NAME.format(rank=trainer.accelerator.process_index)
    curriculum = trainer.curriculum
    state = {
        "iteration": trainer.iteration,
        "env_steps": trainer.env_steps,
        "entropy_coef": trainer.entropy_coef,
        "pace": trainer.pace.factor,
        "lesson": curriculum.index,
        "ended": curriculum.ended,
        "successes": curriculum.successes,
        "failures": curriculum.failures,
        "replay": encode(without_images(tuple(trainer.replay), path, HOLDERS)),
        "thoughts": trainer.imitation.state(path),
        "returns": trainer.reward_scale.moments,
        "memories": [player.remembered for player in trainer.learners],
    }
    if trainer.validator is not None:
        state["validation"] = trainer.validator.write_state(folder)
    path.write_text(json.dumps(state), encoding="utf-8")


def read_state(trainer: ReflectRLTrainer, folder: Path) -> None:
    """Restore what ``write_state`` saved; of another number of processes, what all of them share.

    Raises:
        InvalidInput: a lesson that has ended has another name or length now.
    """
    if trainer.value_head is not None:
        with taking_whole_weights(trainer.value_head):
            trainer.value_head.load_state_dict(load_file(folder / VALUE_HEAD_NAME))
    if NOVELTY in trainer.args.rewards:
        trainer.novelty.counts = load_file(folder / VISITS_NAME)["counts"]
    own = {
        "replay buffer (rlft.replay)": trainer.args.replay is not None,
        "corrected thoughts (rlft.terms.sft_thought)": trainer.args.terms.sft_thought is not None,
        "file of its memory": bool(trainer.learners),
    }
    processes = check_processes(folder, trainer.accelerator, [name for name, has in own.items() if has])
    path, *others = (folder / STATE_NAME.format(rank=rank) for rank in processes)
    state = json.loads(path.read_text(encoding="utf-8"))
    failures = [json.loads(each.read_text(encoding="utf-8"))["failures"] for each in others] + [state["failures"]]
    trainer.iteration, trainer.env_steps = state["iteration"], state["env_steps"]
    trainer.entropy_coef = state["entropy_coef"]
    trainer.pace.factor = state["pace"]
    curriculum = trainer.curriculum
    curriculum.index, curriculum.successes = state["lesson"], state["successes"]
    curriculum.failures = {
        task: fmean(known[task] for known in failures if task in known) for task in dict.fromkeys(chain(*failures))
    }
    curriculum.check_ended(state["ended"], folder)
    count, mean, squares = state["returns"]
    trainer.reward_scale.moments = (count, mean, squares)
    rows = with_images(state["replay"], path, str(path), HOLDERS)
    trainer.replay.extend(decode(Trajectory, row, str(path)) for row in rows)
    trainer.imitation.restore(state["thoughts"], path)
    for player, remembered in zip(trainer.learners, state["memories"], strict=True):
        player.restore(remembered)
    if trainer.validator is not None:
        trainer.validator.read_state(folder, state["validation"])


def checkpoint_iteration(checkpoint: Path) -> int:
    """Return the number of iterations that were done when ``checkpoint`` was written."""
    return int(json.loads((checkpoint / STATE_NAME.format(rank=0)).read_text())["iteration"])
