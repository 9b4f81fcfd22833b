"""Writes the package of a new environment from templates."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from string import Template

from reflectrl.core import InvalidInput
from reflectrl.core.files import in_one_move
from reflectrl.skeleton.name import checked_name, class_name

FILES = {
    "pyproject.toml": "pyproject.toml.tmpl",
    "README.md": "README.md.tmpl",
    "src/{name}/__init__.py": "init.py.tmpl",
    "src/{name}/env.py": "env.py.tmpl",
    "recipes/nano.yaml": "nano.yaml.tmpl",
    "tests/test_env.py": "test_env.py.tmpl",
}
"""Files of the package, with the templates they are made from."""


def write_package(name: str, folder: Path) -> list[Path]:
    """Write an installable package with the environment ``name`` to ``folder``, or nothing on an error.

    Returns:
        The files, in the order in which to read them.

    Raises:
        InvalidInput: a package cannot have the name, or the folder exists or cannot be written.

    """
    name = checked_name(name)
    if folder.exists() or folder.is_symlink():
        raise InvalidInput(f"{folder} exists already; choose another folder with --out, or remove it.")
    words = {"name": name, "cls": class_name(name), "project": name.replace("_", "-")}
    templates = files("reflectrl.skeleton")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with in_one_move(folder) as fresh:
            for path, template in FILES.items():
                text = Template(templates.joinpath(template).read_text(encoding="utf-8")).substitute(words)
                place = fresh / path.format(name=name)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written: {error.strerror}; choose another place.") from error
    return [folder / path.format(name=name) for path in FILES]
