"""The path of the README from a clone to a watched run, as the script that times it reads it."""

from __future__ import annotations

from first_hour import README, read_section

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
