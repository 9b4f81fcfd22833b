"""Each fault of a badly written environment, with the sentence that names it."""

from __future__ import annotations

import random
import re
import time

import pytest
from corridor import Corridor, corridor

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task, check_env
from reflectrl.core.check import shared_starts


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


def test_an_episode_may_end_after_one_step_without_an_action_that_is_left():
    class Parity(NatLangEnv):
        name = "parity"
        max_actions = 2

        def __init__(self):
            super().__init__(horizon=1)

        def start(self, task):
            self.number, self.over = random.Random(task.options["seed"]).randrange(10**6), False

        def observe(self):
            return Observation(f"Number {self.number}.", () if self.over else ("even", "odd"))

        def act(self, action):
            self.over, right = True, action == ("even", "odd")[self.number % 2]
            return Outcome(float(right), ended=True, success=right)

    assert check_env(Parity()) == []


def tasks_apart(_, split):
    rooms = {"train": (0, 1), "validation": (2,), "test": ()}[split]
    return [Task(f"{split}-{room}", {"room": room}) for room in rooms]


def test_tasks_that_begin_like_training_tasks_are_counted_and_one_is_named():
    [test, remedy] = check_env(corridor())
    assert test == (
        "1 of 1 test tasks that were compared begin like one of 2 training tasks, which have 2 first states; 'test-1' "
        "like 'train-1'."
    )
    assert "list them in tasks()" in remedy


def test_tasks_that_begin_with_one_text_and_different_menus_do_not_begin_alike():
    def observe(self):
        there = ("left", "right") if self.task.id.startswith("train") else ("right",)
        return Observation(f"Room {self.room}.", there)

    assert shared_starts(corridor())
    assert not shared_starts(corridor(observe=observe))


def test_tasks_that_hide_what_differs_may_begin_alike():
    assert not shared_starts(corridor(observable=False))


def test_of_many_tasks_some_are_compared_those_far_apart():
    compared = []

    def start(self, task):
        compared.append(task.id)
        Corridor.start(self, task)

    def tasks(_, split):
        return [Task(f"{split}-{number}", {"room": 0}) for number in range(1000)]

    env = corridor(tasks=tasks, start=start)
    [validation, test] = [said for said in check_env(env, episodes=1) if "begin like" in said]
    assert validation.startswith("16 of 16 validation tasks that were compared begin like one of 16 training tasks, ")
    assert "'test-0' like 'train-0'" in test
    compared.clear()
    shared_starts(env, 4)
    assert compared[:5] == ["train-0", "train-250", "train-500", "train-750", "validation-0"]


def test_an_expert_that_fails_or_stops_acting_is_remarked_on():
    apart = {"tasks": tasks_apart}
    assert check_env(corridor(**apart)) == check_env(corridor(**apart, expert=lambda _: None)) == []
    [failing] = check_env(corridor(**apart, expert=lambda self: "left" if self.room else "right"))
    assert re.fullmatch(r"The expert succeeds in 0 of \d+ episodes\.", failing)
    [silent] = check_env(corridor(**apart, expert=lambda self: "right" if self.room else None))
    assert re.match(r"The expert stops acting in \d+ of \d+ episodes; data\.teacher=expert needs", silent)
    lost = {"expert": lambda self: None if self.last_action == "left" else "right"}
    [astray] = check_env(corridor(**apart, **lost))
    assert re.match(r"The expert stops acting after random actions in \d+ of \d+ episodes; data\.teacher=", astray)


def test_an_environment_that_takes_long_to_make_is_remarked_on():
    def made_slowly(self, horizon):
        Corridor.__init__(self, horizon)
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass

    [slow] = check_env(corridor(tasks=tasks_apart, __init__=made_slowly))
    assert re.match(r"It takes 0\.\d s to make one, and training plays dozens side by side: ", slow)


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


def init_that_draws_the_first_state(self, horizon=5):
    NatLangEnv.__init__(self, horizon)
    self.exit = random.getrandbits(64)


def observe_the_exit(self):
    return Observation(f"Room {self.room}, exit {self.exit}.", ("right",))


def init_that_draws_what_follows(self, horizon=5):
    NatLangEnv.__init__(self, horizon)
    self.prize = random.random()


def init_that_works_once(self, horizon=5):
    Corridor.__init__(self, horizon)
    self.made = type(self).made = getattr(self, "made", 0) + 1
    if self.made > 1:
        raise OSError("the port is in use")


def reflection_that_draws(self):
    return f"Room {self.np_random.integers(10**6)}."


FAULTS = {
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
    "a first state that is drawn in the constructor": (
        {"__init__": init_that_draws_the_first_state, "observe": observe_the_exit},
        "differs between two environments with the same options and seed, after step 0: ('Room ",
    ),
    "a reward that is drawn in the constructor": (
        {"__init__": init_that_draws_what_follows, "act": lambda self, _: Outcome(self.prize)},
        "draw nothing in __init__()",
    ),
    "a constructor that works once": (
        {"__init__": init_that_works_once},
        "it cannot be made again with the same options: it raised OSError: the port is in use",
    ),
    "a copy that is in another state": ({"__setstate__": lambda *_: None}, "a copy in task 'train-0'"),
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
