"""Evaluated runs of benchmarks' arms with known results, and the cells of the tables made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.rollout.results import EvalRow, write_results


def write_run(run: Path, recipe: str, rows: Sequence[EvalRow], seed: int = 0) -> Path:
    """A run folder of 1,234 environment steps and 2.5 minutes, and one minute more a seed."""
    run.mkdir(parents=True)
    write_results(run / "eval.jsonl", rows)
    took = {"sft": 60, "rlft": 90 + 60 * seed}
    ledger = {stage: {"done": True, "inputs": {}, "cpu_seconds": seconds} for stage, seconds in took.items()}
    (run / "stages.json").write_text(json.dumps(ledger))
    (run / "metrics.jsonl").write_text('{"env_steps": 1}\n{"env_steps": 1234}\n')
    (run / "recipe.yaml").write_text(dump_recipe(load_recipe(recipe)))
    return run


def cells(text: str) -> dict[str, list[str]]:
    """The lines of a table but its heads, by their first cell."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in lines if "success %" not in rest}
