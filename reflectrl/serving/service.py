"""The agent that ``reflectrl serve`` loads, and the facts about its reflector that chat completions need."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reflectrl.config.agent_file import read_agent_file
from reflectrl.core import InvalidInput
from reflectrl.core.layout import POLICIES
from reflectrl.models.plain_text import PlainText
from reflectrl.pipeline.agent import Agent, load_agent
from reflectrl.pipeline.folder import read_recipe
from reflectrl.serving.wire import ChatChoice, ChatReply, ChatUsage


@dataclass(frozen=True)
class ReflectorInfo:
    """Limits and tokenizer of a reflector."""

    max_tokens: int
    """Maximum number of tokens it writes."""
    temperature: float
    tokenizer: Any | None
    """Tokenizer of the reflector; ``None`` for a chat endpoint."""

    def completion(self, prompt: str, text: str, limit: int | None, stop: Sequence[str]) -> ChatReply:
        """Return ``text`` as a completion of ``prompt``, cut before each of ``stop`` and after ``limit`` tokens."""
        reason, usage = "stop", None
        for end in stop:
            text = text.partition(end)[0]
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


def reflector_info(agent: Agent) -> ReflectorInfo | None:
    """Return the facts about an agent's reflector; ``None`` without one."""
    if agent.reflector is None:
        return None
    settings = agent.recipe.players.reflector
    if (tokenizer := agent.tokenizers.get("reflector")) is not None:
        return ReflectorInfo(settings.max_new_tokens, settings.temperature_at_play, tokenizer)
    sent = settings.endpoint.temperature
    return ReflectorInfo(settings.endpoint.max_tokens, 1.0 if sent is None else sent, None)  # 1 is OpenAI's default


def load_served_agent(
    run: Path, policy: str | None = None, *, greedy: bool | None = None, allow_hosts: Collection[str] = ()
) -> Agent:
    """Load the agent of a run folder, or an exported one; arguments are those of ``load_agent``.

    Raises:
        InvalidInput: as ``load_agent``; and one of its players is the expert, or it reads pictures.

    """
    recipe = read_recipe(run, hosts=allow_hosts, given=None)
    before_act = {"reflector": recipe.players.reflector, "planner": recipe.players.planner}
    experts = [f"players.{role}.player" for role, each in before_act.items() if each and each.player == "expert"]
    if experts:
        raise InvalidInput(
            f"{run} was trained with the expert's words ({', '.join(experts)}), which exist only inside the "
            f"environment; serve a run with another {experts[0]}, or use this one with `reflectrl play`."
        )
    if recipe.model.images:
        raise InvalidInput(
            f"{run} was trained to read pictures (model.images), but requests carry text; serve an agent that reads "
            "text, or use this one with reflectrl.load_agent."
        )
    agent = load_agent(run, policy=policy, greedy=greedy, reuse_replies=False, allow_hosts=allow_hosts)
    which = "exported agent" if read_agent_file(run) else f"policy after {POLICIES[agent.name].upper()}"
    who = f"{run.resolve().name} ({which})"
    # menus in the order given, also for an agent trained on shuffled ones: to it, all orders are the same
    return replace(agent, who=who, layout=replace(agent.layout, shuffle=False))
