"""Texts equal those of transformers' ``generate``, or depend on their own draws, whatever is in the same batch."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from tiny import draws, encoder, language_model, prefix_cache, reflector_prompt

from reflectrl.lm.decode import Sampler, chosen, write

pytestmark = pytest.mark.numerical

ROWS = [encoder().tokens(reflector_prompt(number, past=number % 4)) for number in range(8)]
LENGTH = 12
GIVEN = draws(len(ROWS))
GREEDY = Sampler([], temperature=0.0)


@pytest.fixture(scope="module")
def talker():
    return language_model("gpt2", seed=4)


def written(model, rows=ROWS, *, held=None, ends=(), sampler=GREEDY, limit=LENGTH):
    return write(model, held or prefix_cache(), rows, sampler, ends=ends, limit=limit)


def generated(model, row, limit=LENGTH):
    """Return the tokens that ``model.generate`` writes after one sequence alone."""
    ids = torch.tensor([row])
    options = {"max_new_tokens": limit, "do_sample": False, "eos_token_id": -1}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(row) :].tolist()


def ended(said):
    """Return end tokens with which some texts end early at different places, and the texts up to there."""
    ends = {said[0][5], said[1][8]}
    return ends, [text[: next((at for at, token in enumerate(text) if token in ends), None)] for text in said]


# ---- greedy ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2", "granite"])
def test_greedy_texts_are_those_of_generate_token_by_token(architecture):
    model = language_model(architecture)
    whole = [generated(model, row) for row in ROWS]
    assert len(set(map(tuple, whole))) > 1
    ends, expected = ended(whole)
    assert len(set(map(len, expected))) > 1
    for side_by_side in (256, 3, 1):
        assert written(model, held=prefix_cache(limit=side_by_side)) == whole
        assert written(model, held=prefix_cache(limit=side_by_side), ends=ends) == expected
    for limit in (1, 5):
        assert written(model, limit=limit) == [text[:limit] for text in whole]


def test_a_waiting_text_takes_the_place_of_one_that_ends(talker):
    ends, _ = ended(written(talker))
    shapes: list[tuple[int, int]] = []
    hook = talker.register_forward_pre_hook(
        lambda _, __, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    steps = [len(text) + (len(text) < LENGTH) for text in written(talker, ends=ends)]
    singles = [count for count, width in shapes if width == 1]
    assert sum(singles) == sum(steps) - len(ROWS)  # the first tokens come from the prompts
    assert singles == sorted(singles, reverse=True)
    assert singles[0] > singles[-1]
    shapes.clear()
    written(talker, held=prefix_cache(limit=3), ends=ends)
    hook.remove()
    assert max(count for count, _ in shapes) <= 3
    # in three waves, each would last as long as the longest text of the wave
    waves = sum(max(steps[start : start + 3]) - 1 for start in range(0, len(steps), 3))
    assert sum(width == 1 for _, width in shapes) < waves


# ---- sampled ---------------------------------------------------------------------------------------------------------


def test_sampled_texts_depend_on_their_draw_alone(talker):
    rows, given = [*ROWS, ROWS[0]], draws(len(ROWS) + 1)

    def sampled(order=tuple(range(9)), **options):
        sampler = Sampler([given[index] for index in order], temperature=1.0)
        said = written(talker, [rows[index] for index in order], sampler=sampler, **options)
        return dict(zip(order, said, strict=True))

    expected = sampled()
    assert len(set(map(tuple, expected.values()))) > 4
    assert expected[0] != expected[8]  # equal sequences, each with its own draw
    ends = [expected[0][4], expected[1][2]]
    ending = sampled(ends=ends)
    assert len(set(map(len, ending.values()))) > 1
    held = prefix_cache(limit=3)
    for _ in range(2):
        assert sampled(held=held) == expected
        assert sampled(held=held, ends=ends, order=range(8, -1, -1)) == ending
    assert {index: sampled(order=[index], held=held)[index] for index in range(len(rows))} == expected


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_samples_invert_the_cumulative_distribution(temperature):
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    logits[:, ::2] = -torch.inf
    given = draws(200)
    rngs = [random.Random(draw) for draw in given]
    sampler = Sampler(given, temperature)
    numbers: Counter[int] = Counter()
    found = set()
    for sequences in ([0, 1, 2], [4, 2, 0], [0], *([number] for number in range(200))):
        cumulative = (logits[: len(sequences)] / temperature).softmax(-1).double().cumsum(-1)
        points = [rngs[sequence].random() for sequence in sequences]
        expected = [int((row <= point * row[-1]).sum()) for row, point in zip(cumulative, points, strict=True)]
        places = [(sequence, numbers[sequence]) for sequence in sequences]
        numbers.update(sequences)
        for _ in range(2):  # each place has its own draw, however often a token is chosen there
            assert sampler.choose(logits[: len(sequences)], places) == expected
        found |= set(expected)
    assert len(found) > 10
    assert all(token % 2 for token in found)  # never one of probability zero


@pytest.mark.parametrize("vocabulary", [500, 4097, 9000])
def test_ten_thousand_samples_are_those_of_a_sum_over_the_whole_vocabulary(vocabulary):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, vocabulary, generator=generator) * torch.linspace(0.1, 9, 50)[:, None]
    logits[::2, ::3] = -torch.inf
    cumulative = (logits.log_softmax(-1).exp().double() * 2**40).long().cumsum(-1)
    for given in torch.rand(200, 50, generator=generator, dtype=torch.double):
        tokens, logprobs = chosen(logits, given, 1.0)
        points = (given * cumulative[:, -1]).long()
        assert tokens.tolist() == torch.searchsorted(cumulative, points[:, None], right=True)[:, 0].tolist()
        assert torch.equal(logprobs, logits.log_softmax(-1)[range(50), tokens])


def test_the_lowest_draw_is_no_token_of_probability_zero():
    class Lowest(Sampler):
        def draw(self, sequence, number):  # noqa: ARG002 - the lowest number that a generator may return
            return 0.0

    assert Lowest([0.5], 1.0).choose(torch.tensor([[-torch.inf, -torch.inf, 0.0, 0.0]]), [(0, 0)]) == [2]
