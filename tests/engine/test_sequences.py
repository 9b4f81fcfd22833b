"""Prefix trees hold each beginning once, and their division costs least."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from tiny import language_model

from reflectrl.engine.sequences import attention_break_even_tokens, make_tree, packed, read, split

CPU = torch.device("cpu")
BRANCHES = [(1, 2), (1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 5), (1, 6), (7,)]
"""Lexicographic order: a beginning of another, two that part late, equal ones, one that parts early, one apart."""


def walks(seed, count=12, longest=24):
    """Sequences that grow out of one another, as the prompts of episodes do; some are equal."""
    rng = random.Random(seed)
    rows = [tuple(rng.choices(range(2, 60), k=6))]
    while len(rows) < count:
        stem = rng.choice(rows)
        kept = stem[: rng.randint(1, len(stem))]
        rows.append(kept + tuple(rng.choices(range(2, 60), k=rng.randint(0, longest - len(kept)))))
    return rows


# ---- trees -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [BRANCHES, *(sorted(walks(seed)) for seed in range(3))])
def test_each_token_of_a_tree_sees_its_own_sequence_up_to_itself_and_is_there_once(rows):
    tree = make_tree(rows)
    for index, row in enumerate(rows):
        path = tree.sees[tree.ends[index]].nonzero()[0].tolist()
        assert tuple(tree.tokens[place] for place in path) == row
        assert [tree.positions[place] for place in path] == list(range(len(row)))
        for length, place in enumerate(path, 1):
            assert tree.sees[place].nonzero()[0].tolist() == path[:length]
    beginnings = {row[:length] for row in rows for length in range(1, len(row) + 1)}
    assert len(tree.tokens) == len(beginnings) < sum(map(len, rows))


# ---- forward passes --------------------------------------------------------------------------------------------------


def test_trees_of_a_pass_are_rows_whose_padding_sees_and_is_seen_by_itself_alone():
    trees = [make_tree(BRANCHES), make_tree([(8, 9), (8, 9, 3)])]
    for dtype in (torch.float32, torch.bfloat16):
        inputs = packed(trees, CPU, dtype)
        assert inputs.input_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 3, 0, 0, 0, 0]]
        assert inputs.extra["position_ids"].tolist() == [[0, 1, 2, 3, 3, 1, 0], [0, 1, 2, 0, 0, 0, 0]]
        assert inputs.last.tolist() == [1, 3, 4, 4, 5, 6, 7 + 1, 7 + 2]
        mask = inputs.extra["attention_mask"]
        # numbers to add and never booleans: eager attention would add True as 1.0 and carry on
        assert (mask.dtype, set(mask.flatten().tolist())) == (dtype, {0.0, torch.finfo(dtype).min})
        assert mask.shape == (2, 1, 7, 7)
        sees = mask[:, 0] == 0
        assert sees[0].tolist() == trees[0].sees.tolist()
        assert sees[1, :3, :3].tolist() == trees[1].sees.tolist()
        assert sees[1, 3:].tolist() == torch.eye(7, dtype=torch.bool)[3:].tolist()
        assert not sees[1, :3, 3:].any()


def test_a_pass_without_branches_is_left_to_causal_attention_over_distinct_rows():
    inputs = read([(1, 2, 3), (4,), (1, 2, 3)], [[0, 2], [1]], CPU, torch.float32)
    assert inputs.input_ids.tolist() == [[1, 2, 3], [4, 4, 4]]
    assert inputs.last.tolist() == [2, 2, 3]
    assert inputs.extra == {}
    assert "attention_mask" in read([(1, 2), (1, 3)], [[0, 1]], CPU, torch.float32).extra


# ---- dividing an update ----------------------------------------------------------------------------------------------


def size(rows, tree):
    return len(make_tree([rows[index] for index in tree]).tokens)


def cost(sizes, square):
    return sum(tokens * (square + tokens) for tokens in sizes)


def divisions(rows):
    """All ways to cut distinct sequences, in lexicographic order, into trees."""
    for cuts in itertools.product([False, True], repeat=len(rows) - 1):
        bounds = [0, *(place for place, cut in enumerate(cuts, 1) if cut), len(rows)]
        yield [rows[start:stop] for start, stop in itertools.pairwise(bounds)]


@pytest.mark.parametrize("square", [None, 0.0, 50.0, 1000.0])
@pytest.mark.parametrize("tokens", [1, 30, 80, 100_000])
def test_every_sequence_is_read_once_in_passes_within_their_tokens(tokens, square):
    rows = [*walks(0, 30), *walks(1, 10), *walks(0, 3)]
    parts = list(split(rows, tokens=tokens, square=square))
    trees = [tree for part in parts for tree in part]
    assert sorted(index for tree in trees for index in tree) == list(range(len(rows)))
    assert len({(rows[index], number) for number, tree in enumerate(trees) for index in tree}) == len(set(rows))
    for tree in trees:
        assert [rows[index] for index in tree] == sorted(rows[index] for index in tree)
    for part in parts:
        alone = len(part) == 1 and len({rows[index] for index in part[0]}) == 1
        assert alone or len(part) * max(size(rows, tree) for tree in part) <= tokens


@pytest.mark.parametrize("tokens", [20, 45, 100_000])
@pytest.mark.parametrize("square", [0.0, 30.0, 192.0])
def test_no_other_division_into_trees_costs_less(square, tokens):
    rows = walks(0, count=9)
    parts = split(rows, tokens=tokens, square=square)
    found = cost([size(rows, tree) for part in parts for tree in part], square)
    possible = []
    for division in divisions(sorted(set(rows))):
        sizes = [len(make_tree(group).tokens) for group in division]
        if all(total <= tokens or len(group) == 1 for total, group in zip(sizes, division, strict=True)):
            possible.append(cost(sizes, square))
    assert found == min(possible)
    assert len(possible) > 1


def test_trees_grow_with_the_width_of_the_model():
    counts = [sum(map(len, split(walks(3, 30), tokens=100_000, square=square))) for square in (20.0, 200.0, 100_000.0)]
    assert counts[0] > counts[1] >= counts[2]
    assert attention_break_even_tokens(language_model("llama")) == pytest.approx(72 / 14 * 32)


def test_without_trees_passes_are_filled_with_sequences_of_similar_length():
    rows = walks(0, 40)
    parts = list(split(rows, tokens=60, square=None))
    lengths = [len(rows[tree[0]]) for part in parts for tree in part]
    assert len(lengths) == len(set(rows))
    assert lengths == sorted(lengths)
    equal = [(number,) * 5 for number in range(10)]
    assert [len(part) for part in split(equal, tokens=20, square=None)] == [4, 4, 2]


@pytest.mark.parametrize(("count", "trees"), [(512, 1), (513, 2)])
def test_a_tree_has_at_most_512_different_sequences(count, trees):
    rows = [(1, 2, 3 + index // 40, 3 + index % 40) for index in range(count)]
    (part,) = split([*rows, rows[0]], tokens=10**9, square=1e9)
    assert len(part) == trees
    assert max(len({rows[index % count] for index in tree}) for tree in part) <= 512
