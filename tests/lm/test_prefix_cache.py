"""Cached states equal those computed again, and no more tokens are computed than necessary."""

from __future__ import annotations

import random

import pytest
import torch
from tiny import language_model, prefix_cache, token_ids

from reflectrl.lm.sequences import padded

pytestmark = pytest.mark.numerical

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def talker():
    return language_model("gpt2", seed=3)


@torch.no_grad()
def ends(model, inputs):
    """Return the (N, D) hidden states of the last tokens of the sequences."""
    hidden = model.base_model(input_ids=inputs.input_ids, use_cache="past_key_values" in inputs.extra, **inputs.extra)
    return hidden.last_hidden_state.flatten(0, 1)[inputs.last]


def alone(model, rows):
    return torch.cat([ends(model, padded([row], CPU)) for row in rows])


def through(model, held, rows):
    """Read ``rows`` with the cache ``held``; returns their (N, D) last states, and the size of each forward pass."""
    found = torch.full_like(alone(model, rows), torch.nan)
    shapes = []
    for indices, inputs in held.read(rows):
        states = ends(model, inputs)
        shapes.append(tuple(inputs.input_ids.shape))
        if indices:
            found[indices] = states
    return found, shapes


def assert_read_right(model, held, rows):
    found, shapes = through(model, held, rows)
    torch.testing.assert_close(found, alone(model, rows), rtol=1e-5, atol=1e-5)
    return shapes


def computed(model, held, rows):
    """Check the states of ``rows``, and return the number of tokens that the model computes for them."""
    before = held.computed
    assert_read_right(model, held, rows)
    return held.computed - before


# ---- the same states as from scratch ---------------------------------------------------------------------------------


def episodes(seed, steps, most):
    """Yield batches of sequences of which some grow, change, end or begin; all have fewer than 100 tokens."""
    rng = random.Random(seed)
    instructions = tuple(rng.choices(range(2, 60), k=24))
    alive: list[tuple[int, ...]] = []
    for _ in range(steps):
        alive = [row for row in alive if rng.random() < 0.85]
        for place, row in enumerate(alive):
            kept = len(row) if rng.random() < 0.6 else rng.randint(1, len(row))
            alive[place] = row[: min(kept, 90)] + tuple(rng.choices(range(2, 60), k=rng.randint(0, 9)))
        while len(alive) < rng.randint(1, most):
            stem = instructions if rng.random() < 0.8 else ()
            alive.append(stem + tuple(rng.choices(range(2, 60), k=rng.randint(1, 30))))
        rng.shuffle(alive)
        yield list(dict.fromkeys(alive))


@pytest.mark.parametrize(("architecture", "limit"), [("gpt2", 256), ("llama", 256), ("llama", 3)])
def test_sequences_end_as_if_read_from_their_beginning(architecture, limit):
    model, held = language_model(architecture), prefix_cache(limit=limit)
    for rows in episodes(limit, steps=12, most=7):
        shapes = assert_read_right(model, held, rows)
        assert max(count for count, _ in shapes) <= limit
    assert held.computed < 0.7 * held.given


def test_equal_sequences_single_tokens_and_more_sequences_than_before_are_read_right(talker):
    held = prefix_cache(limit=2)
    row = token_ids(0, 20)
    for rows in ([row] * 3, [row], [row, row + (5,), row + (5,)], [(4,), (4,), row], [(4,)]):
        assert_read_right(talker, held, rows)
    for count in (5, 3, 8):
        assert_read_right(talker, held, [token_ids(seed, 10) for seed in range(count)])
    assert held.count == 8


# ---- no more is computed than necessary ------------------------------------------------------------------------------


def test_a_sequence_is_read_from_where_it_goes_on_or_parts(talker):
    held = prefix_cache()
    rows = [token_ids(seed, 20) for seed in range(3)]
    assert computed(talker, held, rows) == 60
    grown = [row + token_ids(9, 1 + number) for number, row in enumerate(rows)]
    assert computed(talker, held, grown[::-1]) == 1 + 2 + 3
    assert (held.given, held.computed) == (126, 66)
    held.clear()
    row = token_ids(0, 40)
    assert computed(talker, held, [row]) == 40
    assert computed(talker, held, [row]) == 1
    assert computed(talker, held, [row[:32] + (60, 61, 62)]) == 3
    assert computed(talker, held, [row]) == 8  # the end of it was overwritten
    assert computed(talker, held, [row[:20]]) == 1
    assert computed(talker, held, [row]) == 20


def test_a_common_beginning_is_read_once_and_a_long_newcomer_by_itself(talker):
    held, stem = prefix_cache(), token_ids(0, 30)
    assert assert_read_right(talker, held, [stem + (60 + number, 7) for number in range(4)]) == [(1, 30), (4, 2)]
    assert (held.given, held.computed) == (4 * 32, 30 + 4 * 2)
    grown = [stem + (60 + number, 7, 5) for number in range(4)]
    assert sorted(assert_read_right(talker, held, [*grown, token_ids(9, 60)])) == [(1, 60), (4, 1)]


def test_states_are_copied_from_another_slot(talker):
    held = prefix_cache()
    row, other = token_ids(0, 40), token_ids(1, 40)
    computed(talker, held, [row, other])
    # one is continued, three more have the same prefix: only their last tokens are computed
    assert computed(talker, held, [row + (60 + number,) for number in range(4)] + [other + (60,)]) == 5
    assert held.count == 5
    assert computed(talker, held, [row + (60 + number, 9) for number in range(4)]) == 4
    held.clear()
    computed(talker, held, [row, other])
    # states are copied from a slot before it is overwritten
    assert computed(talker, held, [other + (3,), other + (4,), row + (3,), row + (4,)]) == 4
    assert computed(talker, held, [row + (4, 5), other + (4, 5), row + (3, 5), other + (3, 5)]) == 4


# ---- for a decoder ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_sequences_are_extended_left_out_and_joined_by_others(architecture):
    model, held, lying = language_model(architecture), prefix_cache(), []

    def begin(*rows):
        for indices, inputs in held.read(rows, len(lying)):
            ends(model, inputs)
            lying.extend(rows[index] for index in indices)

    def extend():
        """Append one token to each sequence in one pass of one column, and check the states."""
        tokens = [10 + len(row) % 40 + slot for slot, row in enumerate(lying)]
        lying[:] = [(*row, token) for row, token in zip(lying, tokens, strict=True)]
        inputs = held.extend([[token] for token in tokens])
        assert inputs.input_ids.shape == (len(lying), 1)
        torch.testing.assert_close(ends(model, inputs), alone(model, lying), rtol=1e-5, atol=1e-5)

    def several(counts):
        """Append some tokens to each sequence, and check the states."""
        grown = [row + token_ids(count, count + 1) for row, count in zip(lying, counts, strict=True)]
        parts = [
            row[: len(old) + 1 + n] for old, row in zip(lying, grown, strict=True) for n in range(len(row) - len(old))
        ]
        inputs = held.extend([row[len(old) :] for old, row in zip(lying, grown, strict=True)])
        torch.testing.assert_close(ends(model, inputs), alone(model, parts), rtol=1e-5, atol=1e-5)
        lying[:] = grown

    def keep(*slots):
        order = held.keep(slots)
        assert sorted(order) == sorted(slots)
        lying[:] = [lying[slot] for slot in order]

    stem = token_ids(0, 30)
    begin(stem + (60,), token_ids(1, 12))
    before = held.computed
    begin(stem + (61, 62), token_ids(2, 33))
    assert held.computed - before == 2 + 33  # copied from an earlier slot, which stays unchanged
    for _ in range(9):
        extend()
    assert held.computed - before == 2 + 33 + 9 * 4
    left = lying[0]
    keep(3, 1)
    extend()
    several([3, 1])
    extend()
    several([0, 2])
    extend()
    begin(token_ids(4, 5))
    extend()
    keep(1)
    extend()
    held.keep([])
    assert held.count == 4
    assert computed(model, held, [left + (9,), lying[0] + (9,)]) == 2  # what was dropped first is still cached
