from __future__ import annotations

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from reflectrl.core import InvalidInput, Task, check_env
from reflectrl.envs.dangerous_taxi import DangerousTaxi
from reflectrl.envs.dangerous_taxi.env import ACTIONS, map_text

STAGES = ("pickup", "dropoff", "full")
SPLITS = ("train", "validation", "test", "unseen_destination")
ABOARD = 4
TAXI = gymnasium.make("Taxi-v4").unwrapped
"""Gymnasium's own taxi as the reference."""
TASKS = {
    "pickup": (
        (152, 28, 45, 75),
        ["green-to-red-r1c3", "blue-to-red-r0c0", "green-to-red-r0c2", "green-to-blue-r1c3"],
    ),
    "dropoff": (
        (44, 14, 17, 25),
        ["aboard-to-red-r0c2", "aboard-to-yellow-r2c4", "aboard-to-red-r1c3", "aboard-to-blue-r1c0"],
    ),
}
"""Size and first tasks of each split; published numbers refer to these tasks, so they never change."""


def begin(env, state):
    """Start an episode from a state of gymnasium by its number."""
    task = next(t for split in SPLITS for t in env.tasks(split) if t.options["state"] == state)
    return env.reset(seed=0, options={"task": task})


def at(row, column, passenger, destination):
    return TAXI.encode(row, column, passenger, destination)


def starts(env, *splits):
    return [task.options["state"] for split in splits for task in env.tasks(split)]


def reachable(stage, *splits):
    """Return all states in which a player may have to act in tasks of ``splits``."""
    found = starts(DangerousTaxi(stage), *splits)
    seen = set(found)
    while found:
        state = found.pop()
        for action, name in enumerate(ACTIONS):
            _, following, _, delivered = TAXI.P[state][action][0]
            ends = delivered or name == "drop off" or (stage == "pickup" and name == "pick up")
            if not ends and following not in seen:
                seen.add(following)
                found.append(following)
    return seen


def shortest(state, done):
    """Return the minimum number of gymnasium's actions from ``state`` to a ``done`` state, by a forward search."""
    frontier, seen, steps = {state}, {state}, 0
    while not any(done(*TAXI.decode(s)) for s in frontier):
        frontier = {TAXI.P[s][a][0][1] for s in frontier for a in range(6)} - seen
        seen |= frontier
        steps += 1
    return steps


@pytest.mark.filterwarnings("ignore")  # gymnasium warns of text spaces; only what it raises counts
@pytest.mark.parametrize(("stage", "horizon"), [("pickup", 15), ("dropoff", 30), ("full", 30)])
def test_it_passes_our_checks_and_gymnasiums(stage, horizon):
    env = DangerousTaxi(stage)
    assert (env.horizon, DangerousTaxi(stage, horizon=8).horizon) == (horizon, 8)
    check_env(env, episodes=10)
    gymnasium_check_env(env, skip_render_check=True)


@pytest.mark.parametrize("stage", TASKS)
def test_the_splits_share_out_all_start_states_and_never_change(stage):
    env = DangerousTaxi(stage)
    sizes, first = TASKS[stage]
    assert tuple(len(env.tasks(split)) for split in SPLITS) == sizes
    assert [env.tasks(split)[0].id for split in SPLITS] == first
    parts = [list(TAXI.decode(state)) for state in range(500)]
    expected = [s for s, (_, _, p, d) in enumerate(parts) if (p == ABOARD) == (stage == "dropoff") and p != d]
    assert sorted(starts(env, *SPLITS)) == expected
    assert len({task.id for split in SPLITS for task in env.tasks(split)}) == len(expected)
    if stage == "pickup":  # a curriculum to the full task keeps the splits
        assert all(env.tasks(split) == DangerousTaxi("full").tasks(split) for split in SPLITS)


def test_training_meets_all_test_starts_and_no_state_of_the_unseen_destination():
    """This holds for every pair of stages, because a curriculum trains on several; no two states have the same text."""
    trained = {stage: reachable(stage, *SPLITS[:3]) for stage in STAGES}
    unseen = {stage: reachable(stage, "unseen_destination") for stage in STAGES}
    for stage, states in trained.items():
        assert set(starts(DangerousTaxi(stage), "test")) <= reachable(stage, "train")
        assert len({map_text(state) for state in states | unseen[stage]}) == len(states | unseen[stage])
        for tested in STAGES:
            assert unseen[tested]
            assert {map_text(state) for state in states}.isdisjoint(map(map_text, unseen[tested]))
    sizes = {stage: len(states | unseen[stage]) for stage, states in trained.items()}
    assert sizes == {"pickup": 300, "dropoff": 100, "full": 400}


@pytest.mark.parametrize(("stage", "state"), [("dropoff", 1), ("pickup", 16), ("full", 0), ("full", "1")])
def test_a_state_that_does_not_start_the_stage_is_refused(stage, state):
    """In state 1 the passenger is waiting, in 16 aboard, in 0 delivered."""
    with pytest.raises(InvalidInput, match=f"'other'.*'{stage}'"):
        DangerousTaxi(stage).reset(options={"task": Task("other", {"state": state})})
    with pytest.raises(InvalidInput, match="'drop off'.*'dropoff'"):
        DangerousTaxi("drop off")


def test_the_map_by_hand():
    text, info = begin(DangerousTaxi("full"), at(3, 1, 0, 3))  # passenger at red, destination blue
    assert text.split("\n") == ["P: | : : ", " : | : : ", " : : : : ", " |T: | : ", " | : |D: "]
    assert info["actions"] == ("move south", "move north", "move east", "move west", "pick up", "drop off")
    for state, first_row in (
        (at(0, 0, 0, 1), "O: | : :D"),
        (at(0, 1, 0, 1), "P:T| : :D"),
        (at(0, 0, ABOARD, 1), "X: | : :D"),
        (at(0, 4, ABOARD, 1), " : | : :X"),
        (at(0, 4, 0, 1), "P: | : :T"),
    ):
        assert map_text(state).split("\n")[0] == first_row


def forbidden(state, action):
    """Return whether gymnasium's table gives an action no effect, a penalty, or a drop-off at the wrong place."""
    _, following, reward, delivered = TAXI.P[state][action][0]
    return following == state or reward == -10 or (ACTIONS[action] == "drop off" and not delivered)


@pytest.mark.parametrize("stage", STAGES)
def test_every_action_in_every_start_state_is_judged_as_the_rules_say(stage):
    env = DangerousTaxi(stage)
    for state in starts(env, *SPLITS):
        for action, name in enumerate(ACTIONS):
            begin(env, state)
            text, reward, terminated, truncated, info = env.step(name)
            got = (reward, terminated, info["success"], info["illegal"])
            if forbidden(state, action):
                assert got == (-0.5, True, False, True)
            elif name == "pick up" and stage == "full":
                assert got == (1.0, False, False, False)
            elif name in ("pick up", "drop off"):
                assert got == (1.0, True, True, False)
            else:
                assert got == (-0.05, False, False, False)
                assert text == map_text(TAXI.P[state][action][0][1])
            assert not truncated


@pytest.mark.parametrize(("milestone", "reward"), [(True, 1.0), (False, -0.05)])
def test_the_milestone_pays_for_the_pickup(milestone, reward):
    env = DangerousTaxi("full", milestone=milestone)
    begin(env, at(0, 0, 0, 1))
    _, got, terminated, _, info = env.step("pick up")
    assert (got, terminated, info["success"]) == (reward, False, False)
    _, reward, terminated, _, info = env.step("drop off")
    assert (reward, terminated, info["illegal"], info["success"]) == (-0.5, True, True, False)


@pytest.mark.parametrize("stage", STAGES)
def test_the_expert_solves_every_task_in_the_fewest_steps(stage):
    env = DangerousTaxi(stage)
    for state in starts(env, *SPLITS):
        begin(env, state)
        rewards, terminated = [], False
        while not terminated:
            assert not any(action in env.reflection() for action in ACTIONS)
            _, reward, terminated, truncated, info = env.step(env.expert())
            assert not truncated
            rewards.append(reward)
        assert (env.expert(), info["success"]) == (None, True)
        assert len(rewards) == shortest(state, lambda _row, _column, p, d: p == (ABOARD if stage == "pickup" else d))
        goals = 2 if stage == "full" else 1
        assert sum(rewards) == pytest.approx(goals - 0.05 * (len(rewards) - goals))


def test_reflections_by_hand():
    env = DangerousTaxi("full")
    begin(env, at(1, 0, 0, 1))
    said = [env.reflection()]
    assert env.spoiler().startswith(f"The best next action is: move north. {said[0]} Actions left at best: ")
    for action in ("move south", "move north", "move north", "pick up", "move north"):
        env.step(action)
        said.append(env.reflection())
    assert said == [
        "Taxi at row 1 column 0, passenger at row 0 column 0.",
        "Mistake. Taxi at row 2 column 0, passenger at row 0 column 0.",
        "Good. Taxi at row 1 column 0, passenger at row 0 column 0.",
        "Good. Taxi at row 0 column 0, passenger at row 0 column 0.",
        "Good. Taxi at row 0 column 0, destination at row 0 column 4.",
        "Mistake. Taxi at row 0 column 0, destination at row 0 column 4.",
    ]
