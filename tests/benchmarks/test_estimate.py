"""The estimate of an iteration beside one that is measured."""

from __future__ import annotations

import pytest
from estimate import compare

from reflectrl.config import load_recipe


@pytest.mark.slow
def test_the_estimate_is_about_what_is_measured():
    lines = compare("nano", load_recipe("dangerous_taxi/nano", ["rlft.episodes=16"]))
    assert [line[1] for line in lines] == ["reflect", "act", "update", "iteration"]
    estimated, measured = map(float, lines[-1][2:4])
    assert 1 / 3 < estimated / measured < 3  # beside other work; benchmarks/README.md has it without
