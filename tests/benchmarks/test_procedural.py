import random

import procedural
import pytest
import torch


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_what_is_asked_was_said_before_in_the_text(level):
    for length in procedural.LENGTHS:
        tokens, asked = procedural.batch(random.Random(length), length, level)
        assert tokens.shape == asked.shape == (max(8, procedural.TOKENS // length), length)
        assert asked.any()
        for text, flags in zip(tokens.tolist(), asked.tolist(), strict=True):
            for at, flag in enumerate(flags):
                assert not flag or text[at] in text[:at]


def test_the_same_seed_makes_the_same_texts():
    one, two = (procedural.batch(random.Random(0), 64, 0.5) for _ in range(2))
    assert all(torch.equal(*each) for each in zip(one, two, strict=True))


@pytest.mark.slow
def test_blocks_learn_from_the_texts():
    random_blocks, trained = (procedural.pretrained(1, 16, 2, minutes) for minutes in (1e-9, 0.05))
    assert torch.isfinite(trained.transformer.h[0].attn.c_attn.weight).all()
    before, after = (model.transformer.wpe.weight for model in (random_blocks, trained))
    assert before.shape == after.shape == (procedural.POSITIONS, 16)
    assert not torch.equal(before, after)
