"""``agent.json``: what an exported agent must say of itself, so that nobody needs the run folder it came from.

Beside it lie ``recipe.yaml`` and the players' folders: ``policy`` and, where there is a local one, ``reflector``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectrl.config.schema import ModelSection, Recipe
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import decode, encode, read_jsonl, write_jsonl
from reflectrl.prompts import PromptFormat

AGENT = "agent.json"
"""Its name, by which an exported folder is known."""
FORMAT = "reflectrl-agent"
VERSION = 1


@dataclass(frozen=True)
class AgentFile:
    """What the players of an exported agent were trained for."""

    env: str
    """Registered name of the environment."""
    options: Mapping[str, Any]
    """Its constructor's parameters; of a path on the training machine only the last part."""
    prompt: PromptFormat
    """The layout of every prompt."""
    max_actions: int
    """The longest menu."""


def write_agent_file(folder: Path, agent: AgentFile) -> None:
    """Write ``agent.json`` into ``folder``."""
    write_jsonl(folder / AGENT, [{"format": FORMAT, "version": VERSION, **encode(agent)}])


def read_agent_file(folder: Path) -> AgentFile | None:
    """The ``agent.json`` of ``folder``; ``None`` where there is none, as in a run folder.

    Raises:
        InvalidInput: it is damaged, of another version, or no such file at all.

    """
    path = folder / AGENT
    if not path.exists():
        return None
    lines = [value for _, value in read_jsonl(path)]
    given = dict(lines[0]) if len(lines) == 1 and isinstance(lines[0], dict) else {}
    found = given.pop("format", None), given.pop("version", None)
    if found[0] != FORMAT:
        raise InvalidInput(
            f"{path} names the format {found[0]!r}; expected {FORMAT!r}: is this a folder of `reflectrl export`?"
        )
    if found[1] != VERSION:
        raise InvalidInput(f"{path} names version {found[1]!r}; expected {VERSION}: export the run anew.")
    agent = decode(AgentFile, given, str(path))
    if agent.max_actions < 1:
        raise InvalidInput(f"{path}, max_actions is {agent.max_actions}; expected 1 or more: export the run anew.")
    return agent


def exported_recipe(recipe: Recipe, folder: Path) -> Recipe:
    """The ``recipe.yaml`` of an exported folder, as its players are loaded: merged weights have no adapters any more.

    The recipe on disk tells how the agent was trained, so it still names them.
    """
    sections = {"policy": recipe.model, "reflector": recipe.reflector_model or recipe.model}
    as_saved = {role: _as_saved(section, folder / role) for role, section in sections.items()}
    return recipe.model_copy(update={"model": as_saved["policy"], "reflector_model": as_saved["reflector"]})


def _as_saved(section: ModelSection, folder: Path) -> ModelSection:
    if (folder / "adapter_config.json").is_file():
        return section
    return section.model_copy(update={"lora": None, "quantization": "none"})
