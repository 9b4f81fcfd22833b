"""``VisionTower``: pictures of states as vectors, by an image-text model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from reflectrl.core import Image, InvalidInput
from reflectrl.memory.embedders import Vectors
from reflectrl.models.load import LanguageModel


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
