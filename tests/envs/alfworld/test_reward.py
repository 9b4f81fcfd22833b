"""What GTR's code pays in ALFWorld, and where it stops a player (check G8)."""

from __future__ import annotations

import pytest
from alfworld_games import HOUSES

from reflectrl.envs.alfworld import AlfWorld

GAMES = {"dataset": "alfworld:all", "count": 6, "scenes": HOUSES, "noise": True, "horizon": 60}


def played(commands: list[str], **options: str) -> list[tuple[float, bool]]:
    """Reward and end of each command, up to the end."""
    env = AlfWorld(**GAMES, **options)
    env.reset(seed=0, options={"task": env.tasks("train")[0]})
    steps = []
    for command in commands:
        _, reward, ended, truncated, info = env.step(command)
        assert (truncated, info["success"]) == (False, False)
        steps.append((reward, ended))
        if ended:
            break
    return steps


@pytest.mark.parametrize(
    ("commands", "last"),
    [
        (["look"] * 9, 5),
        (["look"] * 4 + ["inventory"] + ["look"] * 9, 10),
        (["look", "inventory"] * 25, 41),
    ],
    ids=["five", "five after four", "more than forty"],
)
def test_g8_the_fifth_of_equal_commands_and_the_41st_command_end_an_episode_with_minus_3(commands, last):
    assert played(commands, ends="stuck") == [*[(0.0, False)] * (last - 1), (-3.0, True)]
    assert played(commands) == [(0.0, False)] * len(commands)


@pytest.mark.parametrize(
    ("family", "fractions"),
    [
        ("pick_and_place_simple", [0, 1]),
        ("look_at_obj_in_light", [0, 1 / 2, 1]),
        ("pick_clean_then_place_in_recep", [0, 1 / 3, 1]),
        ("pick_heat_then_place_in_recep", [0, 1 / 3, 1]),
        ("pick_cool_then_place_in_recep", [0, 1 / 3, 1]),
        ("pick_two_obj_and_place", [0, 1 / 2, 1]),
    ],
)
def test_each_step_pays_the_fraction_of_conditions_met(family, fractions):
    env = AlfWorld(**GAMES, reward="progress", families=[family])
    env.reset(seed=0)
    rewards, before = [], env.snapshot()
    while (command := env.expert()) is not None:
        before = env.snapshot()
        rewards.append(env.step(command)[1])
    assert list(dict.fromkeys(rewards)) == pytest.approx([*fractions[:-1], 51])
    env.restore(before)
    assert env.step("look")[1] == pytest.approx(fractions[-2])


def test_a_cold_thing_in_its_place_is_one_condition_of_three():
    env = AlfWorld(**GAMES, reward="progress", families=["pick_heat_then_place_in_recep"])
    env.reset(seed=0)
    while not (command := env.expert()).startswith("heat"):
        env.step(command)
    target = env.task.id.split("-")[3].lower()
    env.step(f"go to {target} 1")
    if f"open {target} 1" in env.observation.actions:
        env.step(f"open {target} 1")
    (put,) = (each for each in env.observation.actions if each.startswith("move"))
    assert env.step(put)[1] == pytest.approx(1 / 3)
