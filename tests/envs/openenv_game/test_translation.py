"""The map between OpenEnv's messages and texts, on the schemas of environments that OpenEnv's authors publish."""

from __future__ import annotations

import pytest

from reflectrl.core import Observation
from reflectrl.envs.openenv_game import TextMap

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
MESSAGE = {"metadata": {"type": "object"}, "message": {**STRING, "description": "What to say."}}


def mapped(action, observation=None, needed=(), definitions=None, **more):
    """Return the map of an environment whose actions and observations have these fields."""
    schema = {"properties": action, "required": list(needed), "$defs": definitions or {}}
    return TextMap({"action": schema, "observation": {"properties": observation or {}}}, **more)


def test_an_action_with_one_field_is_any_text():
    words = mapped(MESSAGE, needed=["message"])
    assert (words.max_actions, words.instructions) == (0, "message: What to say.")
    for text in ("crane", "", "\u53f3\u3078", "\x07", "{not JSON}"):
        assert words.action(text) == {"message": text}


def test_an_enumeration_is_the_menu():
    grid = mapped(
        {"action": {"$ref": "#/$defs/Move"}},
        needed=["action"],
        definitions={"Move": {"enum": ["UP", "DOWN"], **STRING}},
    )
    assert grid.max_actions == 2
    seen = grid.observation({"x": 0, "y": 1, "message": "Go on.", "metadata": {}}, {})
    assert seen == Observation("x: 0\ny: 1\nmessage: Go on.", ("UP", "DOWN"))
    assert grid.action("DOWN") == {"action": "DOWN"}


def test_actions_that_a_state_lists_are_its_menu():
    four = mapped({"column": INTEGER}, {"legal_actions": {"type": "array"}}, needed=["column"], menu=7)
    assert four.max_actions == 7
    seen = four.observation({"board": [[0, 1], [1, 0]], "legal_actions": [3, 5]}, {})
    assert seen == Observation("0 1\n1 0", ("3", "5"))
    assert four.action("5") == {"column": 5}
    for wrong in ("five", "1_0", "5.5", "\u0665"):
        with pytest.raises(ValueError, match="was written; expected an integer"):
            four.action(wrong)


def test_a_number_is_plain_and_finite():
    dial = mapped({"degrees": {"type": "number"}}, needed=["degrees"])
    assert [dial.action(text)["degrees"] for text in ("5", "-0.5", "2e3", '{"degrees": 1.5}')] == [5, -0.5, 2000, 1.5]
    for wrong in ("nan", "inf", "1_0", "1e999", "", '{"degrees": NaN}', '{"degrees": 1e999}'):
        with pytest.raises(ValueError, match="was written; expected a number"):
            dial.action(wrong)
    either = mapped({"degrees": {"type": ["number", "null"]}}, needed=["degrees"])
    assert either.action("5") == {"degrees": "5"}


def test_names_that_are_given_are_the_menu():
    jack = mapped(MESSAGE, needed=["message"], actions=["[hit]", "[stand]"])
    assert (jack.max_actions, jack.observation({"prompt": "Play."}, {}).actions) == (2, ("[hit]", "[stand]"))


def test_several_fields_are_written_in_json():
    fire = mapped({"action": STRING, "x": INTEGER, "y": INTEGER}, needed=["action"])
    assert fire.action("wait") == {"action": "wait"}
    assert fire.action('{"action": "water", "x": 1, "y": 2}') == {"action": "water", "x": 1, "y": 2}
    assert fire.action('{"other": 1}') == {"action": '{"other": 1}'}
    both = mapped({"x": INTEGER, "y": INTEGER}, needed=["x", "y"])
    for wrong in ("1 2", '{"z": 1}', "[1]", "[" * 100_000):
        with pytest.raises(ValueError, match="expected JSON with the fields x, y"):
            both.action(wrong)


TOOLS = [{"name": "echo", "description": "Say it.", "input_schema": {"properties": {"message": STRING}}}]


def test_the_call_of_a_tool_is_its_name_and_arguments():
    echo = mapped({"tool_name": STRING, "arguments": {}, "type": {}}, needed=["tool_name"], tools=TOOLS)
    assert echo.instructions.splitlines()[1:] == ['echo {"message": {"type": "string"}}: Say it.']
    called = {"type": "call_tool", "tool_name": "echo", "arguments": {"message": "hi"}}
    assert echo.action('echo {"message": "hi"}') == called
    assert echo.action("echo") == {**called, "arguments": {}}
    with pytest.raises(ValueError, match="'say' is no tool; expected echo and arguments in JSON"):
        echo.action("say hi")
    with pytest.raises(ValueError, match="expected an object in JSON"):
        echo.action("echo hi")
    assert echo.observation({"metadata": {"message": "Ready."}}, {}).text == "Ready."
    assert echo.observation({"tool_name": "echo", "result": {"data": "hi"}, "error": None}, {}).text == "hi"
    assert echo.observation({"tool_name": "echo", "result": None, "error": {"message": "No."}}, {}).text == "No."


def test_of_a_chat_the_state_shows_what_is_new():
    chat = mapped(MESSAGE, needed=["message"])
    first = {"messages": [{"role": "user", "content": "Guess."}], "prompt": "Guess."}
    grown = {"messages": [{"role": "user", "content": "Guess.\n[1]\nHigher."}], "prompt": ""}
    longer = {"messages": [*first["messages"], {"role": "assistant", "content": "[1]"}]}
    assert chat.observation(first, {}).text == "Guess."
    assert chat.observation(grown, first).text == "[1]\nHigher."
    assert chat.observation(longer, first).text == "[1]"


def test_of_a_server_that_sends_new_messages_alone_the_state_shows_all():
    chat = mapped(MESSAGE, needed=["message"])
    for before, now in (("Hit", "Hit again"), ("Your turn.", "Your turn.")):
        assert chat.observation({"messages": [now]}, {"messages": [before]}).text == now


@pytest.mark.parametrize("empty", [{}, {"metadata": None}, {"messages": []}])
def test_an_observation_without_content_says_so(empty):
    assert mapped(MESSAGE).observation(empty, {}).text == "Nothing is shown."


def test_no_control_character_reaches_a_prompt():
    assert mapped(MESSAGE).observation({"text": "a\0b\x1b[0m\ud800"}, {}).text == "a\u2400b\u241b[0m\ufffd"
