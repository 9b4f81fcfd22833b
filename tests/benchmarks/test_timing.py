"""Contenders are timed in turns, memory is a fresh process's, and work is counted on a CPU too."""

from __future__ import annotations

import math
import time
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from timing import Times, flops, matmul, memory_growth, peak_memory, race, ratio_table, share_of_peak, times_as_fast

MEGABYTE = 2**20


def test_contenders_take_turns_and_the_first_round_is_forgotten():
    heard = []
    times = race({"a": lambda: heard.append("a"), "b": lambda: heard.append("b")}, rounds=3)
    assert heard == ["a", "b"] * 4
    assert [len(took.wall) for took in times.values()] == [3, 3]


def test_waiting_takes_wall_seconds_only():
    times = race({"wait": lambda: time.sleep(0.05), "work": lambda: math.factorial(20_000)}, rounds=1)
    assert times["wait"].seconds >= 0.05
    assert times["wait"].processor[0] < 0.02
    assert times["work"].processor[0] > 0


def test_ratios_are_taken_within_a_round():
    # a slow minute of the machine that hit one round of both is in neither ratio
    times = {"plain": Times((2.0, 20.0, 2.0), (2.0, 2.0, 2.0)), "engine": Times((1.0, 10.0, 0.5), (1.0, 1.0, 1.0))}
    assert times_as_fast(times, "engine", "plain") == 2.0
    text = ratio_table(times, than="plain")
    assert "| engine | 1e+03 (500 to 1e+04) |" in text
    assert text.splitlines()[-1].endswith("**2.00** |")


def test_memory_grows_by_what_is_held_at_the_peak_only():
    def one_after_the_other():
        torch.ones(64 * MEGABYTE // 4)
        torch.ones(48 * MEGABYTE // 4)

    assert 60 * MEGABYTE < memory_growth(one_after_the_other) < 80 * MEGABYTE
    assert 28 * MEGABYTE < memory_growth(lambda: torch.ones(32 * MEGABYTE // 4)) < 48 * MEGABYTE, "a peak of its own"


def test_what_was_loaded_before_does_not_count():
    # a call of builtins only, because another process imports it
    prepare = partial(getattr, bytearray(64 * MEGABYTE), "copy")
    assert 60 * MEGABYTE < peak_memory(prepare) < 100 * MEGABYTE


def test_products_and_attention_are_counted():
    left, right = torch.ones(3, 5), torch.ones(5, 7)
    assert flops(lambda: left @ right) == 2 * 3 * 5 * 7
    heads = torch.ones(1, 2, 16, 8, requires_grad=True)

    def forward():
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)

    products = 2 * (2 * 16 * 16 * 8)  # of both heads: queries by keys; weights by values are as many
    with torch.no_grad():
        assert flops(forward) == 2 * products
    assert flops(lambda: forward().sum().backward()) == (2 + 5) * products


def test_the_large_product_is_the_measure():
    call, work = matmul(64)
    assert flops(call) == work
    assert float(call()[0, 0]) == pytest.approx(64.0)
    assert share_of_peak(10, 2.0, 100, 10.0) == pytest.approx(0.5)
