"""What prompts show of past steps: actions alone, or states with their actions and rewards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from note import Note
from records import prompts_of

from reflectrl.core import Image, InvalidInput, Observation
from reflectrl.core.jsonl import decode, encode
from reflectrl.prompts import History, PromptFormat
from reflectrl.prompts.views import Role
from reflectrl.rollout import Episode, rollout
from reflectrl.seats.others import ExpertPolicy
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import reflecting

HALL = Observation("A hall.\nIt is dark.", ("go",))
CELLAR = Observation("A cellar with a long story.", ("dig",), short="cellar")
HERE = Observation("A garden.", ("go",))
PAST = {"past": ["go", "dig"], "visited": [HALL, CELLAR], "rewards": [-0.5, 1]}


def text(layout: PromptFormat, observation: Observation = HERE, **past: object) -> str:
    return layout.prompt(Role("reflector"), observation, said={}, **{**PAST, **past}).text


def test_transitions_to_the_letter() -> None:
    states = PromptFormat("Dig.", history=History(show="transitions"))
    assert text(states) == "Dig.\nA hall.\nIt is dark.\nPast: go\ncellar\nPast: dig\nA garden.\nReflection:"
    rewarded = PromptFormat(history=History(show="transitions", reward=True))
    assert text(rewarded) == (
        "A hall.\nIt is dark.\nPast: go (reward -0.5)\ncellar\nPast: dig (reward 1)\nA garden.\nReflection:"
    )
    assert text(PromptFormat(history=History(reward=True))) == (
        "Past: go (reward -0.5)\nPast: dig (reward 1)\nA garden.\nReflection:"
    )
    assert text(states, HALL, past=[], visited=[]) == "Dig.\nA hall.\nIt is dark.\nReflection:"


@pytest.mark.parametrize(("steps", "shown"), [(0, ""), (1, "cellar\nPast: dig\n")])
def test_the_oldest_steps_are_left_out_whole(steps: int, shown: str) -> None:
    assert text(PromptFormat(history=History(steps, "transitions"))) == f"{shown}A garden.\nReflection:"
    whole = PromptFormat(history=History(show="transitions")).prompt(Role("reflector"), HERE, said={}, **PAST)
    assert whole.fit(lambda prompt: len(prompt.text), len(whole.text) - 1).history == ("cellar\nPast: dig\n",)


def test_a_player_that_sees_pictures_reads_short_forms_only() -> None:
    pictured = PromptFormat(history=History(show="transitions"), images=("reflector",))
    here = replace(HERE, images=(Image(b"\x89PNG"),))
    assert text(pictured, here) == "Past: go\ncellar\nPast: dig\nReflection:"


@pytest.mark.parametrize(
    ("history", "missing", "fact"),
    [
        (
            History(show="transitions"),
            {"visited": [HALL]},
            r"past states \(prompt.history.show=transitions\), but 1 .*2",
        ),
        (History(reward=True), {"rewards": []}, r"past rewards \(prompt.history.reward=true\), but 0 .*2"),
    ],
)
def test_a_past_that_is_shown_must_be_there(history: History, missing: dict[str, object], fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact):
        text(PromptFormat(history=history), **missing)
    assert text(PromptFormat(), **missing) == "Past: go\nPast: dig\nA garden.\nReflection:"


def test_a_number_stands_for_that_many_actions() -> None:
    assert PromptFormat(history=History(3)) == PromptFormat(history=3)
    assert PromptFormat(history=3).recent == History(3, "actions", reward=False)
    for layout in (PromptFormat(history=3), PromptFormat(history=History(2, "transitions"))):
        assert decode(PromptFormat, encode(layout), "line 1") == layout
    assert encode(PromptFormat(history=History(3)))["history"] == 3


def test_prompts_grow_by_whole_states() -> None:
    layout = PromptFormat("Find the door.", history=History(2, "transitions"))
    [played] = rollout(
        [env := Note(corridor=2)],
        [Episode(env.tasks("train")[0], 0)],
        policy=ExpertPolicy(),
        seats=reflecting(ExpertReflector()),
        layout=layout,
    )
    policies = [policy for _, policy in prompts_of(played, layout)]
    states = [prompt.text[: prompt.text.index("Reflection:")] for prompt in policies]
    assert states[0] == "Find the door.\nA note: left.\n"
    assert states[1] == f"{states[0]}Past: walk\nA corridor.\n"
    assert states[2] == f"{states[1]}Past: walk\nA corridor.\n"
    assert states[3] == "Find the door.\n" + "A corridor.\nPast: walk\n" * 2 + "Doors.\n"
