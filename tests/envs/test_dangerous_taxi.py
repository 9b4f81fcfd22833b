from __future__ import annotations

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from reflectrl.core import InvalidInput, Task, check_env
from reflectrl.envs.dangerous_taxi import DangerousTaxi
from reflectrl.envs.dangerous_taxi.world import ACTIONS, map_text

STAGES = ("pickup", "dropoff", "full")
SPLITS = ("train", "validation", "test", "unseen_destination")
ABOARD = 4
TAXI = gymnasium.make("Taxi-v4").unwrapped
"""The real thing, beside which everything is checked."""
EXPECTED_FIRST_TASKS = {
    "pickup": ["green-to-red-r1c3", "blue-to-red-r0c0", "green-to-red-r0c2", "green-to-blue-r1c3"],
    "dropoff": ["aboard-to-red-r0c2", "aboard-to-yellow-r2c4", "aboard-to-red-r1c3", "aboard-to-blue-r1c0"],
    "full": ["green-to-red-r1c3", "blue-to-red-r0c0", "green-to-red-r0c2", "green-to-blue-r1c3"],
}


def begin(env, state):
    """Start from gymnasium's state number."""
    task = next(t for split in SPLITS for t in env.tasks(split) if t.options["state"] == state)
    return env.reset(seed=0, options={"task": task})


def at(row, column, passenger, destination):
    return TAXI.encode(row, column, passenger, destination)


def reachable(env, *splits):
    """Every state in which a player can be asked to act in tasks of ``splits``, of all if there are none."""
    found = [t.options["state"] for split in splits or SPLITS for t in env.tasks(split)]
    seen = set(found)
    while found:
        state = found.pop()
        for action, name in enumerate(ACTIONS):
            following, delivered = TAXI.P[state][action][0][1], TAXI.P[state][action][0][3]
            if following == state or delivered or (name == "drop off") or following in seen:
                continue
            if env.stage == "pickup" and name == "pick up":
                continue
            seen.add(following)
            found.append(following)
    return seen


def shortest(state, done):
    """Fewest of gymnasium's own actions from ``state`` to a state that is ``done``: a forward search."""
    frontier, seen, steps = {state}, {state}, 0
    while not any(done(TAXI.decode(s)) for s in frontier):
        frontier = {TAXI.P[s][a][0][1] for s in frontier for a in range(6)} - seen
        seen |= frontier
        steps += 1
    return steps


def waiting(state):
    return list(TAXI.decode(state))[2] != ABOARD


# ---- it is an environment --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # gymnasium warns of text spaces; what it raises is what matters
@pytest.mark.parametrize(("stage", "horizon"), [("pickup", 15), ("dropoff", 30), ("full", 30)])
def test_it_passes_our_checks_and_gymnasiums(stage, horizon):
    env = DangerousTaxi(stage)
    assert (env.horizon, DangerousTaxi(stage, horizon=8).horizon) == (horizon, 8)
    check_env(env, episodes=10)
    gymnasium_check_env(env, skip_render_check=True)


# ---- tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "sizes"), [("pickup", (152, 28, 45, 75)), ("dropoff", (44, 14, 17, 25)), ("full", (152, 28, 45, 75))]
)
def test_the_splits_share_out_all_start_states(stage, sizes):
    env = DangerousTaxi(stage)
    assert tuple(len(env.tasks(split)) for split in SPLITS) == sizes
    states = [t.options["state"] for split in SPLITS for t in env.tasks(split)]
    parts = [list(TAXI.decode(state)) for state in range(500)]
    aboard = stage == "dropoff"
    expected = [s for s, (_, _, p, d) in enumerate(parts) if (p == ABOARD) == aboard and p != d]
    assert sorted(states) == expected
    assert len({t.id for split in SPLITS for t in env.tasks(split)}) == len(states)

    if stage == "pickup":  # a curriculum to the full task keeps the splits
        assert all(env.tasks(split) == DangerousTaxi("full").tasks(split) for split in SPLITS)


@pytest.mark.parametrize("tested", STAGES)
@pytest.mark.parametrize("trained", STAGES)
def test_no_action_leads_from_another_split_to_a_state_of_the_unseen_destination(trained, tested):
    """For every pair of stages, because a curriculum trains on several."""
    seen = reachable(DangerousTaxi(trained), "train", "validation", "test")
    unseen = reachable(DangerousTaxi(tested), "unseen_destination")
    assert unseen
    assert not seen & unseen
    assert not {map_text(state) for state in seen} & {map_text(state) for state in unseen}


@pytest.mark.parametrize("stage", STAGES)
def test_the_test_starts_lie_on_the_way_of_training_episodes(stage):
    """So the test split measures unseen starts only, which the documents say."""
    env = DangerousTaxi(stage)
    assert {task.options["state"] for task in env.tasks("test")} <= reachable(env, "train")


def test_the_tasks_never_change():
    """Published numbers refer to these; a new shuffle would put old training states into the test."""
    first = {stage: [DangerousTaxi(stage).tasks(split)[0].id for split in SPLITS] for stage in STAGES}
    assert first == EXPECTED_FIRST_TASKS


@pytest.mark.parametrize(
    ("stage", "task"),
    [
        ("dropoff", Task("a", {"state": 1})),  # the passenger is waiting
        ("pickup", Task("b", {"state": 16})),  # the passenger is aboard
        ("full", Task("c", {"state": 0})),  # nothing to do
        ("full", Task("d")),
        ("full", Task("e", {"state": "1"})),
    ],
)
def test_a_foreign_task_is_refused(stage, task):
    with pytest.raises(InvalidInput, match=f"'{task.id}'.*'{stage}'"):
        DangerousTaxi(stage).reset(options={"task": task})
    with pytest.raises(InvalidInput, match="'drop off'.*'dropoff'"):
        DangerousTaxi("drop off")


# ---- text ------------------------------------------------------------------------------------------------------------


def test_the_map_by_hand():
    text, info = begin(DangerousTaxi("full"), at(3, 1, 0, 3))  # passenger at red, destination blue
    assert text.split("\n") == [
        "P: | : : ",
        " : | : : ",
        " : : : : ",
        " |T: | : ",
        " | : |D: ",
    ]
    assert info["actions"] == ("move south", "move north", "move east", "move west", "pick up", "drop off")


@pytest.mark.parametrize(
    ("state", "row"),
    [
        (at(0, 0, 0, 1), "O: | : :D"),
        (at(0, 1, 0, 1), "P:T| : :D"),
        (at(0, 0, ABOARD, 1), "X: | : :D"),
        (at(0, 4, ABOARD, 1), " : | : :X"),
        (at(0, 4, 0, 1), "P: | : :T"),
    ],
    ids=["on the passenger", "empty", "aboard", "aboard on the destination", "empty on the destination"],
)
def test_the_taxis_letter(state, row):
    assert map_text(state).split("\n")[0] == row


@pytest.mark.parametrize("stage", STAGES)
def test_the_text_tells_all_states_apart(stage):
    states = reachable(DangerousTaxi(stage))
    assert len(states) == {"pickup": 300, "dropoff": 100, "full": 400}[stage]
    assert len({map_text(state) for state in states}) == len(states)


# ---- rules -----------------------------------------------------------------------------------------------------------


def forbidden(state, action):
    """By gymnasium's table: no effect, a fine, or a passenger left at the wrong place."""
    _, following, reward, delivered = TAXI.P[state][action][0]
    return following == state or reward == -10 or (ACTIONS[action] == "drop off" and not delivered)


@pytest.mark.parametrize("stage", STAGES)
def test_every_action_in_every_start_state_is_judged_as_the_rules_say(stage):
    env = DangerousTaxi(stage)
    ends = 0
    for task in (t for split in SPLITS for t in env.tasks(split)):
        state = task.options["state"]
        for action, name in enumerate(ACTIONS):
            env.reset(seed=0, options={"task": task})
            _, reward, terminated, truncated, info = env.step(name)
            got = (reward, terminated, info["success"], info["illegal"])
            if forbidden(state, action):
                ends += 1
                assert got == (-0.5, True, False, True)
            elif name == "pick up" and stage == "full":
                assert got == (1.0, False, False, False)
            elif name in ("pick up", "drop off"):
                assert got == (1.0, True, True, False)
            else:
                assert got == (-0.05, False, False, False)
            assert not truncated
    assert ends > len(env.tasks("train"))


@pytest.mark.parametrize(("milestone", "reward"), [(True, 1.0), (False, -0.05)])
def test_the_milestone_pays_for_the_pickup_and_a_dropoff_elsewhere_is_forbidden_at_landmarks_too(milestone, reward):
    env = DangerousTaxi("full", milestone=milestone)
    begin(env, at(0, 0, 0, 1))
    _, got, terminated, _, info = env.step("pick up")
    assert (got, terminated, info["success"]) == (reward, False, False)
    _, reward, terminated, _, info = env.step("drop off")
    assert (reward, terminated, info["illegal"], info["success"]) == (-0.5, True, True, False)


def test_wandering_is_cut_at_the_horizon_and_shows_the_map_of_each_state():
    env = DangerousTaxi("pickup")
    state = at(2, 2, 0, 1)
    begin(env, state)
    ends = []
    for number in range(15):
        action = ("move east", "move west")[number % 2]
        state = TAXI.P[state][ACTIONS.index(action)][0][1]
        text, _, *ended, _ = env.step(action)
        assert text == map_text(state)
        ends.append(ended)
    assert ends == [[False, False]] * 14 + [[False, True]]


# ---- expert ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_the_expert_solves_every_task_in_the_fewest_steps(stage):
    env = DangerousTaxi(stage)
    for task in (t for split in SPLITS for t in env.tasks(split)):
        env.reset(seed=0, options={"task": task})
        rewards, terminated = [], False
        while not terminated:
            assert not any(action in env.reflection() for action in ACTIONS)
            _, reward, terminated, truncated, info = env.step(env.expert())
            assert not truncated
            rewards.append(reward)
        assert env.expert() is None
        state = task.options["state"]
        done = (lambda s: list(s)[2] == ABOARD) if stage == "pickup" else (lambda s: list(s)[2] == list(s)[3])
        assert info["success"]
        assert len(rewards) == shortest(state, done)
        goals = 2 if stage == "full" else 1
        assert sum(rewards) == pytest.approx(goals - 0.05 * (len(rewards) - goals))


# ---- hints -----------------------------------------------------------------------------------------------------------


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
