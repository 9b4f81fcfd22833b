"""The planner: its prompts, the past plans in them, and how its answers become keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from remembered import OneHot, past, seen
from scripted_endpoint import ScriptedEndpoint
from tiny import gpt2, tokenizer

from reflectrl.core.messages import Messages
from reflectrl.endpoint.client import ChatClient
from reflectrl.lm.load import LanguageModel
from reflectrl.seats.base import FrozenModel
from reflectrl.seats.memory import Memory, parsed_key
from reflectrl.seats.planner import Planner, RemoteText, key_chat, local_text, plan_chat, read_plan
from reflectrl.seats.retriever import Retriever, Windows

STEPS = [(f"act{number}", f"see{number}") for number in range(6)]
MUG = past("find a mug", *STEPS, plan="look on shelves")
LAMP = past("find a lamp", *STEPS, plan="look on desks")
ROOM = replace(seen("Here is a room.", task="find a mug\nA kitchen."), task_id="find a mug")


class Model:
    """Model that answers with given words, and records the chats."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def write(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        assert len(chats) == len(draws)
        self.asked += [chat[1]["content"] for chat in chats]
        return [self.answers.pop(0) for _ in chats]


def test_a_planner_is_shown_the_plans_of_similar_tasks_of_others_and_the_state():
    model = Model("Plan: To solve the task, open all. Then rest.")
    planner = Planner(model, Retriever([LAMP, MUG], OneHot(), action=Windows(3, 1)))
    assert [words.text for words in planner.say([ROOM], [0.5])] == ["To solve the task, open all."]
    [asked] = model.asked
    assert "Task: find a lamp\nPlan: look on desks\n" in asked
    assert "look on shelves" not in asked  # the task's own episode
    assert "find a mug\nA kitchen.\nHere is a room.\n" in asked


@pytest.mark.parametrize(
    ("reply", "plan"),
    [
        *[("", ""), ("Go.", "Go."), (" To win, go\n up! And on.", "To win, go up!"), ("no end", "no end")],
        ("Sure! To solve the task, I find a mug. Then more.", "To solve the task, I find a mug."),
        ("To solve the task, heat it, e.g. in a microwave. Done.", "To solve the task, heat it, e.g. in a microwave."),
    ],
)
def test_a_plan_is_the_sentence_that_was_asked_for_or_the_first_one_of_a_reply(reply: str, plan: str) -> None:
    assert read_plan(reply) == plan


def test_after_a_reflection_the_planner_says_what_the_memory_looks_for_and_its_plan_stays_one():
    model = Model("action: act4", "hm", "search: see1")
    logs = Retriever([MUG, past("other", *STEPS)], OneHot(), action=Windows(1, 1), observation=Windows(1, 1))
    memory = Memory(logs, key="planner", planner=Planner(model))
    view = replace(seen("", "go", task="find a mug"), said={"planner": "look on shelves", "reflector": "I act."})
    [words] = memory.say([view], [0.0])
    assert words.text == "Done before: find a mug Plan: look on shelves [...] > act3: see3 > act4: see4"
    later = replace(view, before={"memory": words.text})
    assert [each.text for each in memory.say([later], [0.0])] == [words.text]  # without a key, the words are as before
    [words] = memory.say([view], [0.0])
    assert "see1" in words.text
    assert all(asked.endswith("Thought: I act.") for asked in model.asked)
    assert memory.counts.key_misses == 1
    silent = replace(view, said={})
    memory.say([silent], [0.0])
    assert len(model.asked) == 3  # there was no reflection to derive a key from


def test_the_examples_in_the_question_for_a_key_are_keys():
    lines = key_chat("")[1]["content"].splitlines()
    answers = [line.removeprefix("Answer: ") for line in lines if line.startswith("Answer: ")]
    assert len(answers) >= 3
    assert None not in map(parsed_key, answers)


def test_models_behind_an_endpoint_and_in_this_process_answer_on_one_line(endpoint: ScriptedEndpoint):
    chats = [plan_chat(ROOM.prompt, []), key_chat("I look for a mug.")]
    endpoint.reply = lambda chat: "search:\nmug" if "mug." in chat[1]["content"] else "Go."
    assert RemoteText(ChatClient(endpoint.at())).write(chats, [0.0, 0.0]) == ["Go.", "search: mug"]
    model = gpt2(spread=0.3, n_positions=512)
    local = local_text(FrozenModel(LanguageModel(model, tokenizer()), 512), 8)
    said = local.write(chats, [0.0, 0.0])
    passes: list[object] = []
    model.register_forward_hook(lambda *_: passes.append(None))
    assert local.write([chats[0], *chats], [0.0] * 3) == [said[0], *said]
    assert passes == []  # equal questions are answered once
    assert all("\n" not in text for text in said)


def test_examples_stay_as_they_were_while_a_server_gives_the_planner_no_key(endpoint: ScriptedEndpoint):
    endpoint.reply = lambda _: "action: act4"
    model = RemoteText(
        client := ChatClient(endpoint.at(max_attempts=1, concurrency=1, max_rejected=1), skip_failures=True)
    )
    logs = Retriever([MUG], OneHot(), action=Windows(1, 1))
    memory = Memory(logs, key="planner", planner=Planner(model))
    view = replace(seen("", "go", task="find a mug"), said={"planner": "", "reflector": "I act."})
    [shown] = memory.say([view], [0.0])
    assert "act4" in shown.text
    endpoint.faults.append("500")
    [kept] = memory.say([replace(view, before={"memory": shown.text})], [0.0])
    assert (kept.text, client.usage.rejected, memory.counts.key_misses) == (shown.text, 1, 1)
