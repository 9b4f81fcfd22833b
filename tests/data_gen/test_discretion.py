"""Hints to teachers on the last action, and secrets of the environment, which no row may contain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint
from trained_runs import play_stages

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task, make_env, register_env
from reflectrl.data_gen import generate, read_rows
from reflectrl.rollout.record import read_trajectories

WAS, MAY_HAVE_BEEN = "The last action was a mistake.", "The last action may have been a mistake."


def recipe(env: str, endpoint: ScriptedEndpoint | None = None, **data: object) -> Recipe:
    there = {"base_url": endpoint.url, "temperature": 0.7} if endpoint else {}  # so that equal calls are sampled again
    remote = {"teacher": "openai", "endpoint": there, "concurrency": 1} if endpoint else {}
    return Recipe.model_validate({"name": "test", "env": {"name": env}, "data": {"samples": 40, **remote, **data}})


class Vault(NatLangEnv):
    """Environment with a door that opens by a word, which is shown only after two steps of waiting."""

    name = "strongroom"
    observable = False
    mistakes: bool | None = None

    def __init__(self, eager: bool = False) -> None:
        super().__init__(horizon=9)
        self.eager = eager

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"{split}-{number}") for number in range(4)]

    def start(self, task: Task) -> None:  # noqa: ARG002
        self.waited = 0

    def observe(self) -> Observation:
        shown = "The word is AMBER." if self.waited >= 2 else "No word is seen."
        return Observation(shown, ("wait", "knock", "say the word"))

    def act(self, action: str) -> Outcome:
        self.waited += action == "wait"
        done = action == "say the word"
        return Outcome(float(done), ended=done, success=done)

    def expert(self) -> str:
        return "wait" if self.waited < 2 else "say the word"

    def reflection(self) -> str:
        return "Amber opens it." if self.waited or self.eager else "Something opens it."

    def spoiler(self) -> str:
        return "The word is amber."

    def mistaken(self) -> bool | None:
        return self.mistakes

    def secrets(self) -> Sequence[str]:
        return ["amber"]


class Even(Vault):
    """Environment in which no action is a mistake."""

    name = "even"
    mistakes = False


register_env("strongroom", Vault)
register_env("even", Even)


def test_a_chat_teacher_hears_of_a_mistake_where_one_was_made(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda _: "Here we are."
    generate(recipe("dangerous_taxi", endpoint, noise=0.9, negatives=0.0), tmp_path)
    env = make_env("dangerous_taxi")
    said, expected = [request.chat[1]["content"] for request in endpoint.requests], []
    for trajectory in read_trajectories(tmp_path / "data" / "teacher.jsonl")[1]:
        env.reset(seed=trajectory.seed, options={"task": trajectory.task})
        left, advised = [], True
        for action in trajectory.actions:
            left.append(env._left[env._state])
            expected.append(not advised and left[-1] >= left[-2])
            advised = action == env.expert()
            env.step(action)
    assert [WAS in content for content in said] == expected
    assert 5 < sum(expected) < len(expected) - 5
    assert not any("mistake." in content for content, wrong in zip(said, expected, strict=True) if not wrong)


def test_a_chat_teacher_hears_that_an_unknown_mistake_may_be_one(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda _: "Here we are."
    summary = generate(recipe("strongroom", endpoint, negatives=1.0), tmp_path)
    said = [request.chat[1]["content"] for request in endpoint.requests]
    assert 0 < summary.negatives <= sum(MAY_HAVE_BEEN in content for content in said) < len(said)
    assert not any(WAS in content for content in said)


def test_where_no_action_is_worse_there_is_no_negative_sample(tmp_path: Path) -> None:
    assert generate(recipe("strongroom", negatives=1.0), tmp_path / "strongroom").negatives > 0
    assert generate(recipe("even", negatives=1.0), tmp_path / "even").negatives == 0


def rows(folder: Path) -> dict[str, str]:
    return {row.prompt.text.split("\n")[-2]: row.completion for row in read_rows(folder / "sft" / "reflector.jsonl")}


HONEST = {"No word is seen.": " Something opens it.", "The word is AMBER.": " Amber opens it."}


def test_a_reflection_with_a_hidden_word_makes_no_row(tmp_path: Path) -> None:
    shown = play_stages(recipe("strongroom"), tmp_path, "gen-data")
    assert rows(tmp_path) == HONEST
    summary = generate(recipe("strongroom"), tmp_path)
    assert summary.samples == 40
    assert f"; {summary.indiscreet} that" in shown
    assert summary.indiscreet >= len(read_trajectories(tmp_path / "data" / "teacher.jsonl")[1]) > 0


@pytest.mark.slow
def test_an_oracle_is_asked_again_for_a_reflection_without_the_hidden_word(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    def talkative(chat: Chat) -> str:
        if "The word is AMBER." in chat[1]["content"]:
            return "Amber opens it."
        return "Something opens it." if len(chat) > 2 else "I would say amber."

    endpoint.reply = talkative
    summary = generate(recipe("strongroom", endpoint), tmp_path)
    assert (summary.samples, summary.indiscreet) == (40, 0)
    assert rows(tmp_path) == HONEST
    [complaint] = {request.chat[-1]["content"] for request in endpoint.requests if len(request.chat) > 2}
    assert "'amber'" in complaint


@pytest.mark.slow
def test_a_teacher_that_plays_and_guesses_the_hidden_word_is_left_out(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    def guessing(chat: Chat) -> str:
        seen = "The word is AMBER." in chat[1]["content"]
        if "Now choose" in chat[-1]["content"]:
            return "2" if seen else "0"
        return "Amber opens it." if seen or "Past: wait" in chat[1]["content"] else "Something opens it."

    endpoint.reply = guessing
    assert generate(recipe("strongroom", endpoint, trajectory="teacher"), tmp_path).indiscreet > 0
    assert rows(tmp_path) == HONEST


class Blabber(Vault):
    """Environment that never shows the word that its expert always tells."""

    name = "blabber"

    def observe(self) -> Observation:
        return Observation("No word is seen.", ("wait", "knock", "say the word"))


def test_an_environment_that_can_give_no_row_is_refused(tmp_path: Path) -> None:
    register_env(Blabber.name, Blabber)
    given = Recipe.model_validate({"name": "test", "env": {"name": Blabber.name, "options": {"eager": True}}})
    with pytest.raises(InvalidInput, match="all 4 training tasks .*secret"):
        generate(given, tmp_path)
