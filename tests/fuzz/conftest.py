from __future__ import annotations

import tempfile

from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

set_hypothesis_home_dir(tempfile.gettempdir())
settings.register_profile(
    "fuzz", derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck), max_examples=35
)
settings.load_profile("fuzz")
