"""``agent.json``: the description of an exported agent, which is independent of the run folder that it came from.

The same folder holds ``recipe.yaml``, the policy's weights and tokenizer and, for a local reflector, its folder
``reflector``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectrl.config.schema import Recipe
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import decode, encode, read_jsonl, write_jsonl
from reflectrl.core.origin import WRITTEN_BY, check_format, this_version
from reflectrl.core.run_files import AGENT, POLICY, REFLECTOR, saved_player
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.lm.section import ModelSection
from reflectrl.prompts import PromptFormat
from reflectrl.seats.base import SERVER

FORMAT = "reflectrl-agent"


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
    lines = [value for _, value in read_jsonl(path)]
    given = dict(lines[0]) if len(lines) == 1 and isinstance(lines[0], dict) else {}
    if (found := given.pop("format", None)) != FORMAT:
        raise InvalidInput(
            f"{path} names the format {found!r}; expected {FORMAT!r}: is this a folder of `reflectrl export`?"
        )
    check_format(folder, given.pop(WRITTEN_BY, None))
    agent = decode(AgentFile, given, str(path))
    if agent.max_actions < 0:
        raise InvalidInput(f"{path}, max_actions is {agent.max_actions}; expected 0 or more: export the run again.")
    return agent


def without_server(recipe: Recipe) -> Recipe:
    """Return a recipe in which a folder's fine-tuned reflector writes itself, in place of a server of its weights."""
    reflector = recipe.players.reflector
    if reflector.player != SERVER:
        return recipe
    local = reflector.model_copy(update={"player": "local", "endpoint": Endpoint()})
    return recipe.model_copy(update={"players": recipe.players.model_copy(update={"reflector": local})})


def exported_recipe(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with which an exported folder's players are loaded, without adapters that have been merged.

    The ``recipe.yaml`` on disk describes the agent's training, so it still has the adapters and a trained reflector.

    Raises:
        InvalidInput: the folder holds no policy.
    """
    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise InvalidInput(
            f"{folder} has no policy beside its {AGENT} (neither config.json nor adapter_config.json); "
            "export its run again."
        )

    def as_saved(section: ModelSection, role: str) -> ModelSection:
        has_adapters = (saved_player(folder, role) / "adapter_config.json").is_file()
        return section if has_adapters else section.model_copy(update={"lora": None, "quantization": "none"})

    reflector = as_saved(recipe.reflector_model or recipe.model, REFLECTOR)
    said = recipe.players.reflector
    frozen = said.model_copy(update={"trained": False, "temperature": said.temperature_at_play})
    return recipe.model_copy(
        update={
            "model": as_saved(recipe.model, POLICY),
            "reflector_model": reflector,
            "players": recipe.players.model_copy(update={"reflector": frozen}),
        }
    )
