"""The parts of the GPU benchmark, small and on the CPU."""

from __future__ import annotations

import gpu
import pytest
import torch
from arms import ENGINE, LEARNING, published_rows
from engine_sides import effort
from transformers import AutoModelForCausalLM

from reflectrl.lm.adapters import add_lora
from reflectrl.lm.section import LoraSection
from reflectrl.pipeline.estimate import memory_of


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


def test_the_memory_in_the_docs_is_that_of_the_shapes(monkeypatch):
    monkeypatch.setattr(effort, "quick", False)
    names = {"smollm2": "135M", "gpt2_xl": "1.5B", "mistral_7b": "7B"}
    expected = []
    for name, title in names.items():
        for trained, dtype in (("all", torch.float32), ("LoRA", torch.bfloat16)):
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(gpu.shape(name), dtype=dtype)
                model = model if trained == "all" else add_lora(model, LoraSection(r=64), [])
            alone, *shared = (memory_of(model, 64 * 1024, processes) for processes in (1, 2, 8))
            sizes = [
                alone.weights,
                alone.gradients,
                alone.optimizer,
                *(each.optimizer for each in shared),
                alone.states,
            ]
            expected.append([f"{title}, {trained}", *(f"{size / 1e9:.2g}" for size in sizes)])
    page = (gpu.HERE.parent / "docs" / "scaling.md").read_text()
    found = [line.strip("|").split("|") for line in page.splitlines()]
    assert [cells for cells in found if cells[0].startswith((*names.values(),))] == expected


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


def test_an_iteration_is_read_part_by_part():
    ticks = iter([0, 2, 10, 15, 20, 21])

    def side(part):
        for name in ("act", "update", "act"):
            with part(name):
                pass

    assert gpu.measured(side, lambda: next(ticks)) == [{"act": 3, "update": 5, "iteration": 8}]
