"""The built wheel, used from outside the tree: everything is in it, and it works."""

from __future__ import annotations

import json
import re
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from built_wheel import FOLDERS, ROOT, build_wheel, run
from markdown_it import MarkdownIt

OUTSIDE = """
import json, sys
import gymnasium
import reflectrl.envs.dangerous_taxi as taxi
from reflectrl.cli import main
from reflectrl.config import load_recipe, recipe_names

made = gymnasium.make("reflectrl/DangerousTaxi-v0").reset(seed=0)[1]["task"]
print(json.dumps([taxi.__file__, made, [name for name in recipe_names() if load_recipe(name)]]))
sys.argv = ["reflectrl", "check-env", "number_line"]
main()
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what is in the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(build_wheel(folder)) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def metadata(site: Path) -> Message:
    [path] = site.glob("*.dist-info/METADATA")
    return Parser().parsestr(path.read_text(encoding="utf-8"))


def test_the_wheel_holds_every_file_of_the_library_and_nothing_else(site: Path) -> None:
    on_disk = {
        str(path.relative_to(ROOT) if folder == "reflectrl" else Path("reflectrl") / path.relative_to(ROOT))
        for folder in FOLDERS
        for pattern in ("*.py", "*.yaml", "*.css", "*.html", "*.js", "*.tmpl", "*.safetensors", "py.typed")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert on_disk <= {str(path.relative_to(site)) for path in site.rglob("*")}
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"reflectrl"}


def test_the_wheel_works_from_outside_the_tree(site: Path, tmp_path: Path) -> None:
    first, second = run(sys.executable, "-c", OUTSIDE, cwd=tmp_path, PYTHONPATH=str(site)).splitlines()
    file, task, recipes = json.loads(first)
    assert Path(file).is_relative_to(site)
    assert "-to-" in task
    shipped = {
        str(path.relative_to(ROOT / "recipes").with_suffix(""))
        for path in (ROOT / "recipes").rglob("*.yaml")
        if path.parent.name != "accelerate"
    }
    assert shipped < set(recipes), "the files, and their arms"
    assert "every check passed" in second


def test_a_package_index_learns_licence_command_and_extras(site: Path, metadata: Message) -> None:
    [folder] = site.glob("*.dist-info")
    assert (metadata["License-Expression"], metadata["License-File"]) == ("MIT", "LICENSE")
    assert (folder / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "reflectrl = reflectrl.cli:main" in (folder / "entry_points.txt").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata.get_all("Provides-Extra") == [*project["optional-dependencies"]]
    assert metadata["Requires-Python"] == project["requires-python"]
    assert metadata.get_all("Classifier") == project["classifiers"]


def test_the_page_on_a_package_index_is_the_readme_without_what_needs_a_clone(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = metadata.get_payload()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^#.*|^\|.*|^```.*", page, re.MULTILINE) == re.findall(
        r"^#.*|^\|.*|^```.*", readme, re.MULTILINE
    )
    assert "no package index has reflectrl yet" in readme
    [install] = re.findall(r"^## Install\n\n(.*?)\n\n##", page, re.MULTILINE | re.DOTALL)
    assert install.startswith("`pip install reflectrl`")
    assert metadata["Requires-Python"].removeprefix(">=") in install
    assert "no package index" not in page
    shown = MarkdownIt("commonmark").enable("table").render(page)
    targets = re.findall(r' (?:href|src)="([^"]*)"', shown)
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []
    assert "](" not in re.sub(r"<code.*?</code>", "", shown, flags=re.DOTALL)
