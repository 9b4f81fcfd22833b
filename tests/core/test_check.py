"""Each fault of a badly written environment, with the sentence that names it."""

from __future__ import annotations

import random
import re

import pytest
from corridor import corridor

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task, check_env


@pytest.mark.parametrize(
    "replaced",
    [
        {},
        {"expert": lambda _: None},
        {"tasks": lambda _, split: [Task("a", {"room": 0})] if split == "train" else []},
        {"observe": lambda self: Observation(f"Room {self.room}.", ("left", "right") if self.room else ("right",))},
    ],
    ids=["all of it", "no expert", "tasks for training only", "menus that differ"],
)
def test_a_good_environment_passes(replaced):
    for _ in range(5 if "observe" in replaced else 1):  # gymnasium's checker samples in one state, plays in another
        check_env(corridor(**replaced))


def test_an_expert_that_fails_or_stops_acting_is_remarked_on():
    assert check_env(corridor()) == check_env(corridor(expert=lambda _: None)) == []
    [failing] = check_env(corridor(expert=lambda self: "left" if self.room else "right"))
    assert re.fullmatch(r"The expert succeeds in 0 of \d+ episodes\.", failing)
    [silent] = check_env(corridor(expert=lambda self: "right" if self.room else None))
    assert re.match(r"The expert stops acting in \d+ of \d+ episodes; data\.teacher=expert needs", silent)


def test_further_splits_are_played_as_well():
    def tasks(_, split):
        return [Task(split, {"room": 0 if split != "far" else "nowhere"})]

    with pytest.raises(InvalidInput, match="failed in task 'far'"):
        check_env(corridor(tasks=tasks, further_splits=("far",)))


def tasks_that_differ(self, split):
    self.asked = getattr(self, "asked", 0) + 1
    return [Task(f"{split}-{self.asked}", {"room": 0})]


def start_from_global_randomness(self, task):
    self.room, self.number = task.options["room"], random.getrandbits(64)


def start_that_keeps_the_room(self, task):
    self.room = getattr(self, "room", task.options["room"]) % 3
    self.number = 0


def observe_that_moves(self):
    self.number += 1
    return Observation(f"number {self.number}", ("right",))


def step_without_an_end(self, _):
    return self.observation.text, 0.0, False, False, {"actions": ("right",), "success": False, "illegal": False}


def step_that_goes_on(self, action):
    self._ended = False
    return NatLangEnv.step(self, action)


def init_without_its_base_s(self, _horizon):
    self.room = 0


def init_with_a_foreign_space(self, horizon):
    NatLangEnv.__init__(self, horizon)
    self.observation_space = "text"


def init_with_tasks_of_its_own(self, horizon):
    NatLangEnv.__init__(self, horizon)
    self.number = random.getrandbits(64)


def reflection_that_draws(self):
    return f"Room {self.np_random.integers(10**6)}."


FAULTS = {
    "no name": ({"name": ""}, "ReplacedCorridor"),
    "a constructor of one's own that leaves the base's out": (
        {"__init__": lambda *_: None},
        "super().__init__(horizon=...)",
    ),
    "max_actions of 0": ({"max_actions": 0}, "max_actions"),
    "no tasks": ({"tasks": lambda *_: []}, "'train'"),
    "shared tasks": ({"tasks": lambda *_: [Task("a", {"room": 0})]}, "task 'a' is in train and in validation"),
    "a further split that shares tasks": (
        {"tasks": lambda _, split: [Task(split.removeprefix("my"), {"room": 0})], "further_splits": ("mytest",)},
        "task 'test' is in test and in mytest",
    ),
    "a further split that is a usual one": ({"further_splits": ("test",)}, "further_splits are ('test',)"),
    "changing tasks": ({"tasks": tasks_that_differ}, "tasks('train')"),
    "tasks that differ between two environments": (
        {"__init__": init_with_tasks_of_its_own, "tasks": lambda self, split: [Task(f"{split}-{self.number}")]},
        "tasks('train') differs between two environments",
    ),
    "a table's words that are none": ({"benchmark": lambda *_: None}, "returned None from benchmark()"),
    "hints that move the state": ({"reflection": reflection_that_draws}, "differs when asked twice in a state"),
    "hints that move what follows": (
        {"secrets": lambda self: [str(self.np_random.integers(2) // 2)]},
        "goes on otherwise after hints were asked for",
    ),
    "text that moves the state": ({"observe": observe_that_moves}, "observe()"),
    "an expert that makes mistakes": ({"mistaken": lambda self: self.room > 0}, "mistaken() says True"),
    "a reflection that gives a secret away": (
        {"reflection": lambda _: "The EXIT is room 3.", "secrets": lambda _: ["exit", "room"]},
        "reflection() says ['exit']",
    ),
    "global randomness": ({"start": start_from_global_randomness}, "self.np_random"),
    "a start that forgets to start": ({"start": start_that_keeps_the_room}, "start()"),
    "a restore of one's own that does nothing": ({"restore": lambda *_: None}, "restore(snapshot())"),
    "success without an end": ({"act": lambda *_: Outcome(1.0, success=True)}, "success"),
    "an episode without an end": ({"step": step_without_an_end}, "horizon of 5"),
    "steps after the end": ({"step": step_that_goes_on}, "step()"),
    "a step of gymnasium": ({"step": lambda *_: ("x", 1.0, True, False, {})}, "step() reports no success"),
    "an __init__ without its base's": ({"__init__": init_without_its_base_s}, "super().__init__(horizon=...)"),
    "a foreign space": ({"__init__": init_with_a_foreign_space}, "gymnasium"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault):
    replaced, facts = FAULTS[fault]
    with pytest.raises(InvalidInput) as caught:
        check_env(corridor(**replaced))
    assert facts in str(caught.value)


def test_something_else_than_an_environment_is_refused():
    for given in ("number_line", type(corridor())):
        with pytest.raises(InvalidInput, match="expected an environment"):
            check_env(given)
