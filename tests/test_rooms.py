"""The layering of packages: imports point down only, heavy packages stay where they belong, modules stay small."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "reflectrl.data_gen": ROOT / "data_gen",
    "reflectrl.envs": ROOT / "envs",
    "reflectrl.recipes": ROOT / "recipes",
}

BELOW_CONFIG = {"rollout", "seats", "lm", "endpoint", "prompts", "core"}
BELOW_PIPELINE = {"report", "training", "data_gen", "config", *BELOW_CONFIG}
MAY_IMPORT = {
    "core": set(),
    "envs": {"core"},
    "recipes": set(),
    "prompts": {"core"},
    "endpoint": {"core"},
    "lm": {"prompts", "core"},
    "seats": {"lm", "endpoint", "prompts", "core"},
    "rollout": {"seats", "prompts", "core"},
    "config": BELOW_CONFIG,
    "data_gen": {"config", "rollout", "seats", "endpoint", "prompts", "core"},
    "training": {"data_gen", "config", "rollout", "seats", "lm", "prompts", "core"},
    "report": {"data_gen", "config", "rollout", "seats", "lm", "endpoint", "prompts", "core"},
    "pipeline": BELOW_PIPELINE,
    "share": {"pipeline", *BELOW_PIPELINE},
    "cli": {"share", "pipeline", *BELOW_PIPELINE},
}
ABOVE_MODELS = {"lm", "seats", "training", "pipeline", "share", "cli"}
MAY_BE_IMPORTED_BY = {
    "trl": {"training"},
    "torch": ABOVE_MODELS,
    "transformers": ABOVE_MODELS,
    "peft": ABOVE_MODELS,
    "bitsandbytes": {"lm"},
    "fastapi": {"share"},
    "starlette": {"share"},
    "uvicorn": {"share"},
    "openenv": {"envs", "share"},
    "PIL": {"core", "envs", "lm"},
    "gymnasium_robotics": {"envs"},
    "metaworld": {"envs"},
    "mujoco": {"envs"},
    "typer": {"cli"},
}
COMES_WITH = {
    "PIL": "pillow",
    "fast_downward": "textworld",
    "filelock": "huggingface-hub",
    "jericho": "textworld",
    "mujoco": "metaworld",
    "pydantic_core": "pydantic",
    "starlette": "fastapi",
    "tokenizers": "transformers",
    "websockets": "openenv",
    "yaml": "pyyaml",
}
"""The requirement that brings a package of another name."""


def modules() -> Iterator[tuple[str, Path]]:
    """Return the dotted name and file of every module, through the real folders and not through the symlinks."""
    folders = {
        f"reflectrl.{folder.name}": folder for folder in (ROOT / "reflectrl").iterdir() if not folder.is_symlink()
    }
    for package, folder in {**folders, **FOLDERS}.items():
        for path in sorted(folder.rglob("*.py")):
            yield ".".join((package, *path.relative_to(folder).with_suffix("").parts)), path


def imports(path: Path) -> Iterator[str]:
    """Return the dotted names of all modules that ``path`` imports anywhere or names in a string as ``module:name``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the whole name"
            yield node.module or ""
            if node.module == "reflectrl":
                yield from (f"reflectrl.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"reflectrl[\w.]*:\w+", str(node.value)):
            yield str(node.value).partition(":")[0]


@pytest.mark.slow
def test_imports_point_down() -> None:
    imported = {name: set(imports(path)) for name, path in modules()}
    assert {name.split(".")[1] for name in imported} == set(MAY_IMPORT)
    wrong = []
    for module, names in imported.items():
        room = module.split(".")[1]
        for name in names:
            top, below, *_ = [*name.split("."), "", ""]
            up = top == "reflectrl" and below in MAY_IMPORT and below not in {room, *MAY_IMPORT[room]}
            up &= (module, below) != ("reflectrl.core.registry", "envs")  # it lists the shipped environments
            # the folders next to the package are imported through it
            if up or room not in MAY_BE_IMPORTED_BY.get(top, {room}) or top in {"envs", "data_gen", "recipes"}:
                wrong.append(f"{module} imports {name}")
    assert wrong == []
    assert [module for module, names in imported.items() if "openai" in names] == ["reflectrl.endpoint.api"]


def test_every_package_that_is_imported_is_a_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = chain(project["dependencies"], *project["optional-dependencies"].values())
    required = {Requirement(each).name for each in listed}
    imported = {name.partition(".")[0] for _, path in modules() for name in imports(path)}
    foreign = imported - sys.stdlib_module_names - {"reflectrl", "comet_ml"}  # trackers are the user's choice
    assert {COMES_WITH.get(name, name.replace("_", "-")) for name in foreign} - required == set()


def test_modules_fit_in_500_lines() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules()}
    assert {name: count for name, count in lines.items() if count > 500} == {}


def test_importing_the_package_is_light() -> None:
    heavy = ["torch", "transformers", "trl", "peft", "datasets", "openai", "pydantic", "yaml", "typer"]
    code = f"import reflectrl, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_trainer_of_rlft_leaves_the_packages_of_adapters_and_sft_out() -> None:
    code = "import reflectrl.training.rlft, sys; print([name for name in ('peft', 'trl') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("link", ["envs", "data_gen", "recipes"])
def test_the_links_are_relative_and_lead_to_the_top_level(link: str) -> None:
    path = ROOT / "reflectrl" / link
    assert path.is_symlink()
    assert path.readlink() == Path("..", link)
