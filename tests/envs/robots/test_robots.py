"""The robot's tasks on two simulators: skills, text, expert, splits, and what random players reach."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from ctypes.util import find_library
from importlib.util import find_spec

import pytest
from playing import share_of_wins

from reflectrl.core import InvalidInput, check_env, make_env
from reflectrl.core.types import SPLITS
from reflectrl.envs.robots.env import KNOWN
from reflectrl.envs.robots.kitchen import KITCHEN
from reflectrl.envs.robots.scenes import SCENES, Offset

for package in ("gymnasium_robotics", "metaworld"):
    if find_spec(package) is None:
        pytest.skip("needs the extra robots", allow_module_level=True)
WITHOUT_METAWORLD = """
import sys
sys.modules["metaworld.env_dict"] = None
from reflectrl.core import InvalidInput, make_env
try:
    make_env("robots")
except InvalidInput as error:
    print(error)
"""

PICTURED = """
from reflectrl.core import make_env
env = make_env("robots:drawer", observation="image")
for skill in ("", "pull back", ""):
    env.reset(seed=0)
    text = env.step(skill)[0] if skill else env.observation.full_text
    assert text == "Task: open the drawer.\\n", text
    print([image.sha256 for image in env.observation.images])
"""
"""Drawing is chosen once in a process, so pictures are drawn in one of their own."""


def begun(scene, number=0, split="train"):
    env = make_env("robots", task=scene)
    env.reset(seed=0, options={"task": env.tasks(split)[number]})
    return env


def told(env, *skills):
    """What the text says after each skill."""
    return [env.step(skill)[0].partition("\n")[2] for skill in skills]


@pytest.mark.slow
def test_it_passes_our_checks():
    check_env(make_env("robots", task="metaworld"), episodes=1)


def test_distances_are_told_as_the_robot_sees_them():
    assert Offset.between((0.12, 0.5, 0.3), (0, 0.6, 0.2)).words == "12 cm right of, 10 cm in front of and 10 cm above"
    assert Offset(-3, 4, 0).words == "3 cm left of and 4 cm behind"
    assert Offset(1, -2, -7).words == "7 cm below"
    assert Offset(2, 2, -2).words == "at"


@pytest.mark.slow
def test_the_gripper_holds_and_drops():
    env = begun("bin")
    above, at, held, lifted, dropped = told(
        env, "move above the puck", "lower to the puck", "close the gripper", "lift the hand", "open the gripper"
    )
    assert above.startswith("The hand is 12 cm above the puck.")
    assert at.startswith("The hand is at the puck.")
    assert [text.rpartition("The gripper ")[2] for text in (at, held, lifted, dropped)] == [
        *("is open.", "holds the puck.", "holds the puck.", "is open.")
    ]
    assert "above the right bin" in lifted
    assert "above the puck" in dropped
    assert env.reflection() == "Mistake. The hand is above the puck."
    empty = begun("bin")
    assert told(empty, "close the gripper")[0].endswith("The gripper is closed.")
    assert empty.reflection() == "Mistake. The gripper is closed and does not hold the puck."
    assert empty.expert() == "open the gripper"


@pytest.mark.slow
def test_switches_knobs_and_doors_by_hand():
    assert "turned by 0 of 40 degrees" in told(begun("light"), "push left")[0]
    light = begun("light")
    told(light, "move right of the switch")
    assert light.step("push left")[4]["success"]
    burner = begun("burner")
    assert "turned by 0 of 50 degrees" in told(burner, "move left of the knob")[0]
    assert burner.reflection() == "Good. The hand is left of the knob."
    assert burner.step("push right")[4]["success"]
    microwave = begun("microwave")
    *_, held = told(microwave, "move in front of the handle", "move to the handle", "close the gripper")
    assert held == "The hand is at the handle. The microwave is open by 0 of 43 degrees. The gripper holds the handle."
    assert microwave.reflection() == "Good. The handle is held."
    assert microwave.step("pull back")[4]["success"]


def test_a_reflection_judges_the_last_skill_and_names_no_skill():
    env = begun("button")
    assert env.reflection() == "The hand is not in front of the button."
    told(env, "push forward")
    assert (env.mistaken(), env.reflection()) == (True, "Mistake. The hand is not in front of the button.")
    told(env, env.expert())
    assert (env.mistaken(), env.reflection()) == (False, "Good. The hand is in front of the button.")


def test_the_text_depends_on_task_and_skills_alone():
    """All environments of a process share one simulator for each scene."""
    from reflectrl.envs.robots import simulator

    plan = ("move above the nut", "lower to the nut", "close the gripper", "move above the peg")
    simulator.position.cache_clear()
    alone = [told(begun("assembly", number), *plan) for number in (0, 1)]
    simulator.position.cache_clear()
    first, second = begun("assembly", 0), begun("assembly", 1)
    together = [(told(second, skill)[0], told(first, skill)[0]) for skill in plan]
    assert [list(texts) for texts in zip(*together, strict=True)] == alone[::-1]
    assert alone[0] != alone[1]


def test_no_split_has_things_where_another_has_them():
    env = make_env("robots")
    tenths = {split: {int(10 * task.options["place"][0]) for task in env.tasks(split)} for split in SPLITS}
    assert sum(map(len, tenths.values())) == len(set().union(*tenths.values())) == 10
    assert [len(env.tasks(split)) for split in SPLITS] == [125, 50, 250]
    assert env.tasks("train")[0] == make_env("robots").tasks("train")[0]
    for name in KNOWN:
        assert len(make_env("robots", task=name).tasks("test")) == 50


@pytest.mark.parametrize("name", [*SCENES, *(pytest.param(name, marks=pytest.mark.slow) for name in KITCHEN)])
def test_the_expert_succeeds_and_calls_none_of_its_skills_a_mistake(name):
    def choose(env):
        assert env.mistaken() is not True
        return env.expert()

    env = make_env("robots", task=name)
    assert share_of_wins(env, env.tasks("test")[:1], choose) == 1


@pytest.mark.parametrize(
    ("name", "skills"),
    [
        ("button", ("push forward", "move above the button")),
        pytest.param("light", ("move left of the switch",), marks=pytest.mark.slow),
    ],
)
def test_the_expert_gets_around_what_is_in_the_way(name, skills):
    def choose(env):
        return skills[env.steps] if env.steps < len(skills) else env.expert()

    env = make_env("robots", task=name)
    assert share_of_wins(env, env.tasks("train")[1:2], choose) == 1


def test_what_it_does_not_know_and_what_it_needs_are_sentences():
    with pytest.raises(InvalidInput):
        make_env("robots", task="hamer")
    with pytest.raises(InvalidInput):
        make_env("robots", task="light", observation="both")
    with pytest.raises(InvalidInput):
        begun("hammer").reset(options={"task": make_env("robots", task="bin").tasks("test")[0]})
    done = subprocess.run([sys.executable, "-c", WITHOUT_METAWORLD], capture_output=True, text=True, check=True)
    assert "pip install 'reflectrl[robots]'" in done.stdout


@pytest.mark.slow
def test_pictures_show_where_things_are_from_two_cameras():
    if find_library("OSMesa") is None:
        pytest.skip("OSMesa is not installed: apt-get install libosmesa6")
    done = subprocess.run([sys.executable, "-c", PICTURED], capture_output=True, text=True, check=True)
    begin, moved, again = map(ast.literal_eval, done.stdout.splitlines())
    assert begin == again
    assert len({*begin, *moved}) == 4


def test_pictures_without_a_library_that_draws_are_refused():
    environment = {**os.environ, "MUJOCO_GL": "disable"}
    done = subprocess.run(
        [sys.executable, "-c", PICTURED], capture_output=True, text=True, check=False, env=environment
    )
    assert "apt-get install libosmesa6" in done.stderr.splitlines()[-1]
