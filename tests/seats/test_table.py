"""The table of who sees what in the docstring of ``reflectrl.seats.table`` is what the views show."""

from __future__ import annotations

import re

import pytest

import reflectrl.seats.table
from reflectrl.core import Hints, InvalidInput, Observation
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import Role, State, View
from reflectrl.seats import SEATS
from reflectrl.seats.reflector import ScriptedReflector
from reflectrl.seats.table import MOMENTS, Seat, menu_view, view

ROW = re.compile(
    r"^    (\w+) +(\w+|the act) +(yes|last) +(yes|all) +(yes|no) +(none|[a-z]+(?:, [a-z]+)*)(?: {2,}(.*))?$"
)
ROWS = {
    found[1]: found.groups()[1:]
    for line in str(reflectrl.seats.table.__doc__).splitlines()
    if (found := ROW.match(line))
}
EVERYBODY = [*ROWS, "tally"]
STATE = State(
    Observation("A room.", ("wait", "go")),
    ("go",),
    7,
    {role: f"Words of the {role}." for role in EVERYBODY},
    Hints(reflection="The key is here.", action="wait"),
    visited=(Observation("A hall.", ("go",)),),
    rewards=(0.5,),
    last=Observation("A garden.", ()),
    before={role: f"Words of the {role} before." for role in EVERYBODY},
    task_id="task 12",
    task_type="kind",
)
LAYOUT = PromptFormat(carry=True)


def seen(role: str, layout: PromptFormat = LAYOUT) -> View:
    if MOMENTS.get(role, "act") in ("act", "after_act"):
        return menu_view(role, layout, STATE, layout.menu_of(STATE.observation), action="go")
    return view(role, layout, STATE)


def test_the_table_has_a_row_for_each_seat_and_the_policy() -> None:
    assert ROWS.keys() == {"policy", *(kind.role.name for kind in SEATS)}


@pytest.mark.parametrize("role", ROWS)
def test_a_role_sees_what_its_row_says_and_nothing_else(role: str) -> None:
    when, _, _, menu, words, also = ROWS[role]
    shown = seen(role)
    text, also = shown.prompt.text, also or ""
    assert when in (MOMENTS.get(role), "the act")
    assert ("0. wait" in text) == (menu == "yes")
    heard = [] if words == "none" else words.split(", ")
    thought = ["policy"] if "thought and action" in also else []
    assert list(shown.said) == [*heard, *thought]
    assert {each for each in EVERYBODY if f"Words of the {each}." in text} == {*heard, *thought}
    assert (bool(shown.task_id), bool(shown.task_type)) == ("id and kind" in also,) * 2
    own = {"memory": ["memory", "policy"], "reflector": ["reflector"]}.get(role, [])
    assert list(shown.before) == own
    assert bool(own) == ("words before" in also)
    assert (bool(shown.visited), shown.last is not None) == ("every state" in also,) * 2
    assert shown.hints is None
    for secret in ("task 12", "kind", "The key is here."):
        assert secret not in text
    assert ("Words of the reflector before." in text) == (role == "reflector")


def test_a_custom_seat_is_heard_by_the_policy_alone() -> None:
    tally = Role("tally", reads=("planner",), cue="Tally:")
    layout = PromptFormat(roles=(tally,))
    assert Seat("tally", ScriptedReflector(str.upper), tally).when == "before_act"
    assert list(view("tally", layout, STATE).said) == ["planner"]
    policy = menu_view("policy", layout, STATE, layout.menu_of(STATE.observation))
    assert policy.prompt.said.splitlines()[-1] == "Tally: Words of the tally."
    assert all("tally" not in seen(role, layout).said for role in MOMENTS)
    with pytest.raises(InvalidInput, match="role 'tally' is unknown"):
        view("tally", LAYOUT, STATE)
    with pytest.raises(InvalidInput, match="a seat was given the role 'tally'"):
        Seat("tally", ScriptedReflector(lambda _: ""))
