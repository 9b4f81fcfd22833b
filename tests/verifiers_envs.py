"""Environments of verifiers for the tests: gymnasium's FrozenLake in several turns, and a doorman with faults."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import verifiers as vf
from datasets import Dataset
from openai import AsyncOpenAI
from verifiers.envs.experimental.gym_env import GymEnv

MOVES = ("left", "down", "right", "up")
LEFT: list[str] = []
"""Names of those whose rollouts have been cleaned up."""


def lake(turns: int = 8) -> GymEnv:
    return GymEnv(
        partial(gymnasium.make, "FrozenLake-v1", is_slippery=False),
        action_parser=MOVES.index,
        obs_to_text=lambda square: f"You are on square {square} of 16.",
        num_train_episodes=4,
        num_eval_episodes=4,
        max_episode_steps=turns,
        system_prompt="Walk to square 15.",
    )


def greeted(completion: Any, answer: str, parser: vf.Parser) -> float:
    return float((parser.parse_answer(completion) or "").strip() == f"hello {answer}")


def broken(completion: Any) -> float:
    raise ZeroDivisionError(f"{len(completion)} words, none of them right")


async def slow() -> float:
    await asyncio.sleep(3600)
    return 1.0


class Unscored(vf.Rubric):
    async def score_rollout(self, state: Any) -> None:
        state["reward"] = None


class Judged(vf.RubricGroup):
    def __init__(self) -> None:
        client = AsyncOpenAI(api_key="none", base_url="http://127.0.0.1:9")
        super().__init__([vf.Rubric(), vf.JudgeRubric(judge_client=client)])


RUBRICS = {
    "raises": lambda: vf.Rubric([broken]),
    "nan": lambda: vf.Rubric([lambda: float("nan")]),
    "late": lambda: vf.Rubric([slow]),
    "none": Unscored,
    "judge": Judged,
    "group": lambda: vf.Rubric([lambda completions: [1.0 for _ in completions]]),
}
PARSERS = {
    "plain": vf.Parser,
    "xml": partial(vf.XMLParser, ["plan", ("said", "answer")], answer_field="said"),
    "think": vf.ThinkParser,
}


class Doorman(vf.MultiTurnEnv):
    """Asks for a name, says something else with a fault, and wants a greeting."""

    def __init__(self, fault: str, **given: Any) -> None:
        super().__init__(**given)
        self._fault = fault

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:  # noqa: ARG002
        if self._fault == "error":
            raise vf.Error("the door is locked")
        if self._fault == "bug":
            raise KeyError("door")
        shown: Any = "Greet me."
        if self._fault == "picture":
            shown = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        return [{"role": "user", "content": shown}]

    @vf.cleanup
    async def leave(self, state: Any) -> None:
        LEFT.append(state["answer"])


def door(fault: str = "", parser: str = "plain", turns: int = 2, names: Sequence[int] = range(8)) -> vf.Environment:
    rows = [{"question": f"I am number {n}. Who are you?", "answer": f"number {n}"} for n in names]
    ours = PARSERS[parser]()
    rubric = RUBRICS[fault]() if fault in RUBRICS else vf.Rubric([greeted], parser=ours)
    return Doorman(fault, dataset=Dataset.from_list(rows), rubric=rubric, parser=ours, max_turns=turns)


def armed() -> vf.Environment:
    rows = [{"question": "What is 1 + 1?", "answer": "2"}]
    return vf.ToolEnv(tools=[add], dataset=Dataset.from_list(rows), rubric=vf.Rubric([greeted]))


def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other
