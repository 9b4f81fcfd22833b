"""The path of the README from a clone to a watched run, as the script that times it reads it."""

from __future__ import annotations

from first_hour import README, read_section


def test_the_path_of_the_readme_has_at_most_ten_commands() -> None:
    section = read_section(README.read_text(encoding="utf-8"))
    commands = ["git clone", *section.commands, section.elsewhere]
    assert len([part for line in commands for part in line.split("&&")]) <= 10
    assert f"class {section.run}(" in section.code
    assert section.file == f"{section.run.lower()}.py"
