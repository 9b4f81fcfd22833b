from __future__ import annotations

import pytest

from reflectrl.core import Hints, Observation
from reflectrl.core.chat import BadReply
from reflectrl.prompts import Menu, PromptFormat, TeacherPrompts
from reflectrl.prompts.teacher import read_discreet, read_honest
from reflectrl.prompts.views import State, view

HERE = Observation("A hall.", ("go east", "go west"))
MENU = Menu(("0", "1"), HERE.actions)
LAYOUT = PromptFormat(history=1)


def seen(observation, past=()):
    return view("reflector", LAYOUT, State(observation, tuple(past)))


PROMPTS = TeacherPrompts("Find the exit.")
SHOWN = f"Past: none\n{HERE.text}\nReflection:"
HINTS = Hints("go east", "Good. The exit is near.", "The best next action is: go east. The exit is near.")


def said(chat: list[dict[str, str]], role: str) -> str:
    return "\n".join(message["content"] for message in chat if message["role"] == role)


def test_a_reflection_is_asked_without_the_menu() -> None:
    chat = PROMPTS.reflect(seen(HERE, ("go north", "go south")))
    assert [message["role"] for message in chat] == ["system", "user"]
    assert said(chat, "system").endswith("Find the exit.")
    assert said(chat, "user").startswith("Past: go south\nA hall.\n")
    assert "50 words" in said(chat, "user")
    assert "go east" not in said(chat, "user")


def test_the_teacher_sees_as_much_of_the_past_as_the_players() -> None:
    assert "go north" not in said(PROMPTS.reflect(seen(HERE, ("go north", "go south"))), "user")


def test_the_teacher_reads_the_task_before_the_past() -> None:
    asked = Observation("A hall.", ("go",), task="Find the door.")
    chat = TeacherPrompts("").reflect(seen(asked, ["go"]))
    assert chat[1]["content"].startswith("Find the door.\nPast: go\nA hall.\n")


def test_the_choice_is_a_second_turn_of_the_same_chat() -> None:
    first = PROMPTS.reflect(seen(HERE, ()))
    chat = PROMPTS.choose(first, "East looks bright.", MENU)
    assert chat[:2] == first
    assert chat[2] == {"role": "assistant", "content": "East looks bright."}
    assert chat[3]["content"].startswith("0. go east\n1. go west\n")


def test_a_spoiler_comes_with_the_order_to_keep_it() -> None:
    plain, told = PROMPTS.reflect(seen(HERE, ())), PROMPTS.reflect(seen(HERE, ()), spoiler="The key is in the vase.")
    assert "private" not in said(plain, "system")
    assert "never quote the note" in said(told, "system")
    assert "Private note: The key is in the vase." in said(told, "user")


def test_only_a_known_mistake_is_called_one() -> None:
    asked = {
        known: said(PROMPTS.reflect(seen(HERE, ("go west",)), mistaken=known), "user") for known in (True, None, False)
    }
    assert "The last action was a mistake. " in asked[True]
    assert "The last action may have been a mistake. " in asked[None]
    assert all("recover" in asked[known] for known in (True, None))
    assert "mistake" not in asked[False]


@pytest.mark.parametrize(
    "reply",
    [
        "The best next action is: go east. The exit is near.",
        "The best next action is go east!",
        "I see: the BEST  next\naction is: go east, so be it.",
        "The private note says so.",
    ],
)
def test_a_reply_that_repeats_the_spoiler_is_refused(reply: str) -> None:
    with pytest.raises(BadReply, match="repeats the private note"):
        read_discreet(reply, HINTS, HERE.actions, SHOWN)


@pytest.mark.parametrize("reply", ["The exit is near.", "I should go east."])
def test_what_is_public_may_be_said(reply: str) -> None:
    assert read_discreet(reply, HINTS, HERE.actions, SHOWN) == reply


def test_a_spoiler_that_is_only_an_action_may_be_planned() -> None:
    assert read_discreet("I go east.", Hints("go east", None, "go east"), HERE.actions, SHOWN) == "I go east."


FILE = Hints(
    "cd serving",
    "The file is further down.",
    "The best next action is: cd serving. The file is /serving/wire.py.",
    secrets=("serving", "wire"),
)


@pytest.mark.parametrize(
    "reply",
    [
        "I know the answer is /serving/wire.py.",
        "The best next action is cd serving.",
        "The optimal move is cd serving, as I was told in the note.",
        "According to the hidden information I should move south.",
        "5 actions are left at best.",
        "It must be in serving.",
        "Look for WIRE.",
    ],
)
def test_neither_a_hidden_word_nor_a_claim_to_know_more_gets_through(reply: str) -> None:
    with pytest.raises(BadReply, match=r"repeats the private note|Do not say '.+', which is more than the player"):
        read_discreet(reply, FILE, ("cd serving", "cd docs"), SHOWN)


@pytest.mark.parametrize("reply", ["It must be in serving.", "Look for WIRE."])
def test_a_word_that_is_shown_is_not_hidden(reply: str) -> None:
    shown = "Here: serving/ wire.py"
    assert read_discreet(reply, FILE, ("cd serving", "cd docs"), shown) == reply


def test_a_teacher_without_a_note_is_not_to_claim_knowledge_either() -> None:
    assert "never call an action optimal or the best" in said(PROMPTS.reflect(seen(HERE, ())), "system")
    assert read_honest("I should\ngo east.", SHOWN) == "I should go east."
    with pytest.raises(BadReply, match="Do not say 'best move', which is more"):
        read_honest("East is the best move.", SHOWN)
