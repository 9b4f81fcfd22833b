"""A reflector that carries its words reads its reflection of the step before, at play as in its rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from note import DOORS, Note
from records import prompts_of
from scripted_endpoint import ScriptedEndpoint

from reflectrl.config import Recipe, load_recipe
from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task, Trajectory, Utterance, register_env
from reflectrl.data_gen import generate, read_rows
from reflectrl.data_gen.rows import Sample, with_wrong_notes
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.prompts import Prompt, PromptFormat
from reflectrl.prompts.players import CachedPlayer, Player
from reflectrl.prompts.views import State
from reflectrl.report.judged import judged_steps
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.pool import WorkerPool
from reflectrl.rollout.record import Header, read_trajectories, write_trajectories
from reflectrl.seats.others import ExpertPolicy
from reflectrl.seats.reflector import ExpertReflector, RemoteReflector, ScriptedReflector
from reflectrl.seats.table import reflecting, view

register_env("note", Note)
LAYOUT = PromptFormat(history=0, carry=True)
FORGETFUL = PromptFormat(history=0)


def played(layout: PromptFormat, player: Player, env: NatLangEnv | None = None) -> list[Trajectory]:
    env = env or Note()
    episodes = [Episode(task, 0) for task in env.tasks("train")]
    return rollout([env], episodes, policy=ExpertPolicy(), seats=reflecting(player), layout=layout)


def test_the_reflector_reads_its_last_words() -> None:
    said = iter(["one", "two", "three"] * 3)
    [first, *_] = played(LAYOUT, ScriptedReflector(lambda _: next(said)))
    reflector, policy = zip(*prompts_of(first, LAYOUT), strict=True)
    assert [prompt.text for prompt in reflector] == [
        "A note: left.\nBefore:\nReflection:",
        "A corridor.\nBefore: one\nReflection:",
        "Doors.\nBefore: two\nReflection:",
    ]
    assert policy[2].text == "Doors.\nReflection: three\n0. left\n1. middle\n2. right\nAction:\n"
    assert view("reflector", FORGETFUL, State(Observation("Here.", ()), before={"reflector": "Words."})).before == {}


def test_a_file_re_creates_the_prompts_of_such_a_reflector(tmp_path: Path) -> None:
    asked: list[Prompt] = []

    class Noting(CachedPlayer):
        def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002
            asked.extend(prompts)
            return [Utterance(f"I read {len(prompt.text)}.") for prompt in prompts]

    write_trajectories(tmp_path / "t.jsonl", Header("note", {}, LAYOUT), played(LAYOUT, Noting(0)))
    header, episodes = read_trajectories(tmp_path / "t.jsonl")
    assert [prompt for each in episodes for prompt, _ in prompts_of(each, header.prompt)] == asked


def test_the_cache_tells_apart_equal_states_after_other_words() -> None:
    class Repeating(CachedPlayer):
        def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002
            return [Utterance(prompt.text.splitlines()[-3 if "note" in prompt.text else -2][-5:]) for prompt in prompts]

    notes = [[turn.reflection for turn in each.turns] for each in played(LAYOUT, Repeating(100))]
    assert notes == [["left."] * 3, ["ddle."] * 3, ["ight."] * 3]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_expert_builds_on_its_words_only_where_they_are_carried(workers: int) -> None:
    with WorkerPool(1) as pool:
        env = pool.make("note", {}, 1)[0] if workers else Note()
        known = [[turn.reflection for turn in each.turns] for each in played(LAYOUT, ExpertReflector(), env)]
        forgotten = [[turn.reflection for turn in each.turns] for each in played(FORGETFUL, ExpertReflector(), env)]
    assert known == [[f"Door {door}."] * 3 for door in ("left", "middle", "right")]
    assert forgotten == [[f"Door {door}.", "Go on.", "Go on."] for door in ("left", "middle", "right")]


def test_the_audit_compares_with_an_expert_of_the_same_words() -> None:
    for episode in played(LAYOUT, ExpertReflector()):
        assert all(step.right for step in judged_steps(Note(), LAYOUT, episode, frozenset()))


def recipe(**data: object) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "notes",
            "env": {"name": "note"},
            "players": {"reflector": {"carry": True}},
            "data": {"samples": 60, "negatives": 0.5, **data},
            "prompt": {"history": 0},
        }
    )


def test_rows_show_what_the_teacher_said_before(tmp_path: Path) -> None:
    generate(recipe(negatives=0), tmp_path)
    header, taught = read_trajectories(tmp_path / "data" / "teacher.jsonl")
    shown = [(mine.text, theirs.text) for each in taught for mine, theirs in prompts_of(each, header.prompt)]
    for name, place in (("reflector", 0), ("policy", 1)):
        rows = read_rows(tmp_path / "sft" / f"{name}.jsonl")
        assert [row.prompt.text for row in rows] == [pair[place] for pair in shown][: len(rows)]
    texts = {(row.prompt.text, row.completion) for row in read_rows(tmp_path / "sft" / "reflector.jsonl")}
    assert ("Doors.\nBefore: Door left.\nReflection:", " Door left.") in texts


def sample(previous: str, reflection: str, *, correctable: bool) -> Sample:
    task, here = Note().tasks("train")[0], Observation("Doors.", ("left",))
    return Sample(task, 0, ("walk",), here, ("left",), reflection, "left", True, (), (), previous, correctable)


def test_half_of_the_correctable_mistakes_follow_a_wrong_note() -> None:
    samples = [sample("Right.", f"Words {n}.", correctable=n % 2 == 0) for n in range(400)]
    noted = with_wrong_notes(samples, random.Random(0))
    changed = [new for new, old in zip(noted, samples, strict=True) if new.previous != old.previous]
    assert 80 < len(changed) < 120
    assert all(each.correctable for each in changed)
    assert [each.reflection for each in noted] == [each.reflection for each in samples]
    assert {each.previous for each in changed} <= {each.reflection for each in samples}


class Lamp(Note):
    """Note whose corridor shows the note again to a player that runs and stumbles."""

    name = "lamp"

    def start(self, task: Task) -> None:
        super().start(task)
        self._stumbled = False

    def observe(self) -> Observation:
        seen = super().observe()
        if "walk" not in seen.actions:
            return seen
        text = f"You stumbled. The note: {self._door}." if self._stumbled else seen.text
        return replace(seen, text=text, actions=("walk", "run"))

    def act(self, action: str) -> Outcome:
        self._stumbled = action == "run"
        return super().act("walk" if action == "run" else action)

    def mistaken(self) -> bool:
        return self._stumbled

    def reflection(self, previous: str | None = None) -> str:
        shown = "You stumbled" in self.observe().text
        return f"Up again, door {self._door}." if shown else super().reflection(previous)


def test_which_mistakes_are_correctable(tmp_path: Path) -> None:
    register_env("lamp", Lamp)
    generate(recipe().model_copy(update={"env": recipe().env.__class__(name="lamp")}), tmp_path)
    rows = [row for row in read_rows(tmp_path / "sft" / "reflector.jsonl") if row.negative]
    wrong = [row for row in rows if row.completion.strip()[-6:] != row.prompt.said.strip()[-6:]]
    assert wrong
    assert all("You stumbled" in row.prompt.text for row in wrong)
    assert all(row.completion.split("door ")[1] in row.prompt.text for row in wrong)


def test_chat_models_are_shown_their_carried_words(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda _: f"Words {len(endpoint.requests)}."
    asks = {"teacher": "openai", "endpoint": {"base_url": endpoint.url}, "samples": 3, "negatives": 0, "concurrency": 1}
    generate(recipe(**asks), tmp_path)
    chats = [request.chat for request in endpoint.requests]
    first, *others = [chat[1]["content"].split("\n\n")[0] for chat in chats]
    assert first in [f"A note: {door}.\nBefore:" for door in DOORS]
    assert others == ["A corridor.\nBefore: Words 1.", "Doors.\nBefore: Words 2."]
    assert all("After `Before:` stands your reflection" in chat[0]["content"] for chat in chats)
    endpoint.requests.clear()
    played(LAYOUT, RemoteReflector(ChatClient(Endpoint(base_url=endpoint.url))))
    assert any("Before: Words" in request.chat[1]["content"] for request in endpoint.requests)
    assert all("After `Before:` stands your reflection" in request.chat[0]["content"] for request in endpoint.requests)


@pytest.mark.parametrize(
    ("overrides", "fact"),
    [
        (["players.reflector.player=none", "eval.controls=[]"], "player is none, which reads none"),
        (["players.reflector.player=expert"], "player is expert, which reads none"),
        (["players.reflector.trained=true"], "carry=false"),
    ],
)
def test_words_that_nobody_would_read_are_not_carried(overrides: list[str], fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact):
        load_recipe("number_line/nano", ["players.reflector.carry=true", *overrides])
