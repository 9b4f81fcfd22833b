"""What pyproject.toml cannot say: on a package index, the README's links into the repository lead nowhere."""

import re
from pathlib import Path

from setuptools import setup

LINK = r"(!?)\[([^\]]*)\]\((?!https?:)[^)]*\)"
readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
setup(
    long_description=re.sub(LINK, lambda link: "" if link[1] else link[2], readme),
    long_description_content_type="text/markdown",
)
