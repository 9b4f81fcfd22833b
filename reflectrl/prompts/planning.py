"""Chats of a planner: a plan at the start of an episode, and a memory key from a thought (RAP, section 3.3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from reflectrl.core.chat import Messages
from reflectrl.prompts.prompt import Prompt

PLAN_BEGINS = "To solve the task,"
PLANNER_ROLE = (
    f"You plan a game before it is played. Say in one sentence of at most 40 words, which begins with '{PLAN_BEGINS}', "
    "what has to be done and in which order. Answer with that sentence only."
)
KEY_ROLE = (
    "A player thinks aloud, and you choose what to look up in records of earlier games. If the player is looking for "
    "something, answer 'search: ' and its name. If the player is about to do something, answer 'action: ' and its "
    "verb. Answer with that line only."
)
_KEYS = (
    ("I have to find a mug first, which may be on a shelf.", "search: mug"),
    ("I hold the mug now. I should wash it in the sink.", "action: clean"),
    ("The tomato is cold. Now I put it in the microwave.", "action: put"),
    ("There is no lamp here. I go on looking for one.", "search: lamp"),
)
_SENTENCE = re.compile(r".*?(?:[.!?](?=\s+[A-Z]|$)|$)")
"""Matches up to an end mark before a capital, so that ``e.g.`` ends no sentence, or up to the end."""


class PlanExample(NamedTuple):
    """A past task and its plan."""

    task: str
    plan: str


def plan_chat(prompt: Prompt, examples: Sequence[PlanExample]) -> Messages:
    """Return the chat that asks for a plan in the state of a planner's ``prompt``, after ``examples`` of plans."""
    shown = "".join(f"Task: {' '.join(task.split())}\nPlan: {plan}\n" for task, plan in examples)
    here = "".join((prompt.head, prompt.state))
    return _chat(PLANNER_ROLE, f"{shown}{here}\nPlan this game.")


def read_plan(reply: str) -> str:
    """Return the sentence of a reply that begins with ``PLAN_BEGINS``, or its first one without a cue ``Plan:``."""
    line = " ".join(reply.split()).removeprefix("Plan:").strip()
    found = _SENTENCE.match(line, max(0, line.find(PLAN_BEGINS)))
    return found[0].strip() if found else ""


def key_chat(thought: str) -> Messages:
    """Return the chat that asks what to look up in memory after a thought or reflection."""
    shown = "".join(f"Thought: {example}\nAnswer: {key}\n" for example, key in _KEYS)
    return _chat(KEY_ROLE, f"{shown}\nThought: {' '.join(thought.split())}")


def _chat(role: str, asked: str) -> Messages:
    return [{"role": "system", "content": role}, {"role": "user", "content": asked}]
