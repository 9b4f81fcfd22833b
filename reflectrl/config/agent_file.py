"""``agent.json``: the description of an exported agent, which is independent of the run folder that it came from.

The same folder holds ``recipe.yaml`` and the players' folders: ``policy`` and, for a local reflector, ``reflector``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectrl.config.model import ModelSection
from reflectrl.config.schema import Recipe
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import decode, encode, read_jsonl, write_jsonl
from reflectrl.core.layout import AGENT
from reflectrl.core.version import WRITTEN_BY, this_version, version_errors
from reflectrl.prompts import PromptFormat

FORMAT = "reflectrl-agent"
TRUSTED = "REFLECTRL_TRUSTED_AGENT"
"""Environment variable with the folder of an exported agent that may run its own code and use keys of its choice."""


@dataclass(frozen=True)
class AgentFile:
    """Environment, prompts and menus for which the players of an exported agent were trained."""

    env: str
    """Registered name of the environment."""
    options: Mapping[str, Any]
    """Parameters of the environment's constructor; paths of the training machine are reduced to their last part."""
    prompt: PromptFormat
    """Layout of every prompt."""
    max_actions: int
    """Length of the longest menu."""


def write_agent_file(folder: Path, agent: AgentFile) -> None:
    """Write ``agent.json`` into ``folder``."""
    write_jsonl(folder / AGENT, [{"format": FORMAT, WRITTEN_BY: encode(this_version()), **encode(agent)}])


def read_agent_file(folder: Path) -> AgentFile | None:
    """Return the ``agent.json`` of ``folder``; ``None`` where there is none, as in a run folder.

    Raises:
        InvalidInput: the file is damaged, was written by another version, or describes no agent.

    """
    path = folder / AGENT
    if not path.exists():
        return None
    with version_errors(folder):
        lines = [value for _, value in read_jsonl(path)]
        given = dict(lines[0]) if len(lines) == 1 and isinstance(lines[0], dict) else {}
        if (found := given.pop("format", None)) != FORMAT:
            raise InvalidInput(
                f"{path} names the format {found!r}; expected {FORMAT!r}: is this a folder of `reflectrl export`?"
            )
        for key in (WRITTEN_BY, "version"):  # format 1 has "version"
            given.pop(key, None)
        agent = decode(AgentFile, given, str(path))
    if agent.max_actions < 1:
        raise InvalidInput(f"{path}, max_actions is {agent.max_actions}; expected 1 or more: export the run again.")
    return agent


def exported_recipe(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with which an exported folder's players are loaded, without adapters that have been merged.

    The ``recipe.yaml`` on disk describes the agent's training, so it still has the adapters and a trained reflector.

    Raises:
        InvalidInput: the recipe, which came with the folder, asks for more than the user has allowed.

    """
    _check_trust(recipe, folder)

    def as_saved(section: ModelSection, role: str) -> ModelSection:
        has_adapters = (folder / role / "adapter_config.json").is_file()
        return section if has_adapters else section.model_copy(update={"lora": None, "quantization": "none"})

    reflector = as_saved(recipe.reflector_model or recipe.model, "reflector")
    said = recipe.players.reflector
    frozen = said.model_copy(update={"trained": False, "temperature": said.temperature_at_play})
    return recipe.model_copy(
        update={
            "model": as_saved(recipe.model, "policy"),
            "reflector_model": reflector,
            "players": recipe.players.model_copy(update={"reflector": frozen}),
        }
    )


def _check_trust(recipe: Recipe, folder: Path) -> None:
    """Refuse an exported agent that runs code or sends keys, unless the user trusts its folder by ``TRUSTED``."""
    models, players = (recipe.model, recipe.reflector_model), (recipe.players.reflector, recipe.players.planner)
    wishes = ["run Python code that came with its model"] if any(m and m.trust_remote_code for m in models) else []
    wishes += [
        f"send the key in {variable} to {player.endpoint.base_url}"
        for player in players
        if player is not None and player.player == "remote" and player.endpoint.base_url
        if (variable := player.endpoint.key_variable) and (player.endpoint.api_key_env or variable in os.environ)
    ]
    if wishes and os.environ.get(TRUSTED) != str(folder.resolve()):
        raise InvalidInput(
            f"the exported agent {folder} wants to {' and to '.join(wishes)}; if you trust whoever made it, set "
            f"{TRUSTED}={folder.resolve()} and repeat."
        )
