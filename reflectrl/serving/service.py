"""``ServedAgent``: the agent of a run with the facts about it that ``reflectrl serve`` reports to clients."""

from __future__ import annotations

import sys
import time
import uuid
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
from reflectrl.players import reflecting
from reflectrl.serving.wire import ChatChoice, ChatReply, ChatUsage


@dataclass(frozen=True)
class ReflectorInfo:
    """Limits and tokenizer of a reflector."""

    max_tokens: int
    """Maximum number of tokens it writes."""
    temperature: float
    tokenizer: Any | None
    """Tokenizer of the reflector; ``None`` for a chat endpoint."""

    def completion(self, prompt: str, text: str, limit: int | None) -> ChatReply:
        """Return ``text`` as a chat completion of ``prompt``, truncated after ``limit`` tokens."""
        reason, usage = "stop", None
        if self.tokenizer is not None:
            max_tokens = min(limit or self.max_tokens, self.max_tokens)
            plain = PlainText(self.tokenizer)
            tokens = plain.text(f" {text}" if text else "")
            if len(tokens) > max_tokens:
                text = self.tokenizer.decode(tokens[:max_tokens], skip_special_tokens=True).strip()
            if len(tokens) >= max_tokens:
                reason = "length"
            given, written = len(plain.text(prompt)), min(len(tokens), max_tokens)
            usage = ChatUsage(prompt_tokens=given, completion_tokens=written, total_tokens=given + written)
        choice = ChatChoice(message={"role": "assistant", "content": text}, finish_reason=reason)
        return ChatReply(id=f"chatcmpl-{uuid.uuid4().hex}", created=int(time.time()), choices=[choice], usage=usage)


@dataclass(frozen=True)
class ServedAgent:
    """The agent behind a server."""

    who: str
    policy: str
    greedy: bool
    agent: Agent
    reflector: ReflectorInfo | None
    """Facts about the reflector; ``None`` for an agent without one."""


def load_served_agent(run: Path, policy: str | None = None, *, greedy: bool = True) -> ServedAgent:
    """Load the agent of a run folder, or an exported one.

    Raises:
        InvalidInput: there is no such agent, its reflector is the expert, it has a planner, or it reads pictures.

    """
    recipe = read_recipe(run)
    settings = recipe.players.reflector
    if settings.player == "expert":
        raise InvalidInput(
            f"{run} was trained with the expert's reflections, which exist only inside the environment; serve a run "
            "with another players.reflector.player."
        )
    if recipe.players.planner is not None:
        raise InvalidInput(
            f"{run} was trained with a planner, which speaks once at the start of an episode, but a request shows one "
            "state of it; serve a run without players.planner."
        )
    if recipe.model.images:
        raise InvalidInput(
            f"{run} was trained to read pictures (model.images), but requests carry text; serve an agent that reads "
            "text, or use this one with reflectrl.load_agent."
        )
    name = policy or last_policy(recipe, run)
    agent = load_agent(run, policy=name, greedy=greedy)
    # menus in the order given, also for an agent trained on shuffled ones: to it, all orders are the same
    agent = replace(agent, layout=replace(agent.layout, shuffle=False))
    if settings.player == "remote":
        from reflectrl.players.remote import RemoteReflector

        # without a journal: requests are never written to disk; and a client's bad requests use up nobody's limit
        endpoint = replace(settings.endpoint, max_rejected=sys.maxsize)
        reflector = RemoteReflector(endpoint, cache_size=settings.cache_size)
        others = (seat for seat in agent.seats if seat.role != "reflector")
        agent = replace(agent, seats=(*others, *reflecting(reflector)))
    who = f"{run.resolve().name} (policy after {POLICIES[name].upper()})"
    return ServedAgent(who, name, greedy, agent, _reflector_info(recipe, run, name))


def _reflector_info(recipe: Recipe, run: Path, policy: str) -> ReflectorInfo | None:
    settings = recipe.players.reflector
    if settings.player == "none":
        return None
    if settings.player == "remote":
        return ReflectorInfo(settings.endpoint.max_tokens, settings.endpoint.temperature, None)
    local = settings.player == "local"
    section = (recipe.reflector_model or recipe.model) if local else recipe.model
    folder = run / ("reflector" if local else policy)
    tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=section.trust_remote_code)
    return ReflectorInfo(settings.max_new_tokens, settings.temperature_at_play, tokenizer)
