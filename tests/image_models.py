"""Small image-text models of five families with random weights, and pictures for them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Pillow
from transformers import (
    CLIPVisionConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMProcessor,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from reflectrl.core import Image, make_env
from reflectrl.lm.builtin import make_base
from reflectrl.lm.load import LanguageModel, save_model
from reflectrl.lm.pictures import Pictures, read_pictures
from reflectrl.lm.section import BuiltinSection, ModelSection
from reflectrl.lm.tokenizer import train_tokenizer
from reflectrl.prompts import Menu, Prompt

LABELS = ("A", "B")
CORPUS = ["A. -\nB. +\nAction:\nPast: none\nThought: near\n"]
MAX_LENGTH = 64
MENU = Menu(LABELS, ("-", "+"))
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LENGTH,
}


def cards() -> list[Image]:
    """Return pictures of three states of NumberLine."""
    env = make_env("gym_cards", game="number_line", observation="image")
    images = []
    for task in env.tasks("train")[:3]:
        env.reset(seed=0, options={"task": task})
        images += env.observation.images
    return images


def plain(colour: str) -> Image:
    """Return a picture of one colour."""
    file = io.BytesIO()
    Pillow.new("RGB", (60, 60), colour).save(file, "PNG")
    return Image(file.getvalue())


def prompts() -> list[Prompt]:
    """Return prompts of different lengths about three pictures, and one with text only."""
    tail = f"{MENU.text}Action:\n"
    one, two, three = cards()
    return [
        Prompt("", (), tail, MENU, images=(one,)),
        Prompt("", ("Past: none\n",), tail, MENU, images=(two,)),
        Prompt("", (), tail, MENU, images=(one,), said="Thought: near\n"),
        Prompt("", (), tail, MENU, images=(three, one)),
        Prompt("", (), tail, MENU, state="near\n"),
    ]


def section(folder: Path, **options: Any) -> ModelSection:
    """Return the section that loads the models below."""
    return ModelSection(name=str(folder), images=True, prefix_reuse=False, max_length=MAX_LENGTH, **options)


def save_llava(folder: Path) -> None:
    """Save the built-in model, with four patches."""
    shape = BuiltinSection(layers=1, width=32, heads=2, vocabulary=320, image_size=24, patch_size=12)
    made = section(folder).model_copy(update={"name": "builtin/nano", "builtin": shape})
    make_base(made, folder, corpus=CORPUS, labels=LABELS, seed=0)


def save_idefics3(folder: Path) -> None:
    """Save an Idefics3, which joins four patches each and marks images with tokens."""
    tokenizer = _tokenizer(*_MARKS)
    images = Idefics3ImageProcessorPil(size=_SIZE, max_image_size=_SIZE, do_image_splitting=False)
    processor = Idefics3Processor(images, tokenizer, image_seq_len=4)
    _save(Idefics3ForConditionalGeneration, _joining(Idefics3Config, tokenizer), processor, folder)


_MARKS = ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>")
_SIZE = {"longest_edge": 56}


def _joining(kind: type[Idefics3Config | SmolVLMConfig], tokenizer: PreTrainedTokenizerFast) -> Any:
    """Return the configuration of a model that joins four patches each."""
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    return kind(
        vision_config={**vision, "image_size": 56, "patch_size": 14},
        text_config=LlamaConfig(**TEXT, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
    )


def save_llava_next(folder: Path) -> None:
    """Save a LLaVA-NeXT (LLaVA 1.6) on a Mistral, which reads a picture as a whole and in parts."""
    tokenizer, sizes = _tokenizer("<image>"), [[24, 48], [48, 24]]
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(**vision, image_size=24, patch_size=12),
        text_config=MistralConfig(**TEXT, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=sizes,
        pad_token_id=tokenizer.pad_token_id,
    )
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}, image_grid_pinpoints=sizes
    )
    parts = {"patch_size": 12, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    _save(LlavaNextForConditionalGeneration, config, LlavaNextProcessor(images, tokenizer, **parts), folder)


FAMILIES = {"llava": save_llava, "idefics3": save_idefics3, "llava_next": save_llava_next}
"""Functions that save a model of each family that loads without torchvision."""


class Qwen2VLImageOnlyProcessor(Qwen2VLProcessor):
    """Processor of Qwen2-VL without videos, which need torchvision."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        ProcessorMixin.__init__(self, image_processor, tokenizer)


def qwen2_vl() -> LanguageModel:
    """Return a Qwen2-VL, which has three-dimensional positions and one row of patches for all images of a batch."""
    names = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    tokenizer = _tokenizer(*names)
    image, video, start, end = (tokenizer.convert_tokens_to_ids(name) for name in names)
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
    config = Qwen2VLConfig(
        text_config={**TEXT, "vocab_size": len(tokenizer), "rope_parameters": rope},
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2},
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
    )
    images = Qwen2VLImageProcessor(size={"shortest_edge": 784, "longest_edge": 3136})
    model = _random(Qwen2VLForConditionalGeneration, config)
    read_pictures(model, Pictures(Qwen2VLImageOnlyProcessor(images, tokenizer), config, "qwen2_vl"))
    return LanguageModel(model, tokenizer)


class SmolVLMImageOnlyProcessor(SmolVLMProcessor):
    """Processor of SmolVLM without videos, which need torchvision and num2words."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None) -> None:
        self.image_token, self.fake_image_token, _, self.global_image_token = _MARKS
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.image_seq_len = 4
        ProcessorMixin.__init__(self, image_processor, tokenizer)


def smolvlm() -> LanguageModel:
    """Return a SmolVLM, which splits large pictures and here reads small ones as a whole."""
    tokenizer = _tokenizer(*_MARKS)
    config = _joining(SmolVLMConfig, tokenizer)
    images = SmolVLMImageProcessorPil(size=_SIZE, max_image_size=_SIZE, do_image_splitting=False)
    model = _random(SmolVLMForConditionalGeneration, config)
    read_pictures(model, Pictures(SmolVLMImageOnlyProcessor(images, tokenizer), config, "smolvlm"))
    return LanguageModel(model, tokenizer)


MADE = {"qwen2_vl": qwen2_vl, "smolvlm": smolvlm}
"""Functions that make a model of each family whose own processor needs torchvision."""


def own_logits(lm: LanguageModel, prompt: Prompt) -> torch.Tensor:
    """Return the (V,) logits after a prompt from the family's own processor and forward, without our code."""
    pictures = lm.pictures
    assert pictures is not None
    processor, config = pictures.processor, lm.base.config
    ends = [getattr(config, f"vision_{end}_token_id", None) for end in ("start", "end")]
    before, after = ("" if end is None else lm.tokenizer.convert_ids_to_tokens(end) for end in ends)
    text = f"{before}{processor.image_token}{after}" * len(prompt.images) + prompt.text
    drawn = [Pillow.open(io.BytesIO(image.data)) for image in prompt.images]
    read = processor(text=[text], images=drawn or None, return_tensors="pt")
    plain = type(lm.base).forward  # not our processor, which takes images by their hash
    allowed = {name: value for name, value in read.items() if name != "token_type_ids"}
    return plain(lm.base, **allowed, use_cache=False).logits[0, -1]


def _tokenizer(*special: str) -> PreTrainedTokenizerFast:
    tokenizer = train_tokenizer(CORPUS, LABELS, pieces="words", vocabulary=320, max_length=MAX_LENGTH)
    tokenizer.add_special_tokens({"additional_special_tokens": [*special]})
    return tokenizer


def _random(kind: type[PreTrainedModel], config: Any) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(config).eval()


def _save(kind: type[PreTrainedModel], config: Any, processor: Any, folder: Path) -> None:
    model = _random(kind, config)
    read_pictures(model, Pictures(processor, config, kind.__name__))
    save_model(LanguageModel(model, processor.tokenizer), folder)
