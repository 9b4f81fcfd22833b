from __future__ import annotations

import pytest

from reflectrl.core import Hints, Observation
from reflectrl.prompts import Menu, PromptFormat, TeacherPrompts
from reflectrl.prompts.chat import BadReply
from reflectrl.prompts.teacher import read_discreet

HERE = Observation("A hall.", ("go east", "go west"))
MENU = Menu(("0", "1"), HERE.actions)
PROMPTS = TeacherPrompts("Find the exit.", PromptFormat(history=1))
HINTS = Hints("go east", "Good. The exit is near.", "The best next action is: go east. The exit is near.")


def said(chat: list[dict[str, str]], role: str) -> str:
    return "\n".join(message["content"] for message in chat if message["role"] == role)


def test_a_reflection_is_asked_without_the_menu() -> None:
    chat = PROMPTS.reflect(HERE, ("go north", "go south"))
    assert [message["role"] for message in chat] == ["system", "user"]
    assert said(chat, "system").endswith("Find the exit.")
    assert said(chat, "user").startswith("Past: go south\nA hall.\n")
    assert "50 words" in said(chat, "user")
    assert "go east" not in said(chat, "user")


def test_the_teacher_sees_as_much_of_the_past_as_the_players() -> None:
    assert "go north" not in said(PROMPTS.reflect(HERE, ("go north", "go south")), "user")


def test_the_teacher_reads_the_task_before_the_past() -> None:
    asked = Observation("A hall.", ("go",), task="Find the door.")
    chat = TeacherPrompts("", PromptFormat(history=1)).reflect(asked, ["go"])
    assert chat[1]["content"].startswith("Find the door.\nPast: go\nA hall.\n")


def test_the_choice_is_a_second_turn_of_the_same_chat() -> None:
    first = PROMPTS.reflect(HERE, ())
    chat = PROMPTS.choose(first, "East looks bright.", MENU)
    assert chat[:2] == first
    assert chat[2] == {"role": "assistant", "content": "East looks bright."}
    assert chat[3]["content"].startswith("0. go east\n1. go west\n")


def test_a_spoiler_comes_with_the_order_to_keep_it() -> None:
    plain, told = PROMPTS.reflect(HERE, ()), PROMPTS.reflect(HERE, (), spoiler="The key is in the vase.")
    assert "private" not in said(plain, "system")
    assert "never quote the note" in said(told, "system")
    assert "Private note: The key is in the vase." in said(told, "user")


def test_a_negative_example_asks_what_was_wrong_and_how_to_recover() -> None:
    asked = said(PROMPTS.reflect(HERE, ("go west",), mistaken=True), "user")
    assert "mistake" in asked
    assert "recover" in asked


@pytest.mark.parametrize(
    "reply",
    [
        "The best next action is: go east. The exit is near.",
        "I see: the BEST  next\naction is: go east, so be it.",
        "The private note says so.",
    ],
)
def test_a_reply_that_repeats_the_spoiler_is_refused(reply: str) -> None:
    with pytest.raises(BadReply, match="repeats the private note"):
        read_discreet(reply, HINTS, HERE.actions)


@pytest.mark.parametrize("reply", ["The exit is near.", "I should go east."])
def test_what_is_public_may_be_said(reply: str) -> None:
    assert read_discreet(reply, HINTS, HERE.actions) == reply


def test_a_spoiler_that_is_only_an_action_may_be_planned() -> None:
    assert read_discreet("I go east.", Hints("go east", None, "go east"), HERE.actions) == "I go east."
