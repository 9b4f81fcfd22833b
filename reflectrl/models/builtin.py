"""``builtin/nano``: a small GPT-2, written once as an ordinary model folder, so that everything runs offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import GPT2Config, GPT2LMHeadModel

from reflectrl.config.model import ModelSection
from reflectrl.engine.seeding import seeded
from reflectrl.models.load import BUILTIN, LanguageModel, save_model
from reflectrl.models.tokenizer import train_tokenizer


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
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=section.max_length,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        activation_function="relu",  # a fifth of the step time of GPT-2's own at this size
        # dropout would make the probabilities that sampling and training see differ
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with seeded(seed):
        model = GPT2LMHeadModel(config)
    save_model(LanguageModel(model, tokenizer), folder)
    return section.model_copy(update={"name": str(folder)})
