"""``Pictures``: the images of prompts as tokens, and as arguments of a model's ``forward``.

In a prompt, each token of an image is a negative number derived from the hash of the image. Sequences of tokens are
therefore equal if text and images are, and code that compares, sorts or caches them need not know of images. Just
before the forward pass, these tokens become the model's own image token, with the tensors that its processor makes.
"""

from __future__ import annotations

import functools
import io
import types
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reflectrl.core import Image, InvalidInput
from reflectrl.lm.sequences import Tokens

MOST_BYTES = 2**28
"""Maximum size in bytes of the image tensors in the cache; others are made again when they are needed."""


@dataclass(frozen=True)
class Picture:
    """An image as a processor reads it."""

    tokens: Tokens
    """Tokens of the image in a prompt: negative numbers, with the tokens that the model expects around them."""
    count: int
    """Number of negative tokens."""
    tensors: Mapping[str, Tensor]
    """Arguments of ``forward``, such as ``pixel_values``; several images are joined along the first dimension."""
    marks: tuple[str, ...]
    """Names of arguments of ``forward`` that are 1 at tokens of images and 0 elsewhere."""

    @property
    def nbytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class Pictures:
    """Converts images with the processor of a model called ``name``; caches the tensors of the most recent ones.

    Raises:
        InvalidInput: an architecture in which images are not tokens of the prompt.
    """

    def __init__(self, processor: Any, config: Any, name: str) -> None:
        self.processor = processor
        token, text = getattr(config, "image_token_id", None), getattr(processor, "image_token", None)
        if token is None or text is None:
            raise InvalidInput(
                f"{name!r} does not read images as tokens of a prompt, which policies need; set model.name to a model "
                "of the LLaVA, Qwen2-VL, Idefics3 or SmolVLM family."
            )
        self._token, self._text = int(token), str(text)
        around = (getattr(config, f"vision_{end}_token_id", None) for end in ("start", "end"))
        self._before, self._after = ([] if each is None else [int(each)] for each in around)
        self._blank = processor.tokenizer.pad_token_id
        self._images: dict[int, Image] = {}
        self._kept: OrderedDict[int, Picture] = OrderedDict()
        self._bytes = 0

    def tokens(self, image: Image) -> Tokens:
        """Return the tokens of an image in a prompt."""
        number = -1 - int(image.sha256[:15], 16)
        self._images[number] = image
        return self._picture(number).tokens

    def inputs(self, input_ids: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the arguments of ``forward`` for rows of tokens, (B, T), in which there may be images.

        An image token that a policy wrote itself stands for no image, and is read as padding.
        """
        pictured = input_ids < 0
        ids = input_ids.masked_fill(input_ids == self._token, self._blank).masked_fill(pictured, self._token)
        numbers = input_ids[pictured].tolist()
        if not numbers:
            return {"input_ids": ids}
        shown: list[Picture] = []
        at = 0
        while at < len(numbers):
            shown.append(self._picture(numbers[at]))
            at += shown[-1].count
        tensors = {name: _joined(name, shown).to(ids.device) for name in shown[0].tensors}
        floats = {name: tensor.to(dtype) for name, tensor in tensors.items() if tensor.is_floating_point()}
        return {"input_ids": ids, **tensors, **floats, **dict.fromkeys(shown[0].marks, pictured.long())}

    def _picture(self, number: int) -> Picture:
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        picture = self._kept[number] = self._process(number)
        self._bytes += picture.nbytes
        while self._bytes > MOST_BYTES and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return picture

    def _process(self, number: int) -> Picture:
        import PIL.Image

        picture = PIL.Image.open(io.BytesIO(self._images[number].data)).convert("RGB")
        found = self.processor(text=[self._text], images=[picture], return_tensors="pt", add_special_tokens=False)
        ids = found.pop("input_ids")
        found.pop("attention_mask", None)
        typed = [name for name, value in found.items() if value.shape == ids.shape and name.endswith("type_ids")]
        marks = tuple(name for name in typed if found.pop(name).any())
        tokens = [number if token == self._token else token for token in ids[0].tolist()]
        return Picture((*self._before, *tokens, *self._after), tokens.count(number), dict(found), marks)


def _joined(name: str, shown: list[Picture]) -> Tensor:
    """Return the tensors of images joined into one; raises ``InvalidInput`` if their sizes differ."""
    tensors = [picture.tensors[name] for picture in shown]
    if len({tensor.shape[1:] for tensor in tensors}) > 1:
        raise InvalidInput(
            "the images of a run were read by the model's processor in different sizes, which cannot be read side by "
            "side; have the environment draw all of its images in one size."
        )
    return torch.cat(tensors)


def read_pictures(model: PreTrainedModel, pictures: Pictures) -> None:
    """Make ``model.forward`` read rows of tokens with images; must be called before any other change to it."""
    bound = model.forward
    # unbound, because there may be copies of this model; behind accelerate's hooks there is no method to unbind
    original = getattr(bound, "__func__", lambda _, **kwargs: bound(**kwargs))

    @functools.wraps(type(model).forward)  # generate() reads the signature
    def forward(self: Any, input_ids: Tensor | None = None, **kwargs: Any) -> Any:
        given = (kwargs.get(name) for name in ("pixel_values", "mm_encoder_outputs"))
        if input_ids is None or any(each is not None for each in given):  # generate() begins with tensors of its own
            return original(self, input_ids=input_ids, **kwargs)
        return original(self, **{**kwargs, **pictures.inputs(input_ids, self.dtype)})

    model.forward = types.MethodType(forward, model)
    model.pictures = pictures
