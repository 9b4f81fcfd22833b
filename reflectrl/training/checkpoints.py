"""Checkpoints of safetensors and JSON: atomic, exact to resume from, and without pickle.

checkpoint-12/  model.safetensors or adapter_model.safetensors, config, tokenizer: an ordinary model folder
                optimizer.safetensors, optimizer.json (with the scheduler), trainer_state.json
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Trainer

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.files import fresh_place, in_one_move, open_regular
from reflectrl.core.jsonl import decode, encode, read_json
from reflectrl.core.text import first_line
from reflectrl.models.files import check_file
from reflectrl.models.load import no_progress_bars

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
        raise InvalidInput(f"{folder} holds no {MANIFEST}, so it is no checkpoint of reflectrl or was cut short.")
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


class Checkpoints(Trainer):
    """Mixin that replaces the checkpoints of a trainer of transformers or TRL, which use pickle and are not atomic."""

    def write_state(self, folder: Path) -> None:
        """Write the state of this kind of training to ``folder``; called on each process."""

    def read_state(self, folder: Path) -> None:
        """Restore the state that ``write_state`` wrote."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:  # noqa: ARG002
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        main = self.is_world_process_zero()
        self.store_flos()
        try:
            with self._in_one_move(folder) as fresh:
                self._write(fresh)
                self.accelerator.wait_for_everyone()
                if main:
                    _write_manifest(fresh, self.args.world_size)
            if main:
                _rotate(folder, self.args.save_total_limit)
        except (OSError, SafetensorError) as error:
            raise WorkFailed(
                f"checkpoint {folder} cannot be written ({error}); the one before is kept: make room, or fix the "
                "rights, and start the same command again, which continues from it."
            ) from error
        self.accelerator.wait_for_everyone()

    @contextlib.contextmanager
    def _in_one_move(self, folder: Path) -> Iterator[Path]:
        """Yield the temporary folder for all processes; the main one creates it and finally moves it to ``folder``."""
        if not self.is_world_process_zero():
            self.accelerator.wait_for_everyone()  # until the folder exists
            yield fresh_place(folder)
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        with in_one_move(folder) as fresh:
            fresh.mkdir()
            self.accelerator.wait_for_everyone()
            yield fresh

    def _write(self, folder: Path) -> None:
        rank = self.args.process_index
        numbers, tensors = _generators(self.args.device)
        # with the losses since the last report, so that the next report is the same as without an interruption
        _write_json(folder / f"process_{rank}.json", {**numbers, "last_logged": self._globalstep_last_logged})
        save_file({**tensors, "loss": self._tr_loss}, folder / f"process_{rank}.safetensors")
        if self.is_world_process_zero():
            with no_progress_bars():
                if isinstance(self.model, PeftModel):
                    self.model.save_pretrained(str(folder), save_embedding_layers=False)
                else:  # one file, with the weights' names in memory
                    self.model.save_pretrained(folder, max_shard_size=10**18, save_original_format=False)
                self.processing_class.save_pretrained(folder)
            plain, tensors = _split(self.optimizer.state_dict())
            plain |= {"kind": self._kind_of_optimizer(), "scheduler": self.lr_scheduler.state_dict()}
            _write_json(folder / "optimizer.json", plain)
            save_file(tensors, folder / "optimizer.safetensors")
            self.state.save_to_json(str(folder / "trainer_state.json"))
        self.write_state(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:  # noqa: ARG002
        folder = Path(resume_from_checkpoint)
        processes = _read_manifest(folder).processes
        if processes != self.args.world_size:
            raise InvalidInput(
                f"{folder} was written by {processes} processes but is read by {self.args.world_size}; continue with "
                "as many as before, or start again in another folder."
            )
        with _fitting(folder):
            if isinstance(self.model, PeftModel):
                unexpected = [key for name in self.model.peft_config for key in self._load_adapter(folder, name)]
            else:  # not strict, because tied weights are not in the file
                unexpected = self.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)[1]
            if unexpected:
                raise KeyError(unexpected[0])

    def _load_adapter(self, folder: Path, name: str) -> list[str]:
        """Load one adapter; return unexpected keys. Peft saves all adapters but ``default`` in subfolders."""
        path = folder if name == "default" else folder / name
        weights = load_file(path / "adapter_model.safetensors")
        return list(set_peft_model_state_dict(self.model, weights, adapter_name=name).unexpected_keys)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        with _fitting(folder):
            plain = json.loads((folder / "optimizer.json").read_text(encoding="utf-8"))
            if plain["kind"] != self._kind_of_optimizer():
                raise ValueError(f"it was optimized by {plain['kind']}")
            self.optimizer.load_state_dict(_joined(plain, load_file(folder / "optimizer.safetensors")))
            self.lr_scheduler.load_state_dict(plain["scheduler"])
            self.read_state(folder)
        self.state.compute_steps(self.args, self.args.max_steps)  # of these settings, not of those in the checkpoint

    def _kind_of_optimizer(self) -> str:
        return type(self.optimizer.optimizer).__name__  # accelerate wraps the optimizer

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Do nothing: players are not trained in float16, so there is no loss scale."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        path = Path(checkpoint) / f"process_{self.args.process_index}"
        numbers = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        tensors = load_file(path.with_suffix(".safetensors"))
        self._globalstep_last_logged = numbers["last_logged"]
        self._tr_loss = tensors["loss"].to(self.args.device)
        _restore_generators(numbers, tensors, self.args.device)


@contextlib.contextmanager
def _fitting(folder: Path) -> Iterator[None]:
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


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


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


def _split(optimizer: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
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


def _joined(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
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


def _generators(device: torch.device) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the states of the global random generators."""
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - libraries draw from the global generator
    tensors = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    return {"python": random.getstate(), "numpy": [name, np.asarray(keys).tolist(), *rest]}, tensors


def _restore_generators(numbers: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device) -> None:
    version, internal, gauss = numbers["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = numbers["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda" and "cuda" in tensors:  # not in a checkpoint that was written on a CPU
        torch.cuda.set_rng_state(tensors["cuda"], device)
