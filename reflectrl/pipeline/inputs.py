"""The inputs of a stage: the parts of the recipe, and the files outside of the run, that its result depends on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reflectrl.config import Recipe
from reflectrl.core.addresses import dotted
from reflectrl.core.registry import env_class
from reflectrl.core.run_files import REFLECTOR, REFLECTOR_RLFT, STAGES
from reflectrl.lm.section import is_gguf
from reflectrl.seats import SEATS
from reflectrl.seats.base import SERVER, first_stage
from reflectrl.seats.own import CLASS, own_role

_READS: Mapping[str, tuple[str, ...]] = {
    "gen-data": (
        *("seed", "budget.minutes", "env.name", "env.options", "dataset", "prompt", "data"),
        "model.images",  # rows show pictures to such a model
    ),
    "sft": ("model", "reflector_model", "sft", "players.policy.max_new_tokens"),
    "rlft": ("rlft", "players.policy.temperature", "players.policy.server"),
    "eval": ("eval", "players.policy.endpoint"),
}
"""The parts of the recipe that each stage reads, besides those of the stages before it, its seats' and its own of
``_also_read``."""
_NEUTRAL = (
    ".concurrency",
    "eval.batch_size",
    *(f"rlft.{key}" for key in ("batch_size", "micro_batch_tokens", "save_every", "record_episodes")),
    *(
        f".{at}.{key}"
        for at in ("endpoint", "server")
        for key in ("replicas", "timeout_s", "max_attempts", "max_rejected", "api_key_env", "backoff_s", "notice_s")
    ),
    *(f".{at}.price{key}" for at in ("endpoint", "server") for key in ("", ".prompt", ".completion", ".cached")),
)
"""Last parts of keys that affect no result, or only its rounding: calls to an endpoint, its prices, trackers, how much
is computed at once, and which files are kept. They may change between a kill and the next start."""


def stage_inputs(recipe: Recipe, stage: str) -> dict[str, Any]:
    """Return the dotted recipe keys that the result of ``stage`` depends on, with their values."""
    done = STAGES[: STAGES.index(stage) + 1]
    prefixes = [name for earlier in done for name in _read(recipe, earlier)]
    flat = dotted(recipe.model_dump(mode="json"))
    read = {key: value for key, value in flat.items() if any(f"{key}.".startswith(f"{p}.") for p in prefixes)}
    neutral = (*_NEUTRAL, *_addresses(recipe))
    return {key: value for key, value in read.items() if not key.endswith(neutral)}


def _addresses(recipe: Recipe) -> Iterator[str]:
    """Yield the keys of the addresses at which models are served, as which one it is, is checked there."""
    served = (kind.role.name for kind, section in recipe.players.frozen if section.kind == SERVER)
    yield from (f"players.{role}.endpoint.base_url" for role in served)
    yield "players.policy.server.base_url"


def _read(recipe: Recipe, stage: str) -> list[str]:
    """Return the parts of the recipe that a stage reads."""
    return [*_READS[stage], *_of_seats(recipe, stage), *_also_read(recipe, stage)]


def _of_seats(recipe: Recipe, stage: str) -> Iterator[str]:
    """Yield the parts of the recipe that a stage reads because of the frozen players."""
    for kind in SEATS:
        yield from kind.reads(stage)
    for _, section in recipe.players.frozen:
        yield from section.also_reads(stage)
    for name, settings in recipe.players.own.items():
        if stage == first_stage(own_role(name, settings)):
            yield from (f"players.{name}", "sft.enabled")


def _also_read(recipe: Recipe, stage: str) -> list[str]:
    """Return the parts of the recipe that a stage reads only because of other settings."""
    own = recipe.reflector_model or recipe.model
    read = []
    if stage == "gen-data" and own.images:
        read.append("players.reflector.player")  # rows show pictures to any reflector but a remote one
    if stage == "gen-data" and own.images != recipe.model.images:
        read.append("reflector_model.images")
    return read


def changed_inputs(recipe: Recipe, stage: str, then: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the keys whose values differ from the inputs ``then`` with which a stage was begun: key, then, now."""
    now = stage_inputs(recipe, stage)
    differ = sorted(key for key in {*then, *now} if now.get(key) != then.get(key))
    return [change for key in differ for change in _parts(key, then.get(key), now.get(key))]


def _parts(key: str, then: Any, now: Any) -> list[tuple[str, Any, Any]]:
    """Return a change, or what has changed in the sections of two lists of the same length."""
    if not isinstance(then, list) or not isinstance(now, list) or len(then) != len(now):
        return [(key, then, now)]
    changed = []
    for at, pair in enumerate(zip(then, now, strict=True)):
        before, after = (dotted(section, f"{key}.{at}") for section in pair)
        names = dict.fromkeys([*before, *after])
        changed += [(each, old, new) for each in names if (old := before.get(each)) != (new := after.get(each))]
    return changed


def outside_files(recipe: Recipe, stage: str) -> list[str]:
    """Return the files and folders outside of the run that ``stage`` reads, code of foreign classes included."""
    lenders = [each.run for each in recipe.eval.reflectors if each.run is not None]
    models = (recipe.model, recipe.reflector_model or recipe.model)
    environment = _code_of(env_class(recipe.env.name).__module__)
    trainer = _code_of(recipe.rlft.trainer.partition(":")[0]) if recipe.rlft and recipe.rlft.trainer else []
    frozen: dict[str, list[str]] = {"gen-data": [], "rlft": []}
    for kind, section in recipe.players.frozen:
        frozen[first_stage(kind.role, taught=kind.taught)] += section.files()
    for name, settings in recipe.players.own.items():
        frozen[first_stage(own_role(name, settings))] += _code_of(settings[CLASS].partition(":")[0])
    files = {
        "gen-data": [*(recipe.data.demonstrations or []), *frozen["gen-data"], *environment],
        "sft": [model.name for model in models if is_gguf(model.name)],
        "rlft": [*frozen["rlft"], *environment, *trainer],
        "eval": [str(Path(run) / name) for run in lenders for name in (REFLECTOR, REFLECTOR_RLFT)],
    }
    return files[stage]


def _code_of(module: str) -> list[str]:
    """Return the file of an imported module of another package; none for this library's own, programs and notebooks."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return [] if file is None or module == "__main__" or module.partition(".")[0] == "reflectrl" else [file]
