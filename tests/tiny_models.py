"""Real transformers models with random weights, small enough to train in a test."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from reflectrl.data_gen.rows import Row
from reflectrl.lm.load import LanguageModel, save_model
from reflectrl.lm.section import ModelSection
from reflectrl.lm.tokenizer import train_tokenizer
from reflectrl.prompts import Menu, Prompt, labels

LABELS = labels("numbers", 4)
MAX_LENGTH = 64
MENU = Menu(LABELS, ("move south", "move north", "pick up", "drop off"))
PAST = ("Past: none\n",)
CORPUS = [f"Past: none\n|T:P|\nReflection: Mistake. Taxi at row {i}.\n{MENU.text}Action:\n" for i in range(4)]


def reflector_row(state: str, words: str, history: tuple[str, ...] = PAST) -> Row:
    """Return an SFT row of the reflector with ``words`` as its target."""
    return Row("reflector", Prompt("", history, "Reflection:", state=f"{state}\n"), words, "t", 0, False)


def policy_row(state: str, label: str, menu: Menu = MENU, history: tuple[str, ...] = PAST) -> Row:
    """Return an SFT row of the policy with ``label`` as its target."""
    prompt = Prompt("", history, f"{menu.text}Action:\n", menu, state=f"{state}\n")
    return Row("policy", prompt, label, "t", 0, False)


def tiny(kind: str, vocabulary: int, size: int = 32, max_length: int = MAX_LENGTH) -> PreTrainedModel:
    """Return a GPT-2 (tied head, Conv1D) or a Llama (untied head, Linear) without dropout."""
    shape = {"vocab_size": vocabulary, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "gpt2":
            still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
            return GPT2LMHeadModel(
                GPT2Config(n_positions=max_length, n_embd=size, n_layer=1, n_head=2, **shape, **still)
            )
        small = {"hidden_size": size, "intermediate_size": 2 * size, "num_hidden_layers": 1}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": max_length}
        return LlamaForCausalLM(LlamaConfig(**small, **heads, **shape))


MARKS = ("<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<bos>")
"""Special tokens of chat templates."""
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_tiny(
    kind: str, folder: Path, *, size: int = 32, max_length: int = MAX_LENGTH, template: str | None = None
) -> ModelSection:
    """Save a tiny model with a tokenizer, maybe with a chat template, and return the section that loads it."""
    tokenizer = train_tokenizer(CORPUS, LABELS, pieces="phrases", vocabulary=400, max_length=max_length)
    if template is not None:
        tokenizer.add_special_tokens(
            {"additional_special_tokens": [AddedToken(mark, normalized=False, special=True) for mark in MARKS]}
        )
        tokenizer.chat_template = template
    save_model(LanguageModel(tiny(kind, len(tokenizer), size, max_length), tokenizer), folder)
    return ModelSection(name=str(folder), max_length=max_length)


def logits(lm: LanguageModel) -> torch.Tensor:
    """Return the (T, V) logits of a fixed text."""
    ids = torch.tensor([lm.tokenizer(CORPUS[0])["input_ids"]])
    with torch.no_grad():
        return lm.model.eval()(ids).logits[0].float()
