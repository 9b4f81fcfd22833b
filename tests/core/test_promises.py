"""Environments that raise errors or return nonsense: each fault becomes a sentence that says where it happened."""

from __future__ import annotations

import math

import numpy as np
import pytest
from corridor import Corridor, corridor

from reflectrl.core import Image, InvalidInput, NatLangEnv, Observation, Outcome, Reading, Task, check_env
from reflectrl.core.errors import EnvFailed


class Way(str):
    """Text that is not printed as it is."""

    def __format__(self, _):
        return f"<{str(self)}>"


def fail(error=None):
    raise error or ZeroDivisionError("divided by nothing.\nat all")


def late(method, answer, steps=1):
    """Return a replacement of a method, by its name, that gives ``answer()`` after ``steps`` actions."""

    def replaced(self, *given):
        return answer() if self.steps == steps else getattr(super(type(self), self), method)(*given)

    return {method: replaced}


AT_1 = "in task 'train-0' after 1 step"


@pytest.mark.parametrize(
    ("method", "steps", "where"),
    [
        ("start", 0, "at the start of task 'train-0'"),
        ("observe", 0, "at the start of task 'train-0'"),
        ("act", 2, f"{AT_1}, at action 'right'"),
        *((hint, 1, AT_1) for hint in ("expert", "reflection", "spoiler", "mistaken", "secrets")),
        ("tasks", 0, "train tasks"),
    ],
)
def test_what_a_method_raises_becomes_a_sentence_that_says_where_it_happened(method, steps, where):
    env = corridor(**late(method, fail, steps))
    with pytest.raises(EnvFailed) as caught:  # noqa: PT012
        env.reset(seed=0, options={"task": env.split_tasks("train")[0]})
        env.step("right")
        env.hints()
        env.step("right")
    assert "environment 'corridor' failed" in caught.value.where
    assert where in caught.value.where
    assert caught.value.what == "raised ZeroDivisionError: divided by nothing"
    assert type(caught.value.__cause__) is ZeroDivisionError
    if method != "tasks":
        with pytest.raises(InvalidInput, match="reset"):  # the episode is over
            env.step("right")
    # worker processes can only survive faults within an episode
    assert ("env.workers" in str(caught.value)) is (method != "tasks")


@pytest.mark.parametrize(
    ("method", "answer", "facts"),
    [
        ("act", "nonsense", "'nonsense'.*Outcome"),
        ("act", Outcome(0.5, success=lambda: None), "success=<function"),
        ("act", Outcome(0.5, success=1), "success=1"),
        ("act", Outcome(math.nan), "nan"),
        ("act", Outcome(10**400), r"10+\.\.\.0+"),  # larger than any float
        ("observe", "A door.", "'A door.'.*Observation"),
        ("observe", Observation(None, ("left",)), "None"),
        ("observe", Observation("A door.", ["left"]), r"\['left'\].*tuple"),
        ("observe", Observation("A door.", ()), "no legal action"),
        ("observe", Observation("A door.", ("left", " ")), r"\[' '\]"),
        ("observe", Observation("A door.", ("left", "ri\nght")), r"\['ri\\nght'\]"),
        ("observe", Observation("A door.", ("left", "left")), "'left'"),
        ("observe", Observation("A door.", ("left", "right", "up")), "3 actions.*2"),
        ("observe", Observation("A door.", ("left",), common=("up", "up")), "'up'"),
        ("observe", Observation("A door.", ("left",), common=("left",)), r"common actions .*from \(\) to \('left',\)"),
        ("observe", Observation("A d\ud83dr.", ("left",)), r"'A d\\ud83dr.'"),
        ("observe", Observation("A d\0r.", ("left",)), r"'A d\\x00r.'"),
        ("observe", Observation("door " * 10_000_000, ("left",)), "50,000,0.. .*1,000,000"),
        ("observe", Observation("A door.", ("left",), images=(Image(b"no picture"),)), "Image.*PNG"),
        ("observe", Observation("A door.", ("left",), images=(Image(np.zeros((2, 2))),)), "Image.*PNG"),
        ("observe", Observation("A door.", (Way("left"),)), "<left>.*plain texts"),
    ],
)
def test_nonsense_is_refused_where_it_happens(method, answer, facts):
    replaced = late(method, lambda: answer)
    env = corridor(**replaced)
    env.reset(seed=0, options={"task": env.tasks("train")[0]})
    with pytest.raises(EnvFailed, match=facts) as caught:
        env.step("right")
    assert caught.value.where == "environment 'corridor' failed in task 'train-0' after 0 steps, at action 'right'"
    assert len(str(caught.value)) < 500
    with pytest.raises(InvalidInput, match=f"task 'train-.' .*{facts}"):
        check_env(corridor(**replaced))


def test_a_failure_after_the_end_names_the_methods_and_says_that_it_is_over():
    known = {0: "right"}
    env = corridor(reflection=lambda self: known[self.steps])
    env.reset(options={"task": Task("train-0", {"room": 2})})
    env.step("right")
    with pytest.raises(EnvFailed, match=r"expert\(\), .* after the end of the episode: it raised KeyError: 1"):
        env.hints()


def test_the_expert_is_not_asked_for_an_action_in_a_terminal_state():
    known = {0: "right"}
    env = corridor(expert=lambda self: known[self.steps], reflection=NatLangEnv.reflection)
    env.reset(options={"task": Task("train-0", {"room": 2})})
    assert env.hints().action == "right"
    env.step("right")
    assert env.hints().action is None


def test_a_menu_has_no_more_actions_than_labels():
    shown = Observation("A door.", ("left", "right"), common=("left", "up"))
    with pytest.raises(EnvFailed, match="3 actions, those of Observation.common included, .*2"):
        corridor(observe=lambda _: shown).reset()


ENDLESS = {"self": []}
ENDLESS["self"].append(ENDLESS)


@pytest.mark.parametrize(
    ("method", "answer", "facts"),
    [
        ("tasks", iter([]), "<list_iterator"),
        ("tasks", [Task(1)], r"Task\(id=1"),
        ("tasks", [Task("a"), Task("a")], "'a'"),
        ("tasks", [Task("\udcff")], r"'\\udcff'"),
        ("tasks", [Task("a", {"room": np.int64(1)})], "int64"),
        ("tasks", [Task("a", {1: 2})], "the key 1 in options"),
        ("tasks", [Task("a", ENDLESS)], "options="),
        (
            "tasks",
            [Task("a", {"rooms": [3, {"doors": (1, 2)}]})],
            r"options\['rooms'\]\[1\]\['doors'\]=\(1, 2\) \(tuple\)",
        ),
        ("expert", "fly", r"'fly'.*\('right',"),
        ("spoiler", 3, "3"),
        ("reflection", "\udcff", r"'\\udcff'"),
        ("mistaken", 1, "1"),
        ("secrets", ["amber", 3], "3"),
        ("secrets", "amber key", r"secrets\(\) returned 'amber key'"),
    ],
)
def test_tasks_and_hints_that_cannot_be_used_are_refused(method, answer, facts):
    env = corridor(**{method: lambda *_: answer})
    where = "train tasks: .*" if method == "tasks" else "after 0 steps, .*"
    with pytest.raises(EnvFailed, match=f"'corridor' .*{where}{facts}"):  # noqa: PT012
        env.split_tasks("train")
        env.reset(options={"task": Task("train-0", {"room": 0})})
        env.hints()
    with pytest.raises(InvalidInput, match=facts):
        check_env(corridor(**{method: lambda *_: answer}))


@pytest.mark.parametrize(
    ("reading", "facts"), [(None, "None"), (True, "True"), (Reading(1), "right=1"), (Reading(None, 2), "action=2")]
)
def test_a_reading_of_a_thought_is_a_reading(reading, facts):
    env = corridor(read_thought=lambda *_: reading)
    env.reset(seed=0)
    with pytest.raises(EnvFailed, match=f"{facts} from read_thought"):
        env.reading("Room 0.")


@pytest.mark.parametrize("name", ["_task", "_seed", "_actions", "_observation"])
def test_a_start_that_takes_a_name_of_the_base_is_told(name):
    def start(self, task):
        Corridor.start(self, task)
        setattr(self, name, "mine")

    with pytest.raises(EnvFailed, match=f"set self.{name} in start"):
        corridor(start=start).reset(seed=0)


def test_a_constructor_that_takes_a_name_of_the_base_is_told():
    def init(self, horizon):
        Corridor.__init__(self, horizon)
        self._actions = ("left", "right")

    with pytest.raises(InvalidInput, match="set self._actions"):
        check_env(corridor(__init__=init))
