"""``builtin/nano``: a small GPT-2, or a small LLaVA for images, written once as an ordinary model folder.

So everything runs offline, through the same code that loads any other model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import (
    CLIPVisionConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from reflectrl.lm.load import BUILTIN, LanguageModel, save_model
from reflectrl.lm.pictures import Pictures, read_pictures
from reflectrl.lm.section import BuiltinSection, ModelSection
from reflectrl.lm.seeding import seeded
from reflectrl.lm.tokenizer import train_tokenizer

GPT2_SPREAD, GPT2_WIDTH = 0.02, 768
"""Standard deviation of GPT-2's initial weights, and the width that it suits. In prompts of 190 tokens (the suite's
catalogue), a model 64 wide did not learn to attend to the order within 1,500 steps from 0.02, and within 250 from 0.08.
"""
BLEND = 0.5
"""Share of pretrained weights in the blocks; the rest is random ("On Warm-Starting Neural Network Training", Ash and
Adams, 2020). What a prompt says is looked up after as few steps as with 1, and a short fine-tuning for something else
succeeds as from random blocks: number_line/nano, which compares numbers, ends at 100 % with 0.5 and at 69 % with 1."""
IMAGE = "<image>"
"""Token of an image in the LLaVA's vocabulary."""


def make_base(
    section: ModelSection, folder: Path, *, corpus: Sequence[str], labels: Sequence[str], seed: int
) -> ModelSection:
    """Return ``section`` with a base that can be loaded: ``builtin/nano`` is written to ``folder``, other names stay.

    Args:
        section: the recipe's model.
        folder: folder of the built-in model; the same inputs write the same bytes.
        corpus: texts that the tokenizer is trained on: the run's SFT rows, of both players.
        labels: menu labels, each of which becomes one token.
        seed: seed of the initial weights.
    """
    if section.name != BUILTIN:
        return section
    shape = section.builtin
    tokenizer = train_tokenizer(
        corpus, labels, pieces=shape.pieces, vocabulary=shape.vocabulary, max_length=section.max_length
    )
    make = _llava if section.images else _gpt2
    with seeded(seed):
        lm = make(shape, tokenizer, section.max_length)
    save_model(lm, folder)
    return section.model_copy(update={"name": str(folder)})


def _gpt2(shape: BuiltinSection, tokenizer: PreTrainedTokenizerBase, max_length: int) -> LanguageModel:
    config = gpt2_config(
        layers=shape.layers, width=shape.width, heads=shape.heads, vocabulary=len(tokenizer), positions=max_length
    )
    config.bos_token_id = config.eos_token_id = tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    model = GPT2LMHeadModel(config)
    if shape.pretrained:
        _load_blocks(model, shape.blocks)
    return LanguageModel(model, tokenizer)


def _load_blocks(model: GPT2LMHeadModel, file: Path) -> None:
    """Blend all weights but the embeddings of tokens with pretrained ones; positions beyond the file's stay random."""
    blocks, places = load_file(file), model.transformer.wpe.weight
    known = blocks.pop("wpe.weight")[: len(places)]
    with torch.no_grad():
        places[: len(known)] = known
        for name, weights in blocks.items():
            model.transformer.get_parameter(name).lerp_(weights.float(), BLEND)


def gpt2_config(*, layers: int, width: int, heads: int, vocabulary: int, positions: int) -> GPT2Config:
    """Return the configuration of a small GPT-2 that reads up to ``positions`` tokens."""
    return GPT2Config(
        vocab_size=vocabulary,
        n_positions=positions,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        initializer_range=GPT2_SPREAD * math.sqrt(GPT2_WIDTH / width),
        activation_function="relu",  # a fifth of the step time of GPT-2's own at this size
        # dropout would make the probabilities that sampling and training see differ
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )


def _llava(shape: BuiltinSection, tokenizer: PreTrainedTokenizerBase, max_length: int) -> LanguageModel:
    """Return a LLaVA that reads an image as one token a patch."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
    image, side = tokenizer.convert_tokens_to_ids(IMAGE), shape.image_size
    sizes = {
        "hidden_size": shape.width,
        "intermediate_size": 4 * shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
    }
    seen = CLIPVisionConfig(**sizes, image_size=side, patch_size=shape.patch_size)
    text = LlamaConfig(
        **sizes,
        vocab_size=len(tokenizer),
        max_position_embeddings=max_length,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = LlavaConfig(
        vision_config=seen,
        text_config=text,
        image_token_id=image,
        vision_feature_layer=-1,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: PreTrainedModel = LlavaForConditionalGeneration(config)
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": side},
            crop_size={"height": side, "width": side},
            image_mean=[1.0] * 3,  # white becomes 0, so that drawings stand out even before training
            image_std=[0.5] * 3,
        ),
        tokenizer=tokenizer,
        patch_size=shape.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # the token of the whole image, which this strategy leaves out
        image_token=IMAGE,
    )
    read_pictures(model, Pictures(processor, config, BUILTIN))
    return LanguageModel(model, tokenizer)
