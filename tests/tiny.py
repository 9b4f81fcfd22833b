"""Tiny models with random weights, a tokenizer and prompts of NumberLine, for tests of models and training."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from records import policy_prompt_of, reflector_prompt_of
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    GPT2Config,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from reflectrl.core import Observation
from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.adapters import prepare_quantized
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.prefix_cache import PrefixCache
from reflectrl.lm.seeding import seeded
from reflectrl.lm.tokenizer import label_ids, train_tokenizer
from reflectrl.prompts import Prompt, PromptFormat, labels

LAYOUT = PromptFormat(history=3, labels="letters")
LABELS = labels("letters", 8)
MAX_LENGTH = 128


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that is trained on the words of NumberLine."""
    env = NumberLine(size=10)
    corpus = []
    for task in env.tasks("train"):
        env.reset(seed=0, options={"task": task})
        said = env.reflection()
        menu = LAYOUT.menu_of(env.observation)
        corpus.append(policy_prompt_of(LAYOUT, env.observation, ["add one", "subtract one"], said, menu).text)
    return train_tokenizer(corpus, LABELS, pieces="phrases", vocabulary=320, max_length=MAX_LENGTH)


def encoder(max_length: int = MAX_LENGTH, **options: Any) -> PromptEncoder:
    return PromptEncoder(tokenizer(), label_ids(tokenizer(), LABELS), max_length, **options)


def gpt2(seed: int = 0, *, layers: int = 1, width: int = 32, spread: float = 0.02, **options: Any) -> PreTrainedModel:
    """Return a GPT-2; a large standard deviation of weights (``spread``) makes distributions far from uniform."""
    config = GPT2Config(
        vocab_size=len(tokenizer()),
        n_embd=width,
        n_layer=layers,
        n_head=2,
        initializer_range=spread,
        bos_token_id=tokenizer().eos_token_id,
        eos_token_id=tokenizer().eos_token_id,
        pad_token_id=tokenizer().pad_token_id,
        **{"n_positions": MAX_LENGTH, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **options},
    )
    with seeded(seed):
        return AutoModelForCausalLM.from_config(config)


SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 2,
    "num_local_experts": 2,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "max_position_embeddings": MAX_LENGTH,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
"""Options under their usual names; an architecture gets those that it knows."""
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "gemma2": {"final_logit_softcapping": 2.0},
    "granite": {"logits_scaling": 3.0},
    "cohere": {"logit_scale": 0.3},
    "falcon_h1": {"lm_head_multiplier": 0.3, "mamba_d_ssm": 32, "mamba_n_heads": 4},
    "recurrent_gemma": {"logits_soft_cap": 2.0, "lru_width": 32},
    "modernbert-decoder": {"cls_token_id": 1, "sep_token_id": 1},
    "bert": {"is_decoder": True},
    "rembert": {"is_decoder": True, "output_embedding_size": 24, "input_embedding_size": 16},
    "opt": {"word_embed_proj_dim": 16, "do_layer_norm_before": False, "ffn_dim": 48, "init_std": 0.2},
    "llama4_text": {"intermediate_size_mlp": 16},
    "inkling_text": {"logits_mup_width_multiplier": 24.0},
    "xlm": {"causal": True, "init_std": 0.2, "embed_init_std": 0.2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
}
"""Architectures of transformers, with options that make their heads more than a matrix."""


def language_model(architecture: str, seed: int = 0, **options: Any) -> PreTrainedModel:
    """Return a model of an architecture of transformers, with distributions far from uniform."""
    known = AutoConfig.for_model(architecture)
    shape = {name: value for name, value in SHAPE.items() if hasattr(known, name)}
    given = {**shape, **ARCHITECTURES.get(architecture, {}), **options}
    config = AutoConfig.for_model(architecture, vocab_size=len(tokenizer()), **given)
    with seeded(seed):
        return AutoModelForCausalLM.from_config(config).eval()


def quantized(architecture: str, folder: Path, bits: int, **options: Any) -> PreTrainedModel:
    """Return a model that is loaded through bitsandbytes, from a copy in ``folder``."""
    language_model(architecture).save_pretrained(folder)
    # with a threshold, the columns computed in higher precision would depend on the rest of the batch
    eight, four = {"llm_int8_threshold": 0.0}, {"bnb_4bit_compute_dtype": torch.float32}
    config = BitsAndBytesConfig(
        load_in_8bit=bits == 8, load_in_4bit=bits == 4, **{**(eight if bits == 8 else four), **options}
    )
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    prepare_quantized(model)
    return model


GENERATION: dict[str, dict[str, Any]] = {
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "repetition_penalty": {"repetition_penalty": 5.0},
    "suppress_tokens": {"suppress_tokens": list(range(100, 320))},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(100, 320))},
    "bad_words_ids": {"bad_words_ids": [[number] for number in range(100, 320)]},
    "sequence_bias": {"sequence_bias": [[[number], -30.0] for number in range(100, 320)]},
    "forced tokens": {"forced_bos_token_id": 40, "forced_eos_token_id": 41},
    "lengths": {"min_new_tokens": 8, "min_length": 100, "max_length": 2, "max_time": 1e-9},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (1, 5.0)},
    "sampling": {"do_sample": True, "temperature": 9.0, "top_k": 1, "top_p": 0.1, "min_p": 0.9, "typical_p": 0.1},
    "beams": {"num_beams": 3, "length_penalty": 5.0, "num_return_sequences": 2},
    "guidance_scale": {"guidance_scale": 9.0},
    "ends": {"eos_token_id": list(range(100, 320)), "pad_token_id": 7, "stop_strings": ["e"]},
    "outputs": {"return_dict_in_generate": True, "output_scores": True, "use_cache": False},
}
"""Settings that a model's ``generation_config`` may have; each would change what ``generate`` writes or returns."""


def asking_for(model: PreTrainedModel, settings: Mapping[str, Any]) -> PreTrainedModel:
    """Give a model settings of its own for generating text."""
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model


ACTIONS = ("add one", "subtract one", "wait", "go home", "sing")


def policy_prompt(
    number: int = 0,
    actions: int = 2,
    past: int = 0,
    said: str | None = "The target is higher.",
    common: tuple[str, ...] = (),
) -> Prompt:
    """Return a policy's prompt after ``past`` actions, with the ``common`` actions listed in its head."""
    layout = replace(LAYOUT, menu="first")
    observation = Observation(f"Number {number}, target {number * 7 % 10}.", ACTIONS[:actions], common=common)
    return policy_prompt_of(layout, observation, history(past), said, layout.menu_of(observation))


def reflector_prompt(number: int = 0, past: int = 0) -> Prompt:
    return reflector_prompt_of(
        LAYOUT, Observation(f"Number {number}, target {number * 7 % 10}.", ACTIONS[:2]), history(past)
    )


def history(past: int) -> tuple[str, ...]:
    return tuple(ACTIONS[step % 2] for step in range(past))


def draws(count: int, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [rng.random() for _ in range(count)]


def token_ids(seed: int, count: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(3, 60), k=count))


def prefix_cache(**options: Any) -> PrefixCache:
    return PrefixCache(torch.device("cpu"), torch.float32, **options)


def shaken(model: PreTrainedModel, *names: str, spread: float = 0.3) -> PreTrainedModel:
    """Change the weights whose names contain one of ``names``, because their initial values have no effect."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(part in name for part in names):
                weight.add_(spread * torch.randn(weight.shape, generator=generator))
    return model
