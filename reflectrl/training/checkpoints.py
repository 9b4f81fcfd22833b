"""Checkpoints that are whole or not there, and from which training goes on exactly.

checkpoint-12/  model.safetensors or adapter_model.safetensors, config, tokenizer: an ordinary model folder
                optimizer.pt, scheduler.pt, rng_state.pth (one a process), trainer_state.json: Trainer's own, which
                it reads as tensors and plain values only (``weights_only``), never as pickled objects
                process_0.json, ...: losses since the last report
                checkpoint.json: number of processes, optimizer, and size and digest of each file

Trainer itself writes a checkpoint file by file under its final name, cannot tell a damaged one, and loads weights of
another shape with a warning; hence the overrides.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import Trainer

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.artefacts import Digest, digest
from reflectrl.core.files import fresh_place, in_one_move
from reflectrl.core.jsonl import decode, encode
from reflectrl.core.text import first_line
from reflectrl.models.load import no_progress_bars

MANIFEST = "checkpoint.json"
FORMAT = "reflectrl-checkpoint"
VERSION = 2

_UNREPORTED = "process_{rank}.json"
_NAME = re.compile(r"checkpoint-(\d+)")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Manifest:
    format: str
    version: int
    processes: int
    optimizer: str
    """Class of the optimizer, whose state fits no other one."""
    files: Mapping[str, Digest]


# ---- finding ---------------------------------------------------------------------------------------------------------


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint in ``folder``, if there is any; what is newer but cut or foreign is warned of.

    Raises:
        InvalidInput: there are checkpoints, but none is whole.

    """
    faults: list[str] = []
    for path in reversed(_checkpoints(folder)):
        if fault := _fault(path):
            faults.append(fault)
            continue
        for fault in faults:
            _log.warning("passing over a checkpoint that is not whole: %s; going on from %s.", fault, path)
        return path
    if faults:
        raise InvalidInput(
            f"no checkpoint in {folder} is whole: {'; '.join(faults)}. Delete that folder to start this stage again."
        )
    return None


def _checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    found = {int(match[1]): path for path in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))}
    return [found[step] for step in sorted(found)]


def _fault(folder: Path) -> str | None:
    """What is wrong with a checkpoint."""
    try:
        for name, written in _read_manifest(folder).files.items():
            if digest(folder / name) != written:
                return f"{folder / name} does not hold the bytes that were written"
    except OSError as error:
        return f"a file of {folder} cannot be read ({error})"
    except InvalidInput as error:
        return str(error).rstrip(".")
    return None


def _read_manifest(folder: Path) -> _Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        raise InvalidInput(f"{folder} holds no {MANIFEST}, so it is no checkpoint of reflectrl or was cut short.")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON ({error}); choose another checkpoint.") from error
    manifest = decode(_Manifest, value, str(path))
    if (manifest.format, manifest.version) != (FORMAT, VERSION):
        raise InvalidInput(f"{path} is of {manifest.format} {manifest.version}; expected {FORMAT} {VERSION}.")
    return manifest


# ---- writing and reading ---------------------------------------------------------------------------------------------


class Checkpoints(Trainer):
    """Base class that goes before a trainer of transformers or TRL."""

    def write_state(self, folder: Path) -> None:
        """Add what only this training knows; called on each process."""

    def read_state(self, folder: Path) -> None:
        """Take up what ``write_state`` wrote."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:  # noqa: ARG002
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        main = self.is_world_process_zero()
        self.store_flos()
        try:
            with self._in_one_move(folder) as fresh:
                self._write(fresh)
                self.accelerator.wait_for_everyone()
                if main:
                    self._write_manifest(fresh)
            if main:
                _rotate(folder, self.args.save_total_limit)
        except (OSError, SafetensorError) as error:
            raise WorkFailed(
                f"checkpoint {folder} cannot be written ({error}); the one before is kept: make room, or fix the "
                "rights, and start the same command again, which goes on from it."
            ) from error
        self.accelerator.wait_for_everyone()

    @contextlib.contextmanager
    def _in_one_move(self, folder: Path) -> Iterator[Path]:
        """The place where all processes write; the main one makes it, and moves it when it is left."""
        if not self.is_world_process_zero():
            self.accelerator.wait_for_everyone()  # until it is there
            yield fresh_place(folder)
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        with in_one_move(folder) as fresh:
            fresh.mkdir()
            self.accelerator.wait_for_everyone()
            yield fresh

    def _write(self, folder: Path) -> None:
        self._save_rng_state(str(folder))
        # without the losses since the last report, which Trainer forgets, that report would be another one
        unreported = {"last_logged": self._globalstep_last_logged, "loss": self._tr_loss.item()}
        (folder / _UNREPORTED.format(rank=self.args.process_index)).write_text(json.dumps(unreported), encoding="utf-8")
        if self.is_world_process_zero():
            with no_progress_bars():
                self._write_model(folder)
            self._save_optimizer_and_scheduler(str(folder))
            self.state.save_to_json(str(folder / "trainer_state.json"))
        self.write_state(folder)

    def _write_manifest(self, folder: Path) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): digest(path) for path in paths}
        manifest = _Manifest(FORMAT, VERSION, self.args.world_size, self._optimizer_name(), files)
        (folder / MANIFEST).write_text(json.dumps(encode(manifest), indent=1), encoding="utf-8")

    def _write_model(self, folder: Path) -> None:
        if isinstance(self.model, PeftModel):
            self.model.save_pretrained(str(folder), save_embedding_layers=False)
        else:  # one file, by the names that the weights have in memory
            self.model.save_pretrained(folder, max_shard_size=10**18, save_original_format=False)
        self.processing_class.save_pretrained(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        del model
        folder = Path(resume_from_checkpoint)
        manifest = _read_manifest(folder)
        if manifest.processes != self.args.world_size:
            raise InvalidInput(
                f"{folder} was written by {manifest.processes} processes but is read by {self.args.world_size}; go on "
                "with as many as before, or start again in another folder."
            )
        with _fitting(folder):
            if isinstance(self.model, PeftModel):
                weights = load_file(folder / "adapter_model.safetensors")
                unexpected = set_peft_model_state_dict(self.model, weights).unexpected_keys
            else:  # weights that are tied to others are left out
                unexpected = self.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)[1]
            if unexpected:
                raise KeyError(unexpected[0])

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        with _fitting(folder):
            if (before := _read_manifest(folder).optimizer) != self._optimizer_name():
                raise ValueError(f"it was optimized by {before}")
            super()._load_optimizer_and_scheduler(checkpoint)
            self.read_state(folder)

    def _optimizer_name(self) -> str:
        return type(self.optimizer.optimizer).__name__  # inside of accelerate's

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        if checkpoint is not None:
            path = Path(checkpoint) / _UNREPORTED.format(rank=self.args.process_index)
            unreported = json.loads(path.read_text(encoding="utf-8"))
            self._globalstep_last_logged = unreported["last_logged"]
            self._tr_loss = torch.tensor(unreported["loss"], device=self.args.device)


@contextlib.contextmanager
def _fitting(folder: Path) -> Iterator[None]:
    """Torch's complaints about shapes and names as a sentence."""
    try:
        yield
    except InvalidInput:
        raise
    except (KeyError, RuntimeError, ValueError, OSError, SafetensorError) as error:
        raise InvalidInput(
            f"{folder} does not fit this training ({first_line(error)}); it was written for another model or "
            "optimizer: go on with that one, or start again in another folder."
        ) from error


def _rotate(newest: Path, limit: int | None) -> None:
    """Remove what is too old, and what was passed over when training went on from an older one."""
    earlier = [path for path in _checkpoints(newest.parent) if _step(path) <= _step(newest)]
    kept = earlier[-limit:] if limit else earlier
    for leftover in newest.parent.glob(".checkpoint-*"):  # by a kill
        shutil.rmtree(leftover)
    for path in _checkpoints(newest.parent):
        if path not in kept:
            # out of sight first, so that it is never found half removed
            shutil.rmtree(path.replace(path.with_name(f".{path.name}.stale")))


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])
