"""The path of the README from a clone to a watched run, as the script that times it reads it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from first_hour import README, read_section, terminal, wait_until

TEXT = """
## Your own environment

```python
print("lift")
```

With the class in `lift.py`, type:

```bash
make install
reflectrl train lift:Lift --minutes 3
.venv/bin/reflectrl watch    # in another terminal, while it trains
```

## More
"""


def test_commands_for_another_terminal_are_told_apart() -> None:
    section = read_section(TEXT)
    assert (section.file, section.code, section.run) == ("lift.py", 'print("lift")\n', "Lift")
    assert section.commands == ("make install", "reflectrl train lift:Lift --minutes 3")
    assert section.elsewhere == ".venv/bin/reflectrl watch"


def test_the_path_of_the_readme_has_at_most_ten_commands() -> None:
    section = read_section(README.read_text(encoding="utf-8"))
    commands = ["git clone", *section.commands, section.elsewhere]
    assert len([part for line in commands for part in line.split("&&")]) <= 10
    assert f"class {section.run}(" in section.code
    assert section.file == f"{section.run.lower()}.py"


def test_a_command_that_fails_ends_the_path(tmp_path: Path) -> None:
    with (
        terminal(tmp_path, "echo 1 >first", "false", "echo 2 >second") as shell,
        pytest.raises(SystemExit, match="run"),
    ):
        wait_until((tmp_path / "second").is_file, shell, "the run")
    assert (tmp_path / "first").is_file()


@pytest.mark.slow
def test_what_a_terminal_has_started_ends_with_it(tmp_path: Path) -> None:
    program = "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(600)"
    with terminal(tmp_path, f'{sys.executable} -c "{program}"', "echo done") as shell:
        wait_until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text(), shell, "the beginning")
    child = int((tmp_path / "pid").read_text())
    assert child != shell.pid
    end = time.monotonic() + 60
    while working(child):
        assert time.monotonic() < end
        time.sleep(0.05)


def working(process: int) -> bool:
    """Return whether a process is there, and not only waits to be forgotten."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
