"""What mkdocs does beside Markdown: pages made from the code, the results, drawings that follow the theme."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from api_pages import API, api_page
from causes_page import causes_list
from command_page import command_page
from env_pages import env_pages
from mkdocs.structure.files import File
from recipe_pages import reference_pages, shipped_page

ROOT = Path(__file__).parents[2]
RESULTS = re.compile(r"\]\((?:\.\./benchmarks/results/)?(learning|siblings|engine)\.md")
DRAWING = re.compile(r'<img alt="([^"]*)" src="(images/[\w-]+\.svg)" ?/?>')
SVG = "http://www.w3.org/2000/svg"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from the code, so that they cannot say something else, and those of the results."""
    made = {
        **reference_pages(),
        "shipped-recipes.md": shipped_page(),
        "commands.md": command_page(),
        **{f"api-{name}.md": api_page(name) for name in API},
        **env_pages(),
        **{
            f"results-{path.stem}.md": path.read_text(encoding="utf-8")
            for path in (ROOT / "benchmarks" / "results").glob("*.md")
        },
    }
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to the results to their pages of the site, and list the causes of a low success on theirs."""
    listed = f"\n\n{causes_list()}" if page.file.src_uri == "troubleshooting.md" else ""
    return RESULTS.sub(r"](results-\1.md", markdown) + listed


def on_page_content(html: str, **_: Any) -> str:
    """Put drawings into the page itself, where their colours follow the reader's choice of light and dark.

    An empty corner of a table is no heading, which a screen reader would announce.
    """
    html = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)
    return DRAWING.sub(lambda found: drawing(ROOT / "docs" / found[2], found[1]), html)


def drawing(path: Path, words: str) -> str:
    """An SVG file as a part of a page; ``words`` (as HTML) say what it shows to those who cannot see it."""
    ElementTree.register_namespace("", SVG)
    root = ElementTree.parse(path).getroot()
    return (
        f'<div class="drawing" role="img" aria-label="{words}">{ElementTree.tostring(root, encoding="unicode")}</div>'
    )
