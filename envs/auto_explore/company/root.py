"""The three files of the root: what the company is, how it writes, and whom to ask."""

from __future__ import annotations

import random

from reflectrl.envs.auto_explore.company.catalog import DEPARTMENTS
from reflectrl.envs.auto_explore.company.plan import Size
from reflectrl.envs.auto_explore.company.words import COLLEAGUES

_HANDBOOK = """\
# Handbook

Whoever writes here keeps to one page for each place, drink or program, and names the file after it.
Names of files and folders are one word in lower case.
Whatever is not written down is not agreed.
"""


def root_files(size: Size, rng: random.Random) -> dict[str, str]:
    """Their texts by name."""
    lines = []
    for department in DEPARTMENTS:
        topics = ", ".join(topic.name for topic in department.topics[: size.topics])
        lines.append(f"- {department.own.name}: its own files, and {topics}\n")
    readme = (
        "# Kestrel Coffee\n\nKestrel roasts coffee, sells it and writes everything down in this repository. "
        "A folder holds files of one kind: policies, tables or code.\n\n"
    )
    rows = (
        f"{department.own.name},{rng.choice(COLLEAGUES)},{rng.randint(1, 9)},{rng.randint(101, 999)}\n"
        for department in DEPARTMENTS
    )
    return {
        "README.md": readme + "".join(lines),
        "directory.csv": "department,head,floor,extension\n" + "".join(rows),
        "handbook.md": _HANDBOOK,
    }
