"""What mkdocs does beside Markdown: pages made from the code, README's tables, drawings that follow the theme."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from api_pages import API, api_page
from command_page import command_page
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from recipe_pages import reference_page, shipped_page

ROOT = Path(__file__).parents[2]
README = re.compile(r"^<!-- readme (\w+) -->$", re.MULTILINE)
DRAWING = re.compile(r'<img alt="([^"]*)" src="(images/[\w-]+\.svg)" ?/?>')
SVG = "http://www.w3.org/2000/svg"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from the code, so that they cannot say something else."""
    made = {
        "recipe-keys.md": reference_page(),
        "shipped-recipes.md": shipped_page(),
        "commands.md": command_page(),
        **{f"api-{name}.md": api_page(name) for name in API},
    }
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put what README has between ``<!-- NAME -->`` and ``<!-- end -->`` where a page says ``<!-- readme NAME -->``."""
    return README.sub(lambda found: from_readme(found[1]), markdown)


def from_readme(name: str) -> str:
    """A marked part of README or of the benchmarks' README: numbers stand in one place.

    Raises:
        PluginError: neither has such a part.

    """
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "benchmarks/README.md"))
    part = re.search(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->)", text, re.DOTALL)
    if part is None:
        raise PluginError(
            f"README.md and benchmarks/README.md have no part {name!r}; mark it with <!-- {name} --> and <!-- end -->."
        )
    return part[0]


def on_page_content(html: str, **_: Any) -> str:
    """Put drawings into the page itself, where their colours follow the reader's choice of light and dark."""
    return DRAWING.sub(lambda found: drawing(ROOT / "docs" / found[2], found[1]), html)


def drawing(path: Path, words: str) -> str:
    """An SVG file as a part of a page; ``words`` (as HTML) say what it shows to those who cannot see it."""
    ElementTree.register_namespace("", SVG)
    root = ElementTree.parse(path).getroot()
    return (
        f'<div class="drawing" role="img" aria-label="{words}">{ElementTree.tostring(root, encoding="unicode")}</div>'
    )
