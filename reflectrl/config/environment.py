"""The environments that a recipe asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from reflectrl.config.schema import Recipe
from reflectrl.core import NatLangEnv, make_env
from reflectrl.core.layout import DATASET as DATASET  # also the option by which an environment takes it
from reflectrl.workers.pool import WorkerPool


def recipe_env(recipe: Recipe, run: Path, options: Mapping[str, Any] | None = None) -> NatLangEnv:
    """A new environment of ``recipe`` in the run folder ``run``; ``options`` override the recipe's."""
    return make_env(recipe.env.name, **_options(recipe, run, options or {}))


def _options(recipe: Recipe, run: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    own = {DATASET: str(run / DATASET)} if recipe.dataset else {}
    return {**recipe.env.options, **own, **options}


class RecipeEnvs:
    """Makes the environments that a recipe is played in: in this process, or in worker processes.

    Args:
        recipe: says which, and where.
        run: the run folder.
        on_failure: instead of the recipe's.

    Use it as a context: worker processes end with it.
    """

    def __init__(self, recipe: Recipe, run: Path, *, on_failure: Literal["replay", "drop"] | None = None) -> None:
        self._recipe = recipe
        self._run = run
        limits = replace(recipe.env, on_failure=on_failure or recipe.env.on_failure)
        self._pool = WorkerPool(limits.workers, limits) if limits.workers else None

    def make(self, options: Mapping[str, Any], count: int) -> Sequence[NatLangEnv]:
        """``count`` new environments; ``options`` override the recipe's."""
        if self._pool is None:
            return [recipe_env(self._recipe, self._run, options) for _ in range(count)]
        return self._pool.make(self._recipe.env.name, _options(self._recipe, self._run, options), count)

    @property
    def failures(self) -> int:
        """Number of crashes and timeouts so far; always 0 without workers, where the first one ends the run."""
        return 0 if self._pool is None else self._pool.failures

    @property
    def recycled(self) -> int:
        """Worker processes that were replaced because of their memory so far."""
        return 0 if self._pool is None else self._pool.recycled

    def __enter__(self) -> RecipeEnvs:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()
