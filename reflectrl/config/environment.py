"""Construction of a recipe's environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from reflectrl.config.schema import Recipe
from reflectrl.core import NatLangEnv, make_env
from reflectrl.core.run_files import DATASET
from reflectrl.rollout.pool import LocalEnvs, WorkerPool


def recipe_env(recipe: Recipe, run: Path, options: Mapping[str, Any] | None = None) -> NatLangEnv:
    """Return a new environment of ``recipe`` in the run folder ``run``; ``options`` override the recipe's."""
    return make_env(recipe.env.name, **_options(recipe, run, options or {}))


def _options(recipe: Recipe, run: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    own = {DATASET: str(run / DATASET)} if recipe.dataset else {}
    return {**recipe.env.options, **own, **options}


class RecipeEnvs:
    """Maker of a recipe's environments for the folder ``run``, in this process or in worker processes.

    A context manager, whose end stops the worker processes; ``on_failure`` overrides ``env.on_failure``.
    """

    def __init__(self, recipe: Recipe, run: Path, *, on_failure: Literal["replay", "drop"] | None = None) -> None:
        self._recipe = recipe
        self._run = run
        limits = replace(recipe.env, on_failure=on_failure or recipe.env.on_failure)
        self._pool = WorkerPool(limits.workers, limits) if limits.workers else LocalEnvs(limits)

    def make(self, options: Mapping[str, Any], count: int) -> Sequence[NatLangEnv]:
        """Return ``count`` new environments; ``options`` override the recipe's."""
        return self._pool.make(self._recipe.env.name, _options(self._recipe, self._run, options), count)

    @property
    def failures(self) -> int:
        """Number of failures so far: errors of environments and, of worker processes, crashes and timeouts."""
        return self._pool.failures

    @property
    def recycled(self) -> int:
        """Number of worker processes that were replaced so far because of their memory use."""
        return self._pool.recycled if isinstance(self._pool, WorkerPool) else 0

    def __enter__(self) -> RecipeEnvs:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
