from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

# the benchmarks are scripts, which import each other from their folder
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

set_hypothesis_home_dir(tempfile.gettempdir())
settings.register_profile(
    "fuzz", derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck), max_examples=35
)
settings.load_profile("fuzz")
