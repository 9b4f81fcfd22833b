"""The parts of the GPU benchmark, small and on the CPU."""

from __future__ import annotations

import warnings

import gpu
import pytest
from arms import ENGINE, LEARNING, published_rows
from engine_sides import effort


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(effort, "quick", True)


def test_every_model_has_its_true_shape_and_its_row_on_the_page(monkeypatch):
    monkeypatch.setattr(effort, "quick", False)
    shapes = {name: gpu.shape(name) for name in gpu.MODELS}
    assert {name: (shape.num_hidden_layers, shape.hidden_size) for name, shape in shapes.items()} == {
        "gpt2_xl": (48, 1600),
        "smollm2": (30, 576),
        "mistral_7b": (32, 4096),
    }
    assert {row["model"] for row in published_rows(ENGINE, "gpu_iterations")} == {*gpu.MODELS}
    trained = {row["task"] for row in published_rows(LEARNING, "pretrained") if row["on"] == "GPU"}
    assert trained == {name.removeprefix("pretrained_") for name in gpu.LEARNED}


def rows(text):
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


@pytest.mark.slow
def test_a_model_plays_and_learns_on_all_sides():
    *_, text = gpu.PARTS["mistral_7b"]()
    assert text.startswith("The engine's logits are those of plain rows.")
    found = {cells[2]: cells for cells in rows(text) if cells[0] == "2"}
    assert set(found) == set(gpu.PARTS_OF_AN_ITERATION)
    parts = [float(found[part][5]) for part in ("reflect", "act", "update")]
    assert float(found["iteration"][5]) == pytest.approx(sum(parts), rel=0.02)
    passes = (gpu.STEPS + 1) / (2 * gpu.STEPS)  # one a step for both episodes, and one for their common prefix
    assert float(found["act"][8]) == pytest.approx(passes, abs=0.005)
    assert all(float(cells[1]) > 0 for cells in rows(text)[-4:])  # operations a second


@pytest.mark.slow
def test_the_operators_of_an_iteration_are_counted():
    (text,) = gpu.syncs()
    operators = {(side, part): int(count.replace(",", "")) for side, part, _, count in rows(text)[1:9]}
    for side in ("batched", "ours"):
        parts = [operators[side, part] for part in ("reflect", "act", "update")]
        assert operators[side, "iteration"] == pytest.approx(sum(parts), abs=2)
        assert min(parts) > 50


def test_only_warnings_of_a_wait_are_counted_as_waits():
    with gpu.waits() as seen:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert [wait.filename for wait in seen] == [__file__] * 3


def test_an_iteration_is_read_part_by_part():
    ticks = iter([0, 2, 10, 15, 20, 21])

    def side(part):
        for name in ("act", "update", "act"):
            with part(name):
                pass

    assert gpu.measured(side, lambda: next(ticks)) == [{"act": 3, "update": 5, "iteration": 8}]
