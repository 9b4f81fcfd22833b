"""``agent.json``: the description of an exported agent, which needs nothing of the run folder that it came from.

Beside it lie ``recipe.yaml`` and the players' folders: ``policy`` and, where there is a local one, ``reflector``.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class AgentFile:
    """Environment, prompts and menus for which the players of an exported agent were trained."""

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
    write_jsonl(folder / AGENT, [{"format": FORMAT, WRITTEN_BY: encode(this_version()), **encode(agent)}])


def read_agent_file(folder: Path) -> AgentFile | None:
    """The ``agent.json`` of ``folder``; ``None`` where there is none, as in a run folder.

    Raises:
        InvalidInput: it is damaged, of another version, or no such file at all.

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
        for key in (WRITTEN_BY, "version"):  # the latter in format 1
            given.pop(key, None)
        agent = decode(AgentFile, given, str(path))
    if agent.max_actions < 1:
        raise InvalidInput(f"{path}, max_actions is {agent.max_actions}; expected 1 or more: export the run again.")
    return agent


def exported_recipe(recipe: Recipe, folder: Path) -> Recipe:
    """The ``recipe.yaml`` of an exported folder, as its players are loaded: merged weights have no adapters any more.

    The recipe on disk describes the training of the agent, so it still names them, and a reflector that was trained.
    """

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
