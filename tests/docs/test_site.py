"""The documentation site: it builds without a warning, asks for nothing from elsewhere, and leaves nothing out."""

from __future__ import annotations

import fcntl
import html
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

import reflectrl
from reflectrl.cli.app import app
from reflectrl.config import recipe_names
from reflectrl.config.schema import Recipe
from reflectrl.core.settings import settings_fields

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "docs" / "site" / "mkdocs.yml"
ROOMS = sorted(
    path.parent.name for path in (ROOT / "reflectrl").glob("*/__init__.py") if "__all__" in path.read_text("utf-8")
)
"""Those that say what they offer."""


def mkdocs(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """A strict build."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the one build of a test session said and wrote, shared with the other test processes."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = shared / "site.json"
        if not told.exists():
            done = mkdocs(CONFIG, shared / "site")
            said = {"code": done.returncode, "said": done.stdout + done.stderr}
            told.write_text(json.dumps(said), encoding="utf-8")
    return {**json.loads(told.read_text(encoding="utf-8")), "folder": shared / "site"}


@pytest.fixture(scope="module")
def pages(built: dict[str, Any]) -> dict[str, str]:
    """HTML of every page, by name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in built["folder"].glob("*.html")}


class Sources(HTMLParser):
    """What a browser fetches for a page by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.found += [given[name] for name in ("src", "srcset", "data", "poster") if name in given]
        if tag == "link":
            self.found.append(given.get("href", ""))
        self.found += re.findall(r"url\(['\"]?([^)'\"]+)", given.get("style", ""))


def words(text: str) -> str:
    """What a page says, without its marks."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split())


def held(annotation: Any) -> Iterator[tuple[type, bool]]:
    """The sections in a type, and whether many of them."""
    if isinstance(annotation, type) and hasattr(annotation, "__pydantic_fields__"):
        yield annotation, False
    for inner in get_args(annotation):
        for section, many in held(inner):
            yield section, many or getattr(annotation, "__origin__", None) is list


def keys(section: type = Recipe, path: str = "") -> Iterator[tuple[str, str]]:
    """Every key of the schema, with what the schema says of it."""
    for name, field in settings_fields(section).items():
        yield path + name, field.description or ""
        for below, many in held(field.annotation):
            yield from keys(below, f"{path}{name}.{'N.' if many else ''}")


def commands(command: Any, name: str = "reflectrl") -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its whole name."""
    below = getattr(command, "commands", {})
    if not below:
        yield name, command
    for inner in below.values():
        yield from commands(inner, f"{name} {inner.name}")


def test_the_strict_build_passes_without_a_warning(built):
    assert built["code"] == 0, built["said"]
    assert "WARNING" not in built["said"]


def test_no_page_fetches_anything_from_elsewhere(pages):
    assert len(pages) > 20
    for name, text in pages.items():
        found = Sources(text).found
        assert found, name
        assert [source for source in found if re.match(r"\w+:|//", source) and not source.startswith("data:")] == []


def test_styles_fetch_nothing_from_elsewhere(built):
    sheets = list(built["folder"].rglob("*.css"))
    assert sheets
    for sheet in sheets:
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", text), sheet.name


def test_what_counts_as_a_source_is_seen():
    text = "<script src='https://a.b/c.js'></script><link href='//d.e/f.css'><p style='background: url(http://g.h/i)'>"
    assert Sources(text).found == ["https://a.b/c.js", "//d.e/f.css", "http://g.h/i"]


def test_every_recipe_key_is_there_with_its_documentation(pages):
    page, found = pages["recipe-keys"], dict(keys())
    said = words(page)
    assert {"rlft.stages.N.iterations", "players.policy.endpoint.price.cached", "reflector_model.lora.r"} <= set(found)
    assert [key for key in found if f'id="{key}"' not in page] == []
    assert [key for key, text in found.items() if not text or words(text.replace("``", "")) not in said] == []


def test_values_are_told_with_their_limits_and_defaults(pages):
    said = words(pages["recipe-keys"])
    for values in (
        "number (above 0), default 0.2",
        "whole number (at least 1) or null, default null",
        "expert or openai",
    ):
        assert f". {values}" in said


def test_every_shipped_recipe_is_listed(pages):
    assert [name for name in recipe_names() if f"<code>{name}</code>" not in pages["shipped-recipes"]] == []


def test_every_command_is_there_with_its_options(pages):
    said = words(pages["commands"])
    found = dict(commands(typer.main.get_command(app)))
    assert {"reflectrl run", "reflectrl recipes ls", "reflectrl doctor"} <= set(found)
    for name, command in found.items():
        assert name in said
        assert f'id="{name.removeprefix("reflectrl ").replace(" ", "-")}"' in pages["commands"]
        assert " ".join((command.help or "").split()) in said
        options = [name for param in command.params for name in param.opts if name.startswith("--")]
        assert [option for option in options if option not in said] == []


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_has_its_docstring_on_the_site(pages, room):
    module = importlib.import_module(f"reflectrl.{room}")
    known = set().union(*(re.findall(r'id="(reflectrl\.[\w.]+)"', text) for text in pages.values()))
    offered = {name: getattr(module, name) for name in module.__all__ if callable(getattr(module, name))}
    places = {name: {f"reflectrl.{room}.{name}", f"{given.__module__}.{name}"} for name, given in offered.items()}
    assert places
    assert [name for name, where in places.items() if not where & known] == []


def test_what_reflectrl_itself_offers_has_its_docstring_on_the_site(pages):
    known = set().union(*(re.findall(r'id="(reflectrl\.[\w.]+)"', text) for text in pages.values()))
    offered = [getattr(reflectrl, name) for name in reflectrl.__all__ if name != "__version__"]
    rooms = [(given.__module__, given.__module__.rpartition(".")[0], given.__name__) for given in offered]
    assert [name for module, room, name in rooms if not {f"{module}.{name}", f"{room}.{name}"} & known] == []


@pytest.mark.parametrize("page", ["index", "concepts"])
def test_drawings_are_in_the_page_and_said_in_words(pages, page):
    assert re.search(r'<div class="drawing" role="img" aria-label="[^"]{40,}"><svg', pages[page])
    assert 'src="images/players.svg"' not in pages[page]


def test_measured_tables_are_those_of_the_benchmarks(pages):
    said = words(pages["results"])
    readme = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for name in ("dangerous_taxi_short", "dangerous_taxi", "auto_explore", "alfworld"):
        part = readme.partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0]
        row = [cell.strip(" *`") for cell in part.strip().splitlines()[-1].split("|") if cell.strip(" *`")]
        assert " ".join(row).replace("**", "") in said
    assert "@article{zhou2024reflectrl," in words(pages["citation"])


def build_of(tmp_path: Path, text: str, hooks: str = "[]") -> subprocess.CompletedProcess[str]:
    """A build of one page with the site's settings."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n{text}\n", encoding="utf-8")
    settings = f"INHERIT: {CONFIG}\ndocs_dir: docs\nsite_dir: out\nextra_css: []\nplugins: [search]\nhooks: {hooks}\n"
    (tmp_path / "mkdocs.yml").write_text(f"{settings}nav: [index.md]\n", encoding="utf-8")
    return mkdocs(tmp_path / "mkdocs.yml", tmp_path / "out")


def test_links_and_pictures_that_lead_nowhere_fail_the_build(tmp_path):
    done = build_of(tmp_path, "[a](nowhere.md) [b](#nothing) [c](/away.html) ![d](images/none.png)")
    assert done.returncode != 0
    assert [wrong for wrong in ("nowhere.md", "#nothing", "/away.html", "none.png") if wrong not in done.stderr] == []


def test_a_part_that_the_readme_has_not_fails_the_build(tmp_path):
    done = build_of(tmp_path, "<!-- readme nothing -->", f"[{CONFIG.with_name('hooks.py')}]")
    assert done.returncode != 0
    assert "have no part 'nothing'" in done.stderr
