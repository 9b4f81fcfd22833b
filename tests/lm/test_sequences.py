"""Prefix trees contain each prefix once, and give the same states and gradients as separate sequences."""

from __future__ import annotations

import random

import pytest
import torch
from tiny import language_model, shaken, token_ids

from reflectrl.lm.adapters import add_lora
from reflectrl.lm.head import next_logits
from reflectrl.lm.section import LoraSection
from reflectrl.lm.seeding import seeded
from reflectrl.lm.sequences import make_tree, padded, read_tree, shares_enough, split

pytestmark = pytest.mark.numerical

BRANCHES = [(1, 6), (1, 2, 3, 5), (7,), (1, 2), (1, 2, 3, 4), (1, 2, 3, 5)]
"""Unordered sequences: a prefix of another, two that differ late, two equal ones, one that differs early or at once."""


def walks(seed, count=12, longest=24):
    """Return sequences that extend one another, as the prompts of episodes do; some are equal."""
    rng = random.Random(seed)
    rows = [tuple(rng.choices(range(2, 60), k=6))]
    while len(rows) < count:
        stem = rng.choice(rows)
        kept = stem[: rng.randint(1, len(stem))]
        rows.append(kept + tuple(rng.choices(range(2, 60), k=rng.randint(0, longest - len(kept)))))
    return rows


LONG = [(*token_ids(0, 50), *row, *token_ids(number, 7 * number)) for number, row in enumerate(walks(0, 7))]
"""Sequences for several chunks of path attention, of which the last is not full."""


# ---- trees -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [BRANCHES, *(walks(seed) for seed in range(3))])
def test_tokens_of_a_tree_attend_to_their_own_sequence(rows):
    tree = make_tree(rows)
    sees = [[j for j in range(i + 1) if i < tree.exits[j]] for i in range(len(tree.tokens))]
    for row, end in zip(rows, tree.ends, strict=True):
        path = sees[end]
        assert tuple(tree.tokens[path]) == row
        assert tree.positions[path].tolist() == list(range(len(row)))
        assert [sees[place] for place in path] == [path[:length] for length in range(1, len(path) + 1)]
    beginnings = {row[:length] for row in rows for length in range(1, len(row) + 1)}
    assert len(tree.tokens) == len(beginnings) < sum(map(len, rows))


def test_sequences_without_branches_are_left_to_causal_attention():
    inputs = read_tree([(1, 2, 3)] * 2, language_model("gpt2"))
    assert (inputs.input_ids.tolist(), inputs.last.tolist(), inputs.extra) == ([[1, 2, 3]], [2, 2], {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("path_attention", [True, False])
def test_masks_are_numbers_to_add_of_the_models_type(path_attention, dtype):
    inputs = read_tree(BRANCHES, language_model("gpt2").to(dtype), path_attention=path_attention)
    assert inputs.input_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert inputs.extra["position_ids"].tolist() == [[0, 1, 2, 3, 3, 1, 0]]
    assert inputs.last.tolist() == [5, 4, 6, 1, 3, 4]
    mask = inputs.extra["paths"].mask if path_attention else inputs.extra["attention_mask"]
    # never booleans, since eager attention would add True as 1.0 without an error
    assert (mask.dtype, set(mask.flatten().tolist())) == (dtype, {0.0, torch.finfo(dtype).min})


def test_masks_of_path_attention_grow_linearly():
    model = language_model("gpt2")
    rows = [(*token_ids(0, 60), *token_ids(number, 30)) for number in range(80)]
    few, many = (read_tree(rows[:count], model).extra["paths"].mask for count in (20, 80))
    assert few.size(-1) <= many.size(-1) <= 60 + 30 + 64 + 7
    assert many.numel() < 5.5 * few.numel()


# ---- states and gradients --------------------------------------------------------------------------------------------


def trained(architecture, lora, kernel):
    """Return a model in float64, where rounding hides no error, and its trained weights."""
    model = base = language_model(architecture).double()
    base.set_attn_implementation(kernel)
    if lora:
        with seeded(0):
            model = shaken(add_lora(base, LoraSection(r=4), []), "lora_B").double()
    return base, {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def read_with_gradients(base, weights, inputs):
    base.zero_grad()
    logits = next_logits(base, inputs)
    logits.log_softmax(-1)[:, ::7].sum().backward()
    return logits.detach(), {name: weight.grad for name, weight in weights.items() if weight.grad is not None}


@pytest.mark.parametrize("path_attention", [True, False])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize(
    ("architecture", "kernel"),
    [
        ("gpt2", "sdpa"),
        ("gpt2", "eager"),
        ("llama", "sdpa"),
        ("qwen2", "sdpa"),
        ("mistral", "sdpa"),
        ("gemma2", "eager"),
    ],
)
def test_a_tree_gives_the_logits_and_gradients_of_padded_rows(architecture, kernel, lora, path_attention):
    base, weights = trained(architecture, lora, kernel)
    expected, slopes = read_with_gradients(base, weights, padded(LONG, base.device))
    tree = read_tree(LONG, base, path_attention=path_attention)
    assert not path_attention or tree.extra["paths"].mask.size(0) > 2
    found, gradients = read_with_gradients(base, weights, tree)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # Gemma rounds its softmax to float32
    assert gradients.keys() == slopes.keys() != set()
    for name, slope in slopes.items():
        assert (gradients[name] - slope).norm() < 1e-5 * slope.norm() + 1e-9, name
    assert base.config._attn_implementation == kernel


# ---- dividing an update ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("tokens", [1, 30, 80, 100_000])
def test_every_sequence_is_read_once_in_passes_within_their_tokens(tokens, trees):
    rows = [*walks(0, 30), *walks(1, 10), *walks(0, 3)]
    parts = [[rows[index] for index in part] for part in split(rows, tokens=tokens, trees=trees)]
    assert sorted(row for part in parts for row in part) == sorted(rows)
    assert sum(len(set(part)) for part in parts) == len(set(rows))
    for part in parts:
        longest = max(map(len, part))
        size = len(make_tree(part).tokens) if trees else longest * len(set(part))
        assert size <= max(tokens, longest)
    if tokens == 100_000:
        assert len(parts) == 1


def test_trees_hold_neighbours_and_padded_rows_those_of_similar_length():
    rows = walks(0, 40)
    neighbours = [rows[index] for part in split(rows, tokens=60, trees=True) for index in part]
    assert neighbours == sorted(rows)
    lengths = [len(rows[index]) for part in split(rows, tokens=60, trees=False) for index in part]
    assert lengths == sorted(lengths)
    equal = [(number,) * 5 for number in range(10)]
    assert [len(part) for part in split(equal, tokens=20, trees=False)] == [4, 4, 2]


def test_trees_are_made_where_what_is_shared_costs_more_than_their_attention():
    def pair(shared):
        return [(*token_ids(0, shared), *token_ids(number, 130 - shared)) for number in (1, 2)]

    assert [shares_enough(pair(shared), 64) for shared in (0, 30, 80)] == [False, False, True]
    assert [shares_enough(pair(shared), 768) for shared in (0, 30, 80)] == [False, True, True]
