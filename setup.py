"""What pyproject.toml cannot say: the README on a package index, which has no files beside it, and is no clone."""

import re
from pathlib import Path

from setuptools import setup

LINK = r"(!?)\[([^\]]*)\]\((?!https?:)[^)]*\)"
INSTALL = """\
`pip install reflectrl`, with Python 3.11 or newer; an extra is named in brackets: `pip install 'reflectrl[serve]'`. The
commands of `make` are for a clone of the repository.
"""
readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
linked = re.sub(r"(?<=\n## Install\n\n).*?(?=\n## )", lambda _: INSTALL, readme, flags=re.DOTALL)
setup(
    long_description=re.sub(LINK, lambda link: "" if link[1] else link[2], linked),
    long_description_content_type="text/markdown",
)
