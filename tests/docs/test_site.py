"""The documentation site builds without warnings, loads nothing from other sites, and is complete."""

from __future__ import annotations

import html
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main
from arms import LEARNING, published_rows
from chromium import chromium
from filelock import FileLock

import reflectrl
from reflectrl.cli.app import app
from reflectrl.config import recipe_names
from reflectrl.config.schema import Recipe
from reflectrl.core.registry import env_class, env_names, env_path
from reflectrl.core.settings import descriptions, settings_fields
from reflectrl.report.causes import KNOWN

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "docs" / "site" / "mkdocs.yml"
BUILT_IN = [env for env in env_names() if (env_path(env) or "").startswith("reflectrl.envs.")]


def mkdocs(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build the site strictly, so that a warning is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once per test session and shared by all test processes."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    with FileLock(shared / "site.lock"):
        if not (shared / "site").exists():
            done = mkdocs(CONFIG, shared / "site")
            said = done.stdout + done.stderr
            assert (done.returncode, "WARNING" in said) == (0, False), said
    return shared / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, str]:
    """The HTML of every page by its name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in site.glob("*.html")}


def fetched(text: str) -> list[str]:
    """Return the addresses that a browser fetches automatically for a page or a style sheet."""
    found = re.findall(r"""url\(["']?([^)"']+)""", text)
    for tag in re.findall(r"<[^>]+>", text):
        wanted = "href" if tag.startswith("<link") else "src|srcset|poster|data"
        found += re.findall(rf"""\s(?:{wanted})=["']([^"']+)""", tag)
    return found


def words(text: str) -> str:
    """Return the text of a page without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split())


def held(annotation: Any) -> Iterator[tuple[type, bool]]:
    """Yield the sections in a type, with True for those in a list."""
    if isinstance(annotation, type) and hasattr(annotation, "__pydantic_fields__"):
        yield annotation, False
    for inner in get_args(annotation):
        for section, many in held(inner):
            yield section, many or getattr(annotation, "__origin__", None) is list


def keys(section: type = Recipe, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every key of the schema with its description."""
    said = descriptions(section)
    for name, field in settings_fields(section).items():
        yield path + name, said[name]
        for below, many in held(field.annotation):
            yield from keys(below, f"{path}{name}.{'N.' if many else ''}")


def commands(command: Any, name: str = "reflectrl") -> Iterator[tuple[str, Any]]:
    """Yield every command without subcommands by its full name."""
    below = getattr(command, "commands", {})
    if not below:
        yield name, command
    for inner in below.values():
        yield from commands(inner, f"{name} {inner.name}")


def test_the_site_builds_without_a_warning_and_fetches_nothing_from_elsewhere(site, pages):
    text = "<script src='https://a.b/c.js'></script><link href='//d.e/f.css'><p style='background: url(http://g.h/i)'>"
    assert fetched(text) == ["http://g.h/i", "https://a.b/c.js", "//d.e/f.css"]
    assert len(pages) > 20
    assert [name for name, text in pages.items() if not fetched(text)] == []
    for path in (*site.glob("*.html"), *site.rglob("*.css")):
        found = fetched(path.read_text(encoding="utf-8"))
        assert [each for each in found if re.match(r"\w+:|//", each) and not each.startswith("data:")] == [], path.name
        assert path.suffix != ".css" or "@import" not in path.read_text(encoding="utf-8")


def test_every_recipe_and_recipe_key_is_there_with_its_documentation(pages):
    about = [text for name, text in pages.items() if name == "recipe-keys" or name.startswith("keys-")]
    page, found = "\n".join(about), dict(keys())
    said = words(page)
    assert {"rlft.lessons.N.iterations", "reflector_model.lora.r"} <= set(found)
    assert [key for key in found if f'id="{key}"' not in page] == []
    for text in about:
        ids = re.findall(r' id="([^"]+)"', text)
        assert len(ids) == len(set(ids))
    assert 'id="rlft.gamma"' in pages["keys-rlft"]
    for kind in ("gae", "none", "batch", "leave_one_out", "group", "step_group"):
        assert f"rlft.advantage of kind {kind}" in said
    assert [key for key, text in found.items() if not text or words(text.replace("``", "")) not in said] == []
    for values in (
        "number (above 0), default 0.2",
        "whole number (at least 1) or null, default null",
        "expert or openai",
    ):
        assert f". {values}" in said
    assert [name for name in recipe_names() if f"<code>{name}</code>" not in pages["shipped-recipes"]] == []


def test_a_shipped_recipe_stands_beside_what_was_published_of_it(pages):
    rows = re.findall(r"<tr>\s*<td><code>(.*?)</code></td>(.*?)</tr>", pages["shipped-recipes"], re.DOTALL)
    cells = {name: [words(cell) for cell in re.findall(r"<td>(.*?)</td>", rest)] for name, rest in rows}
    assert [*cells] == sorted(recipe_names())
    published = {(row["environment"], row["trained"]): row for row in published_rows(LEARNING, "learning")}
    for name, (env, trained) in {
        "safe/nano": ("safe", "**Reflect-RL**"),
        "dangerous_taxi/nano_rlft_only": ("taxi", "RLFT only (no SFT, no reflection)"),
    }.items():
        assert cells[name][2:] == [published[env, trained][key] for key in ("mean", "minutes")]
    assert cells["number_line/nano_value"][2:] == ["", ""]
    assert cells["smollm2/explorer"][2].endswith(" on a GPU")


def test_every_cause_of_a_low_success_is_found_by_its_sentence(pages):
    _, _, page = pages["troubleshooting"].partition('<h2 id="why"')
    entries = re.findall(
        r'<h3 id="cause-(\w+)">(.*?)</h3>\s*<blockquote>(.*?)</blockquote>\s*<p>(.*?)</p>', page, re.DOTALL
    )
    assert len({name for name, *_ in entries}) == len(entries) == len(KNOWN)
    for (_, heading, why, remedy), find in zip(entries, KNOWN, strict=True):
        assert words(heading).startswith((inspect.getdoc(find) or "").removesuffix("."))
        assert re.match(r"Why: (\w|…).{25,}\.$", words(why)), "more than what only a run can say"
        assert re.match(r"Try: \w+", words(remedy))
        assert "…" not in remedy
        assert not re.search(r"\w…", why)


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


def test_every_public_name_is_on_the_site(pages):
    known = set().union(*(re.findall(r'id="(reflectrl\.[\w.]+)"', text) for text in pages.values()))
    offered = {
        f"reflectrl.{path.parent.name}": importlib.import_module(f"reflectrl.{path.parent.name}")
        for path in (ROOT / "reflectrl").glob("*/__init__.py")
        if "__all__" in path.read_text("utf-8")
    }
    assert len(offered) > 5
    missing = []
    for room, module in {"reflectrl": reflectrl, **offered}.items():
        for name in module.__all__:
            given = getattr(module, name)
            home = getattr(given, "__module__", "")
            places = {f"{room}.{name}", f"{home}.{name}", f"{home.rpartition('.')[0]}.{name}"}
            if callable(given) and not places & known:
                missing.append(f"{room}.{name}")
    assert missing == []


def test_no_drawing_is_cut_on_a_phone(site):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800})
        for name, drawings in (("index", 1), ("concepts", 4)):
            page.goto(f"file://{site / name}.html")
            boxes = [found.bounding_box() for found in page.locator(".drawing svg").all()]
            assert len(boxes) == drawings
            assert [box for box in boxes if box["x"] < 0 or box["x"] + box["width"] > 390] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_links_can_be_told_apart_in_both_schemes(site, scheme):
    from axe_playwright_python.sync_playwright import Axe

    rules = ["color-contrast", "link-in-text-block", "link-name", "label", "button-name", "image-alt"]
    rules += ["empty-table-header"]
    with chromium() as browser:
        page = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900}).new_page()
        found = []
        for name in ("index", "tutorial", "comparison", "concepts", "keys-rlft", "api-core"):
            page.goto(f"file://{site / name}.html")
            for fault in Axe().run(page, options={"runOnly": rules}).response["violations"]:
                found.append((name, fault["id"], [node["html"][:100] for node in fault["nodes"][:3]]))
        assert found == []


def test_drawings_and_results_are_in_the_pages_and_every_environment_has_one(pages):
    for page in ("index", "concepts"):
        assert re.search(r'<div class="drawing" role="img" aria-label="[^"]{40,}"><svg', pages[page])
        assert 'src="images/players.svg"' not in pages[page]
    for name in ("learning", "siblings", "engine"):
        assert f'href="results-{name}.html"' in pages["results"]
        text = (ROOT / "benchmarks" / "results" / f"{name}.md").read_text(encoding="utf-8")
        rows = [line for line in text.splitlines() if line.startswith("| ")]
        cells = [cell.strip(" *`") for cell in rows[-1].split("|") if cell.strip(" *`")]
        assert " ".join(cells).replace("**", "").replace("`", "") in words(pages[f"results-{name}"])
    for env in BUILT_IN:
        said = words(pages[f"env-{env}"])
        assert inspect.getdoc(env_class(env)).partition("\n")[0].replace("``", "") in said
        options = [*inspect.signature(env_class(env)).parameters]
        assert [option for option in options if f"{option} (" not in said] == []
    assert "@article{zhou2024reflectrl," in words(pages["citation"])


def test_what_leads_nowhere_fails_the_build(tmp_path):
    text = "[a](nowhere.md) [b](#nothing) [c](/away.html) ![d](images/none.png) [e](../benchmarks/results/none.md)"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n{text}\n", encoding="utf-8")
    settings = f"INHERIT: {CONFIG}\ndocs_dir: docs\nsite_dir: out\nextra_css: []\nplugins: [search]\nhooks: []\n"
    (tmp_path / "mkdocs.yml").write_text(f"{settings}nav: [index.md]\n", encoding="utf-8")
    done = mkdocs(tmp_path / "mkdocs.yml", tmp_path / "out")
    assert done.returncode != 0
    for fault in ("nowhere.md", "#nothing", "/away.html", "none.png", "results/none.md"):
        assert fault in done.stderr
