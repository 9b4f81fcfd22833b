from __future__ import annotations

import random

import pytest
import torch
from tiny import gpt2, language_model

from reflectrl.engine.prefix_cache import PrefixCache
from reflectrl.engine.sequences import padded

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request):
    return language_model(request.param)


@pytest.fixture(scope="module")
def talker():
    """Which model does not matter to what is tested with this one."""
    return language_model("gpt2", seed=3)


def slots(**options):
    return PrefixCache(CPU, torch.float32, **options)


def words(seed, count):
    return tuple(random.Random(seed).choices(range(2, 60), k=count))


def ends(model, inputs):
    """(N, D) hidden states of what the sequences end in."""
    with torch.no_grad():
        hidden = model.base_model(
            input_ids=inputs.input_ids, use_cache="past_key_values" in inputs.extra, **inputs.extra
        )
    return hidden.last_hidden_state.flatten(0, 1)[inputs.last]


def alone(model, rows):
    return torch.cat([ends(model, padded([row], CPU)) for row in rows])


def through(model, held, rows, first=0):
    """What ``rows`` end in when they are read into ``held``, and the size of each forward pass."""
    found = torch.full_like(alone(model, rows), torch.nan)
    shapes = []
    for indices, inputs in held.read(rows, first):
        states = ends(model, inputs)
        shapes.append(tuple(inputs.input_ids.shape))
        if indices:
            found[indices] = states
    return found, shapes


def assert_read_right(model, held, rows, first=0):
    found, shapes = through(model, held, rows, first)
    torch.testing.assert_close(found, alone(model, rows), rtol=1e-5, atol=1e-5)
    return shapes


def computed(model, held, rows):
    """How many tokens the model reads for ``rows``, which come out right."""
    before = held.computed
    assert_read_right(model, held, rows)
    return held.computed - before


# ---- the same states as from scratch ---------------------------------------------------------------------------------


def episodes(seed, steps, most):
    """Batches of sequences: some grow, some part from what they were, some end, others begin; all under 100 tokens."""
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


@pytest.mark.parametrize("limit", [256, 3])
@pytest.mark.parametrize("seed", range(2))
def test_sequences_end_as_if_read_from_their_beginning(model, seed, limit):
    held = slots(limit=limit)
    for rows in episodes(seed, steps=10, most=7):
        shapes = assert_read_right(model, held, rows)
        assert max(count for count, _ in shapes) <= limit
    assert held.computed < 0.7 * held.given


def test_equal_sequences_and_sequences_of_one_token_are_read_right(model):
    held = slots()
    row = words(0, 20)
    for rows in ([row, row, row], [row], [row, row + (5,), row + (5,)], [(4,), (4,), row], [(4,)]):
        assert_read_right(model, held, rows)


def test_a_slot_is_added_for_each_sequence_too_many(talker):
    held = slots(limit=2)
    for count in (1, 5, 3, 8):
        assert_read_right(talker, held, [words(seed, 10) for seed in range(count)])
    assert held.count == 8


# ---- what need not be read again -------------------------------------------------------------------------------------


def test_a_sequence_that_grows_is_read_on_from_where_it_was(talker):
    held = slots()
    rows = [words(seed, 20) for seed in range(3)]
    assert computed(talker, held, rows) == 60
    grown = [row + words(9, 1 + number) for number, row in enumerate(rows)]
    assert computed(talker, held, grown[::-1]) == 1 + 2 + 3
    assert (held.given, held.computed) == (126, 66)


def test_a_sequence_that_parts_from_what_is_held_is_read_from_there(talker):
    held = slots()
    row = words(0, 30)
    computed(talker, held, [row])
    assert computed(talker, held, [row[:22] + (60, 61, 62)]) == 3
    assert computed(talker, held, [row]) == 8  # what was there before is gone


def test_of_a_beginning_of_what_is_held_only_the_end_is_read(talker):
    held = slots()
    row = words(0, 40)
    computed(talker, held, [row])
    assert computed(talker, held, [row]) == 1
    assert computed(talker, held, [row[:20]]) == 1
    assert computed(talker, held, [row]) == 20


def test_what_all_new_sequences_begin_with_is_read_once_by_itself(talker):
    stem, held = words(0, 30), slots()
    rows = [stem + (60 + number, 7) for number in range(4)]
    found, shapes = through(talker, held, rows)
    torch.testing.assert_close(found, alone(talker, rows), rtol=1e-5, atol=1e-5)
    assert shapes == [(1, 30), (4, 2)]
    assert (held.given, held.computed) == (4 * 32, 30 + 4 * 2)


def test_states_are_copied_from_another_slot_that_knows_more(talker):
    held = slots()
    row, other = words(0, 40), words(1, 40)
    computed(talker, held, [row, other])
    # one goes on where it was, three more begin with the same: nothing but their ends is read
    assert computed(talker, held, [row + (60 + number,) for number in range(4)] + [other + (60,)]) == 5
    assert held.count == 5
    assert computed(talker, held, [row + (60 + number, 9) for number in range(4)]) == 4


def test_slots_are_copied_all_at_once(talker):
    """A slot that is overwritten gives what it knew before."""
    held = slots()
    one, two = words(1, 40), words(2, 40)
    computed(talker, held, [one, two])
    assert computed(talker, held, [two + (3,), two + (4,), one + (3,), one + (4,)]) == 4
    assert computed(talker, held, [one + (4, 5), two + (4, 5), one + (3, 5), two + (3, 5)]) == 4


def test_a_long_newcomer_does_not_make_the_others_wait_in_padding(talker):
    held = slots()
    rows = [words(seed, 20) for seed in range(4)]
    assert_read_right(talker, held, rows)
    shapes = assert_read_right(talker, held, [*[row + (5,) for row in rows], words(9, 60)])
    assert sorted(shapes) == [(1, 60), (4, 1)]


def test_cleared_slots_follow_the_new_weights():
    model = gpt2(0, spread=0.2).eval()
    held = slots()
    rows = [words(seed, 20) for seed in range(2)]
    assert computed(model, held, rows) == 40
    model.load_state_dict(gpt2(1, spread=0.2).state_dict())
    longer = [row + (5,) for row in rows]
    stale, _ = through(model, held, longer)
    assert (stale - alone(model, longer)).abs().max() > 0.01  # without it, the states of the old weights are used
    held.clear()
    assert computed(model, held, longer) == 42
    assert held.count == 2


# ---- for a decoder ---------------------------------------------------------------------------------------------------


def read_in_order(model, held, rows, first=0):
    """Read; the sequences, by slot."""
    lying = []
    for indices, inputs in held.read(rows, first):
        ends(model, inputs)
        lying += [rows[index] for index in indices]
    return lying


def extended(model, held, lying, tokens):
    """One more token each: right, and one pass of one column."""
    lying = [(*row, token) for row, token in zip(lying, tokens, strict=True)]
    inputs = held.extend(tokens)
    assert inputs.input_ids.shape == (len(lying), 1)
    torch.testing.assert_close(ends(model, inputs), alone(model, lying), rtol=1e-5, atol=1e-5)
    return lying


def test_sequences_are_extended_token_by_token(model):
    held = slots()
    lying = read_in_order(model, held, [words(seed, 10 + 7 * seed) for seed in range(4)])
    before = held.computed
    for step in range(9):
        lying = extended(model, held, lying, [10 + step + slot for slot in range(4)])
    assert held.computed - before == 9 * 4


def test_kept_slots_come_to_lie_in_front_and_go_on(model):
    held = slots()
    lying = read_in_order(model, held, [words(seed, 10 + seed) for seed in range(5)])
    for kept in ([4, 1, 3], [0, 2], [1]):
        order = held.keep(kept)
        assert sorted(order) == sorted(kept)
        lying = extended(model, held, [lying[slot] for slot in order], range(10, 10 + len(kept)))
    assert held.keep([]) == []
    assert held.count == 5


def test_what_is_read_behind_others_leaves_them_alone(model):
    held = slots()
    stem = words(0, 30)
    lying = read_in_order(model, held, [stem + (60,), words(1, 12)])
    before = held.computed
    lying += read_in_order(model, held, [stem + (61, 62), words(2, 33)], first=2)
    assert held.computed - before == 2 + 33  # it copies from them all the same
    for step in range(3):
        lying = extended(model, held, lying, [10 + step + slot for slot in range(4)])
    order = held.keep([3, 1])
    lying = [lying[slot] for slot in order]
    lying += read_in_order(model, held, [words(4, 5)], first=2)
    extended(model, held, lying, [5, 6, 7])


def test_what_left_the_front_is_still_known(talker):
    held = slots()
    lying = read_in_order(talker, held, [words(seed, 20) for seed in range(3)])
    order = held.keep([2])
    extended(talker, held, [lying[slot] for slot in order], [5])
    assert computed(talker, held, [lying[0] + (9,), lying[1] + (9,), words(2, 20) + (5, 9)]) == 3
