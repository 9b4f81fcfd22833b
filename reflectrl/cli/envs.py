"""The commands about environments: check-env tests one, and new-env writes the package of one."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import keyword
import re
import shlex
import unicodedata
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

import reflectrl
from reflectrl.cli.shared import ENV_NAMES, complete_env
from reflectrl.cli.terminal import say
from reflectrl.core import InvalidInput, check_env, env_names, make_env
from reflectrl.core.files import in_one_move
from reflectrl.core.text import shown


def check(
    name: Annotated[str | None, typer.Argument(help=ENV_NAMES, autocompletion=complete_env)] = None,
    options: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of the environment, e.g. stage=pickup.")
    ] = None,
    show_names: Annotated[bool, typer.Option("--list", help="Print the names of all environments.")] = False,
) -> None:
    """Play an environment and check that it follows the protocol."""
    if show_names:
        say("\n".join(env_names()))
        return
    if name is None:
        raise InvalidInput("no environment was given; expected a name, or --list to see them.")
    env = make_env(name, **read_options(options or []))
    remarks = check_env(env)
    sizes = {split: len(env.any_tasks(split)) for split in env.splits}
    counts = ", ".join(f"{size} {split}" for split, size in sizes.items())
    say(f"{name}: every check passed ({counts} tasks; horizon {env.horizon}).")
    if missing := [split for split, size in sizes.items() if not size]:
        say(f"It has no tasks for {' and '.join(missing)}, which is fine for training.")
    for remark in remarks:
        say(f"Remark: {remark}")


def read_options(given: Sequence[str]) -> dict[str, Any]:
    """Parse an environment's options, each typed as ``KEY=VALUE`` with a YAML value.

    Raises:
        InvalidInput: an option without ``=``, or a value that is not YAML.
    """
    from reflectrl.config.yaml_text import read_yaml

    options: dict[str, Any] = {}
    for option in given:
        key, equals, value = option.partition("=")
        if not (key and equals):
            raise InvalidInput(f"option {option!r} was given; expected key=value, e.g. stage=pickup.")
        if key == "name":  # the keyword of ``make_env`` itself
            raise InvalidInput(f"option {option!r} was given; no environment can have an option called name.")
        if key in options:
            raise InvalidInput(f"option {key} was given twice; give it once.")
        options[key], _ = read_yaml(value, f"option {option!r}")
    return options


def new_env(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and underscores, e.g. treasure_map.")],
    out: Annotated[Path | None, typer.Option(help="New folder for the package; default: ./NAME.")] = None,
) -> None:
    """Write a package with a working environment to start from.

    It holds the environment, its expert, tests and a recipe, and can be installed as it is.
    """
    folder = out or Path(name)
    for path in write_package(name, folder):
        say(str(path))
    # with the dot, a mistyped command cannot install a package of the same name from an index
    place = shlex.quote(str(folder if folder.is_absolute() else f"./{folder}"))
    say("\nNext:")
    say(f"  pip install -e {place}")
    say(f"  reflectrl check-env {name}")
    say(f"  reflectrl run --recipe {shlex.quote(str(folder / 'recipes' / 'nano.yaml'))}")


_PLAIN = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
TESTS = "test_env"
"""Name of the module of a new package's tests."""
MAX_NAME_CHARS = 30
"""Maximum length of a name; the lines of the templates have room for so many characters."""


def checked_name(name: str) -> str:
    """Return ``name`` if a package can have it.

    Raises:
        InvalidInput: it cannot; the message proposes a similar name that can.
    """
    wrong = _wrong(name)
    if wrong is None:
        return name
    better = [fixed for fixed in _nearest(name) if _wrong(fixed) is None]
    hint = f"try {better[0]!r}" if better else "choose another name, such as 'my_env'"
    raise InvalidInput(f"an environment cannot be called {shown(name)}: {wrong}; {hint}.")


def class_name(name: str) -> str:
    """Return the name of the environment's class: ``TreasureMap`` for ``treasure_map``."""
    return "".join(part.title() for part in name.split("_"))


def _wrong(name: str) -> str | None:
    if not _PLAIN.fullmatch(name):
        return "expected lower-case letters, digits and single underscores, beginning with a letter"
    if len(name) > MAX_NAME_CHARS:
        return f"it has {len(name)} characters, expected {MAX_NAME_CHARS} at most"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in dir(builtins):
        return "it is a keyword or built-in name of Python"
    if name == TESTS:
        return "its tests are a module of that name, and one would hide the other"
    if name in env_names():
        return "an environment of that name exists already (reflectrl check-env --list)"
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None:  # one without an origin is a folder of the working directory
        return "a module of that name is installed already, and one would hide the other"
    with contextlib.suppress(PackageNotFoundError):
        distribution(name)
        return "a package of that name is installed already, and pip would replace it"
    cls = class_name(name)
    if keyword.iskeyword(cls) or cls in dir(builtins) or cls in reflectrl.__all__:
        return f"its class would be called {cls}, which has another meaning"
    return None


def _nearest(name: str) -> list[str]:
    latin = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", latin).lower()
    plain = re.sub(r"[^a-z0-9]+", "_", words).strip("_")
    if plain[:1].isdigit():
        plain = f"env_{plain}"
    short = plain[:MAX_NAME_CHARS].rstrip("_")
    return [short, f"{short}_env", f"my_{short}"]


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
    templates = files("reflectrl.cli") / "skeleton"
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
