"""The README's Python is run and its numbers are checked; its commands are parsed by ``tests/cli/test_readme.py``."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_environment_of_the_readme_passes_check_env_in_forty_lines():
    (block,) = BLOCKS
    assert "check_env(Vault())" in block
    assert len([line for line in block.splitlines() if line.strip()]) <= 40
    exec(compile(block, "README.md", "exec"), {})


def test_the_measured_tables_are_the_benchmark_s_own():
    shown = README.partition("<!-- dangerous_taxi -->\n")[2].partition("<!-- end -->")[0].strip()
    assert shown
    assert shown in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
