from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from tiny import encoder, language_model, reflector_prompt

from reflectrl.engine.decode import Decoder, Sampler
from reflectrl.engine.prefix_cache import PrefixCache

ROWS = [encoder().tokens(reflector_prompt(number, past=number % 4)) for number in range(8)]
LENGTH = 12


@pytest.fixture(scope="module", params=["gpt2", "llama", "granite"])
def model(request):
    return language_model(request.param)


@pytest.fixture(scope="module")
def talker():
    """Which model does not matter to what is tested with this one."""
    return language_model("gpt2", seed=3)


def slots(**options):
    return PrefixCache(torch.device("cpu"), torch.float32, **options)


def draws(count, seed=0):
    rng = random.Random(seed)
    return [rng.random() for _ in range(count)]


GREEDY = Sampler([], temperature=0.0)


def written(model, rows=ROWS, *, held=None, ends=(), sampler=GREEDY, limit=LENGTH):
    return Decoder(model, held or slots(), ends, limit).write(rows, sampler)


def generated(model, row, ends=(), limit=LENGTH):
    """What ``model.generate`` says to one sequence alone, without the token that ends it."""
    ids = torch.tensor([row])
    with torch.no_grad():
        said = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=limit,
            do_sample=False,
            eos_token_id=list(ends) or [-1],
        )[0, len(row) :].tolist()
    return said[:-1] if said[-1] in ends else said


def varied_ends(said):
    """Tokens at which some of the texts end early, at different places, and others never."""
    return [said[0][5], said[1][8]]


# ---- greedy ----------------------------------------------------------------------------------------------------------


def test_greedy_texts_are_those_of_generate_token_by_token(model):
    said = written(model)
    assert said == [generated(model, row) for row in ROWS]
    assert len(set(map(tuple, said))) > 1


@pytest.mark.parametrize("limit", [256, 3, 1])
def test_any_of_several_end_tokens_ends_a_text_and_is_not_part_of_it(model, limit):
    ends = varied_ends(written(model))
    said = written(model, held=slots(limit=limit), ends=ends)
    assert said == [generated(model, row, ends) for row in ROWS]
    assert len(set(map(len, said))) > 1
    assert not any(token in ends for text in said for token in text)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_text_is_at_most_as_long_as_the_limit(talker, limit):
    assert written(talker, limit=limit) == [generated(talker, row, limit=limit) for row in ROWS]


# ---- waiting ---------------------------------------------------------------------------------------------------------


class Passes:
    """Shapes of what a model reads while it is watched."""

    def __init__(self, model):
        self._model = model
        self.shapes = []

    def __enter__(self):
        self._hook = self._model.register_forward_pre_hook(
            lambda _, __, given: self.shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
        )
        return self

    def __exit__(self, *_):
        self._hook.remove()


def test_a_text_that_ends_leaves_at_once(talker):
    ends = varied_ends(written(talker))
    with Passes(talker) as passes:
        said = written(talker, ends=ends)
    # each token of a text was written in a row of its own, and so was the one that ended it
    asked = sum(len(text) + (len(text) < LENGTH) for text in said)
    singles = [count for count, width in passes.shapes if width == 1]
    assert sum(singles) == asked - len(ROWS)
    assert singles == sorted(singles, reverse=True)
    assert singles[0] > singles[-1]


def test_a_waiting_sequence_takes_the_place_of_one_that_ended(talker):
    ends = varied_ends(written(talker))
    with Passes(talker) as passes:
        said = written(talker, held=slots(limit=3), ends=ends)
    assert max(count for count, _ in passes.shapes) <= 3
    steps = [len(text) + (len(text) < LENGTH) for text in said]
    # in three waves, each would last as long as the longest text of the wave
    waves = sum(max(steps[start : start + 3]) - 1 for start in range(0, len(steps), 3))
    assert sum(width == 1 for _, width in passes.shapes) < waves


# ---- sampled ---------------------------------------------------------------------------------------------------------


def test_sampled_texts_do_not_depend_on_batch_limit_order_or_what_was_held(model):
    given = draws(len(ROWS))

    def sampled(order=tuple(range(8)), **options):
        sampler = Sampler([given[index] for index in order], temperature=1.0)
        said = written(model, [ROWS[index] for index in order], sampler=sampler, **options)
        return dict(zip(order, said, strict=True))

    expected = sampled()
    assert len(set(map(tuple, expected.values()))) > 4
    ends = [expected[0][4], expected[1][2]]
    ending = sampled(ends=ends)
    assert len(set(map(len, ending.values()))) > 1
    held = slots(limit=3)
    for _ in range(2):
        assert sampled(held=held) == expected
        assert sampled(held=held, ends=ends, order=range(7, -1, -1)) == ending
    assert {index: sampled(order=[index], held=held)[index] for index in range(len(ROWS))} == expected


def test_equal_sequences_are_sampled_each_by_its_own_draw(talker):
    given = draws(6)
    together = written(talker, [ROWS[0]] * 6, sampler=Sampler(given, 1.0))
    assert together == [written(talker, [ROWS[0]], sampler=Sampler([draw], 1.0))[0] for draw in given]
    assert len(set(map(tuple, together))) > 3


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_samples_follow_the_softmax_at_the_temperature(temperature):
    logits = torch.tensor([2.0, -1.0, 0.5, 1.0, -torch.inf])
    count = 4000
    found = Counter(Sampler(draws(count), temperature).choose(logits.expand(count, -1), range(count)))
    for token, share in enumerate((logits / temperature).softmax(-1).tolist()):
        assert abs(found[token] / count - share) <= 4 * (share * (1 - share) / count) ** 0.5


def test_a_sample_is_where_the_cumulative_distribution_passes_the_next_draw_of_its_sequence():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    given = draws(5)
    rngs = [random.Random(draw) for draw in given]
    sampler = Sampler(given, 1.0)
    for sequences in ([0, 1, 2], [4, 2, 0], [0], [3, 1]):
        cumulative = logits[: len(sequences)].softmax(-1).double().cumsum(-1)
        points = [rngs[sequence].random() for sequence in sequences]
        expected = [int((row <= point * row[-1]).sum()) for row, point in zip(cumulative, points, strict=True)]
        assert sampler.choose(logits[: len(sequences)], sequences) == expected


def test_a_token_of_probability_zero_is_never_sampled():
    logits = torch.full((500, 6), -torch.inf)
    logits[:, [2, 4]] = 0.0
    assert set(Sampler(draws(500), 1.0).choose(logits, range(500))) == {2, 4}


def test_without_temperature_the_most_probable_token_is_taken_and_no_draw_is_used():
    logits = torch.tensor([[0.0, 3.0, 1.0], [9.0, 3.0, 1.0]])
    assert GREEDY.choose(logits, [7, 3]) == [1, 0]


# ---- what was read before --------------------------------------------------------------------------------------------


def test_a_second_call_reads_only_what_is_new(talker):
    held = slots()
    said = written(talker, held=held)
    first = held.computed
    assert written(talker, held=held) == said
    # one token of each prompt, to begin with, and each token that is written but the last
    assert held.computed - first == len(ROWS) * LENGTH
    before = held.computed
    longer = [(*row, 5, 9) for row in ROWS]
    assert written(talker, longer, held=held) == [generated(talker, row) for row in longer]
    assert held.computed - before == len(ROWS) * (LENGTH + 1)


def test_a_prompt_that_goes_on_from_what_was_written_reuses_that_too(talker):
    held = slots()
    said = written(talker, held=held)
    before = held.computed
    longer = [(*row, *text, 9) for row, text in zip(ROWS, said, strict=True)]
    written(talker, longer, held=held, limit=1)
    assert held.computed - before == len(ROWS) * 2  # the last token that was said, and the new one
