"""Teachers' chats, and the checks that keep hidden knowledge out of their reflections."""

from __future__ import annotations

import pytest

from reflectrl.core import Hints, Observation
from reflectrl.core.messages import BadReply, Messages
from reflectrl.prompts import Menu, Prompt, PromptFormat, TeacherPrompts
from reflectrl.prompts.chats import policy_chat, read_label
from reflectrl.prompts.teacher import claims, leaks, read_discreet, read_honest
from reflectrl.prompts.views import State, View
from reflectrl.seats.table import view

HALL = Observation("A hall.", ("go east", "go west"), task="Find the door.")
PROMPTS = TeacherPrompts("Find the exit.")
SHOWN = "Past: none\nA hall.\nReflection:"


def seen(*past: str) -> View:
    return view("reflector", PromptFormat(history=1), State(HALL, past))


def said(chat: Messages, role: str) -> str:
    return "\n".join(message["content"] for message in chat if message["role"] == role)


# ---- chats -----------------------------------------------------------------------------------------------------------


def test_a_teacher_reflects_and_then_chooses_from_the_menu() -> None:
    first = PROMPTS.reflect(seen("go north", "go south"))
    assert [message["role"] for message in first] == ["system", "user"]
    assert said(first, "system").endswith("Find the exit.")
    assert said(first, "user").startswith("Find the door.\nPast: go south\nA hall.\n")
    assert not any(hidden in said(first, "user") for hidden in ("go east", "go north"))
    chat = PROMPTS.choose(first, "East looks bright.", Menu(("0", "1"), HALL.actions))
    assert chat[:2] == first
    assert chat[2] == {"role": "assistant", "content": "East looks bright."}
    assert chat[3]["content"].startswith("0. go east\n1. go west\n")


def test_a_spoiler_and_a_mistake_are_named_only_where_there_are_some() -> None:
    plain, spoiled = PROMPTS.reflect(seen()), PROMPTS.reflect(seen(), spoiler="The key is in the vase.")
    assert "note" not in said(plain, "system")
    assert "never quote the note" in said(spoiled, "system")
    assert "Private note: The key is in the vase." in said(spoiled, "user")
    asked = {known: said(PROMPTS.reflect(seen("go west"), mistaken=known), "user") for known in (True, None, False)}
    assert "was a mistake" in asked[True]
    assert "may have been a mistake" in asked[None]
    assert "mistake" not in asked[False]


LABELS = Menu(("0", "1", "2", "3"), ("cat 'a b.md'", "turn left.", "use (lamp)", "turn left"))


@pytest.mark.parametrize("around", ["{}", "`{}`", "**{}**.", '"{}"\n', "({})", " [{}] "])
def test_a_label_or_a_whole_line_is_read(around: str) -> None:
    for place, line in enumerate(LABELS.text.splitlines()):
        assert read_label(around.format(line), LABELS) == place
        assert read_label(around.format(LABELS.labels[place]), LABELS) == place


@pytest.mark.parametrize("reply", ["", "...", "4", "-1", "turn left", "1. turn right.", "0 or 1", "0\n1", "I choose 1"])
def test_anything_else_is_no_label(reply: str) -> None:
    with pytest.raises(BadReply, match="0, 1, 2, 3"):
        read_label(reply, LABELS)


def test_a_chat_shows_only_legal_actions() -> None:
    listed = Menu(("0", "2"), ("go", "wait"), ("go", "sing"), ("0", "1"))
    assert PROMPTS.choose([], "", listed)[1]["content"].startswith("0. go\n2. wait\n\n")
    assert [read_label(reply, listed) for reply in ("0", "2", "2. wait")] == [0, 1, 1]
    with pytest.raises(BadReply, match="exactly one of: 0, 2"):
        read_label("1", listed)
    prompts = [Prompt("", (), "", menu) for menu in (listed, LABELS)]
    assert ["Not now" in policy_chat(prompt)[0]["content"] for prompt in prompts] == [True, False]


# ---- discretion ------------------------------------------------------------------------------------------------------

HINTS = Hints("go east", "Good. The exit is near.", "The best next action is: go east. The exit is near.")
FILE = Hints(
    "cd serving",
    "The file is further down.",
    "The best next action is: cd serving. The file is /serving/wire.py.",
    secrets=("serving", "wire"),
)


@pytest.mark.parametrize(
    ("hints", "reply"),
    [
        (HINTS, "The best next action is: go east. The exit is near."),
        (HINTS, "I see: the BEST  next\naction is: go east, so be it."),
        (HINTS, "The private note says so."),
        (FILE, "I know the answer is /serving/wire.py."),
        (FILE, "The optimal move is cd serving, as I was told in the note."),
        (FILE, "According to the hidden information I should move south."),
        (FILE, "It must be in serving."),
        (FILE, "Look for WIRE."),
        (HINTS, "I should go east."),
        (HINTS, "It helps, going to the East, I think."),
        (Hints("move south", None, "Move south."), "Moving one step south brings us nearer."),
        (Hints(None, None, "The passenger waits at row 4 column 0."), "So, waits at row 4, near the wall."),
    ],
)
def test_spoilers_secrets_and_claims_do_not_get_through(hints: Hints, reply: str) -> None:
    with pytest.raises(BadReply):
        read_discreet(reply, hints, HALL.actions, SHOWN)


@pytest.mark.parametrize(
    ("hints", "reply", "shown"),
    [
        (HINTS, "The exit is near.", SHOWN),  # public
        (Hints("go east"), "I should go east.", SHOWN),  # without a spoiler, it cannot come from one
        (HINTS, "To go east led to a wall.", "Past: go east"),  # an action of the past
        (Hints("move south", None, "The best next action is: move south"), "The south is near.", SHOWN),
        (Hints("add one", None, "The best next action is: add one. It is far away."), "It is not far.", SHOWN),
        (FILE, "It must be in serving.", "Here: serving/ wire.py"),  # shown
        (FILE, "Look for WIRE.", "Here: serving/ wire.py"),
    ],
)
def test_words_that_are_public_or_shown_may_be_said(hints: Hints, reply: str, shown: str) -> None:
    assert read_discreet(reply, hints, HALL.actions, shown) == reply


def test_an_action_of_the_past_may_be_named_but_not_advised() -> None:
    hints = Hints("go east", None, "The best next action is: go east")
    for reply in ("You should now go east.", "Next, you go east.", "Let us try going to the east again."):
        with pytest.raises(BadReply, match="next action"):
            read_discreet(reply, hints, HALL.actions, "Past: go east\nA hall.")


def test_a_teacher_without_a_note_is_not_to_claim_knowledge_either() -> None:
    assert read_honest("I should\ngo east.", SHOWN) == "I should go east."
    with pytest.raises(BadReply, match="'best move'"):
        read_honest("East is the best move.", SHOWN)


@pytest.mark.parametrize(
    ("reflection", "found"),
    [
        ("The optimal, even OPTIMALLY chosen way was suboptimal.", ["optimal", "optimally", "suboptimal"]),
        ("East is the best next\nmove; the best\u00a0action.", ["best next move", "best action"]),
        ("Three steps at best. 5 actions are left.", ["at best", "5 actions are left"]),
        ("I know the right answer", ["i know the right answer"]),
        ("We already know the solution", ["we already know the solution"]),
        ("the hidden information, some private facts", ["hidden information", "private facts"]),
        ("As your note said. A spoiler!", ["your note", "spoiler"]),
        ("I was told to go east", ["was told"]),
        ("according to the oracle", ["according to the oracle"]),
        ("I am optimistic. The bestseller is in the notebook.", []),
        ("Note that the taxi is two steps left of the passenger.", []),
        ("I know the passenger waits in the north; the best I can do is to go there.", []),
        ("The answer may be in the docs folder.", []),
    ],
)
def test_claims_to_know_more_than_a_player_are_found(reflection: str, found: list[str]) -> None:
    assert list(claims(reflection, "A hall.")) == found
    assert claims(reflection, reflection) == ()  # the state itself may say so


@pytest.mark.parametrize(
    ("secret", "reflection", "shown", "leaked"),
    [
        ("wire", "Wire is further down.", "Folder: /", True),
        ("wire", "Wire is further down.", "Question: what goes over the WIRE?", False),
        ("wire", "The wireless set is further down.", "Folder: /", False),
        ("rl_finetune", "rl finetune is here", "Folder: /", True),
        ("rl_finetune", "finetune is here", "Folder: /", False),
        ("tomato 1", "tomato 1 is in fridge 1", "tomato 12, tomato 3", True),
        ("tomato 1", "tomato 1 is in fridge 1", "> open fridge 1\nyou see a tomato 1.", False),
        ("!", "Good!", "", False),
    ],
)
def test_secrets_are_compared_word_by_word(secret: str, reflection: str, shown: str, leaked: bool) -> None:
    assert leaks(reflection, shown, [secret]) == ((secret,) if leaked else ())
