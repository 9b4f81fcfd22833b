"""RLFT's learning rate decays to a fraction of its start: linearly, or by half a cosine as in RL4VLM."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tiny_rlft import run

from reflectrl.config.training import Stage

ITERATIONS = 4
FALLEN = {"linear": lambda done: done, "cosine": lambda done: (1 - math.cos(math.pi * done)) / 2}
"""Share of the decay after a share of the updates."""


@pytest.mark.parametrize("schedule", FALLEN)
def test_the_learning_rate_of_each_update_is_that_of_the_schedule(tmp_path: Path, schedule: str) -> None:
    options = {"learning_rate": 1e-2, "learning_rate_end": 0.2, "learning_rate_schedule": schedule}
    done = run(tmp_path, stages=[Stage("main", ITERATIONS, env={"size": 6})], **options).train()
    expected = [1e-2 * (1 - 0.8 * FALLEN[schedule](update / ITERATIONS)) for update in range(ITERATIONS)]
    assert [each.learning_rate for each in done.iterations] == pytest.approx(expected)
