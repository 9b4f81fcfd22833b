"""Each fault of a badly written environment beside the sentence that names it."""

from __future__ import annotations

import math
import random

import pytest

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task, check_env


def test_a_good_environment_passes(corridor):
    check_env(corridor())


def test_an_environment_without_an_expert_passes(corridor):
    check_env(corridor(expert=lambda _: None))


def test_an_environment_with_tasks_for_training_only_passes(corridor):
    check_env(corridor(tasks=lambda _, split: [Task("a", {"room": 0})] if split == "train" else []))


def test_further_splits_are_played_as_well(corridor):
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


def init_with_a_foreign_space(self, horizon):
    NatLangEnv.__init__(self, horizon)
    self.observation_space = "text"


def shown(*actions, text="A room."):
    return {"observe": lambda _: Observation(text, actions)}


FAULTS = {
    "no name": ({"name": ""}, "ReplacedCorridor has no name; set the class attribute name"),
    "no tasks": ({"tasks": lambda *_: []}, "has no tasks in split 'train'"),
    "tasks of another type": ({"tasks": lambda *_: ["room 0"]}, "holds 'room 0'; expected Task records"),
    "shared tasks": (
        {"tasks": lambda *_: [Task("a", {"room": 0})]},
        "task 'a' is in train and in validation; splits must be disjoint",
    ),
    "a further split that shares tasks": (
        {"tasks": lambda _, split: [Task(split.removeprefix("my"), {"room": 0})], "further_splits": ("mytest",)},
        "task 'test' is in test and in mytest; splits must be disjoint",
    ),
    "a further split that is a usual one": ({"further_splits": ("test",)}, "further_splits are ('test',)"),
    "further splits that are a text": ({"further_splits": "far"}, "expected a tuple of different names"),
    "repeated tasks": ({"tasks": lambda _, split: [Task(split, {"room": 0})] * 2}, "repeats an id"),
    "changing tasks": ({"tasks": tasks_that_differ}, "differs when asked twice"),
    "no observation": ({"observe": lambda _: Observation(None, ("right",))}, "texts and actions must be str"),
    "a menu that is a list": ({"observe": lambda _: Observation("A room.", ["right"])}, "['right'], which is no tuple"),
    "text that moves the state": ({"observe": observe_that_moves}, "observe() changed without an action"),
    "an empty action": (shown("right", " "), "actions [' '], which are empty or span lines"),
    "an action of two lines": (shown("right", "le\nft"), "are empty or span lines"),
    "an action twice": (shown("right", "right"), "repeats an action"),
    "too many actions": (shown("right", "left", "up"), "a menu that has 3 actions, but max_actions is 2"),
    "an expert off the menu": ({"expert": lambda _: "fly"}, "answered 'fly' from expert(), which is not on the menu"),
    "an expert that makes mistakes": (
        {"mistaken": lambda self: self.room > 0},
        "mistaken() says True after expert()'s own 'right' in task",
    ),
    "a reflection that tells a secret": (
        {"reflection": lambda _: "The EXIT is room 3.", "secrets": lambda _: ["exit", "room"]},
        "reflection() says ['exit'], which secrets() calls hidden and the text does not show",
    ),
    "global randomness": ({"start": start_from_global_randomness}, "randomness must come from self.np_random"),
    "a start that forgets to start": ({"start": start_that_keeps_the_room}, "start() must set the whole state"),
    "a restore of one's own that does nothing": ({"restore": lambda *_: None}, "shows another state"),
    "success without an end": (
        {"act": lambda *_: Outcome(1.0, success=True)},
        "reported success without ending the episode",
    ),
    "an episode without an end": ({"step": step_without_an_end}, "outlived its horizon of 5 steps"),
    "steps after the end": ({"step": step_that_goes_on}, "step after the end was accepted"),
    "a foreign space": ({"__init__": init_with_a_foreign_space}, "gymnasium's check_env says:"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(corridor, fault):
    replaced, sentence = FAULTS[fault]
    with pytest.raises(InvalidInput) as caught:
        check_env(corridor(**replaced))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("replaced", "sentence"),
    [
        (shown(), "offered no legal action"),
        ({"act": lambda *_: Outcome(math.nan)}, "expected a finite number"),
    ],
    ids=["no actions", "nan"],
)
def test_what_fails_while_playing_is_named_too(corridor, replaced, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        check_env(corridor(**replaced))


def test_menus_may_differ_from_state_to_state(corridor):
    """Gymnasium's own checker samples in one state and plays in another; that must not count as a fault."""

    def left_first(self):
        return Observation(f"Room {self.room}.", ("left", "right") if self.room else ("right",))

    for _ in range(10):
        check_env(corridor(observe=left_first))
