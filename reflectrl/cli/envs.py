"""The commands about environments: check-env tests one, and new-env writes the package of one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from reflectrl.cli.shared import complete_env
from reflectrl.cli.terminal import say
from reflectrl.core import InvalidInput, check_env, env_names, make_env


def check(
    name: Annotated[str | None, typer.Argument(help="Registered environment.", autocompletion=complete_env)] = None,
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
        say(remark)


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
    from reflectrl.cli.new_env import write_package

    folder = out or Path(name)
    for path in write_package(name, folder):
        say(str(path))
    # with the dot, a mistyped command cannot install a package of the same name from an index
    place = shlex.quote(str(folder if folder.is_absolute() else f"./{folder}"))
    say("\nNext:")
    say(f"  pip install -e {place}")
    say(f"  reflectrl check-env {name}")
    say(f"  reflectrl run --recipe {shlex.quote(str(folder / 'recipes' / 'nano.yaml'))}")
