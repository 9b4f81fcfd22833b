"""``Service``: the agent of a run as ``reflectrl serve`` shows it to others, and what its reflector's words cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput
from reflectrl.core.layout import POLICIES
from reflectrl.models.plain_text import PlainText
from reflectrl.pipeline.agent import Agent, load_agent
from reflectrl.pipeline.folder import last_policy, read_recipe


@dataclass(frozen=True)
class Said:
    """What a reflector said, as far as it was asked for."""

    text: str
    cut: bool
    """Whether it was to end before its end."""
    prompt_tokens: int | None
    """``None`` where only another endpoint could tell."""
    tokens: int | None


@dataclass(frozen=True)
class Voice:
    """What is known of a reflector beside its words."""

    longest: int
    """Tokens that it writes, at most."""
    temperature: float
    tokenizer: Any | None
    """``None`` for a chat endpoint."""

    def measure(self, prompt: str, text: str, limit: int | None) -> Said:
        """What was said to ``prompt``, counted, and cut after ``limit`` tokens: models write from left to right."""
        if self.tokenizer is None:
            return Said(text, cut=False, prompt_tokens=None, tokens=None)
        most = min(limit or self.longest, self.longest)
        plain = PlainText(self.tokenizer)
        tokens = plain.prompt(f" {text}" if text else "")
        if len(tokens) > most:
            text = self.tokenizer.decode(tokens[:most], skip_special_tokens=True).strip()
        given = len(plain.prompt(prompt))
        return Said(text, len(tokens) >= most, given, min(len(tokens), most))


@dataclass(frozen=True)
class Service:
    """Who is served."""

    who: str
    policy: str
    greedy: bool
    agent: Agent
    voice: Voice | None
    """``None`` for an agent without a reflector."""


def load_service(run: Path, policy: str | None = None, *, greedy: bool = True) -> Service:
    """The agent of a folder, and what else there is to tell of it.

    Raises:
        InvalidInput: no such agent, or one that cannot do without the expert.

    """
    recipe = read_recipe(run)
    if recipe.players.reflector == "expert":
        raise InvalidInput(
            f"{run} was trained with the reflections of the expert, who knows nothing of a state from elsewhere; serve "
            "a run with another players.reflector."
        )
    name = policy or last_policy(recipe, run)
    agent = load_agent(run, policy=name, greedy=greedy)
    if recipe.players.reflector == "remote":
        from reflectrl.players.remote import RemoteReflector

        # one that keeps no journal: what clients send is not to lie in the run folder
        endpoint, most = recipe.players.endpoint, recipe.players.cache_size
        agent = replace(agent, reflector=RemoteReflector(endpoint, cache_size=most))
    who = f"{run.resolve().name} (policy after {POLICIES[name].upper()})"
    return Service(who, name, greedy, agent, _voice(recipe, run, name))


def _voice(recipe: Recipe, run: Path, policy: str) -> Voice | None:
    players = recipe.players
    if players.reflector == "none":
        return None
    if players.reflector == "remote":
        return Voice(players.endpoint.max_tokens, players.endpoint.temperature, None)
    local = players.reflector == "local"
    section = (recipe.reflector_model or recipe.model) if local else recipe.model
    folder = run / ("reflector" if local else policy)
    tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=section.trust_remote_code)
    return Voice(players.max_new_tokens, players.temperature, tokenizer)
