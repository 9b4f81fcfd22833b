"""Values that the shell completes on Tab: recipes, run folders and environments."""

from __future__ import annotations

from pathlib import Path

import typer


def complete_recipe(incomplete: str) -> list[str]:
    """Return the shipped recipes whose names begin with ``incomplete``; the shell itself adds files."""
    from reflectrl.config import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Return the run folders in ``runs`` of the working directory whose paths begin with ``incomplete``."""
    from reflectrl.core.layout import run_folders

    return [path for path in map(str, run_folders(Path("runs"))) if path.startswith(incomplete)]


def complete_run_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the run folders in ``--runs`` that begin with ``incomplete``."""
    from reflectrl.core.layout import run_folders

    return [
        path.name for path in run_folders(Path(ctx.params.get("runs") or "runs")) if path.name.startswith(incomplete)
    ]


def complete_env(incomplete: str) -> list[str]:
    """Return the registered environments whose names begin with ``incomplete``."""
    from reflectrl.core import env_names

    return [name for name in env_names() if name.startswith(incomplete)]
