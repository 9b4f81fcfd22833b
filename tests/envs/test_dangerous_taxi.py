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


@pytest.mark.parametrize("stage", STAGES)
def test_it_passes_our_checks(stage):
    check_env(DangerousTaxi(stage), episodes=10)


@pytest.mark.filterwarnings("ignore")  # gymnasium warns of text spaces; what it raises is what matters
@pytest.mark.parametrize("stage", STAGES)
def test_it_passes_gymnasiums_checks(stage):
    gymnasium_check_env(DangerousTaxi(stage), skip_render_check=True)


def test_an_unknown_stage_is_refused_with_the_nearest():
    with pytest.raises(InvalidInput, match=r"stage 'drop off' of .* is unknown; did you mean 'dropoff'\?"):
        DangerousTaxi("drop off")


@pytest.mark.parametrize(("stage", "horizon"), [("pickup", 15), ("dropoff", 30), ("full", 30)])
def test_each_stage_has_its_horizon(stage, horizon):
    assert DangerousTaxi(stage).horizon == horizon
    assert DangerousTaxi(stage, horizon=8).horizon == 8


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


def test_a_curriculum_from_pickup_to_full_keeps_the_splits():
    for split in SPLITS:
        assert DangerousTaxi("pickup").tasks(split) == DangerousTaxi("full").tasks(split)


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
    with pytest.raises(InvalidInput, match=f"task '{task.id}' does not start stage '{stage}'"):
        DangerousTaxi(stage).reset(options={"task": task})


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


def test_the_text_of_a_state_in_play_is_the_map_of_that_state():
    env = DangerousTaxi("full")
    state = at(2, 2, 2, 0)
    begin(env, state)
    for action in ("move west", "move west", "move south", "move south", "pick up", "move north"):
        state = TAXI.P[state][ACTIONS.index(action)][0][1]
        assert env.step(action)[0] == map_text(state)


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
def test_the_milestone_pays_for_the_pickup(milestone, reward):
    env = DangerousTaxi("full", milestone=milestone)
    begin(env, at(0, 0, 0, 1))
    _, got, terminated, _, info = env.step("pick up")
    assert (got, terminated, info["success"]) == (reward, False, False)


def test_a_dropoff_short_of_the_destination_is_forbidden_at_landmarks_too():
    env = DangerousTaxi("full")
    begin(env, at(0, 0, 0, 1))
    env.step("pick up")
    _, reward, terminated, _, info = env.step("drop off")
    assert (reward, terminated, info["illegal"], info["success"]) == (-0.5, True, True, False)


def test_wandering_is_cut_at_the_horizon():
    env = DangerousTaxi("pickup")
    begin(env, at(2, 2, 0, 1))
    steps = [env.step(("move east", "move west")[i % 2])[2:4] for i in range(15)]
    assert steps == [(False, False)] * 14 + [(False, True)]


# ---- expert ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_the_expert_solves_every_task_in_the_fewest_steps(stage):
    env = DangerousTaxi(stage)
    for task in (t for split in SPLITS for t in env.tasks(split)):
        env.reset(seed=0, options={"task": task})
        rewards, terminated = [], False
        while not terminated:
            _, reward, terminated, truncated, info = env.step(env.expert())
            assert not truncated
            rewards.append(reward)
        state = task.options["state"]
        done = (lambda s: list(s)[2] == ABOARD) if stage == "pickup" else (lambda s: list(s)[2] == list(s)[3])
        assert info["success"]
        assert len(rewards) == shortest(state, done)
        goals = 2 if stage == "full" else 1
        assert sum(rewards) == pytest.approx(goals - 0.05 * (len(rewards) - goals))


def test_the_expert_answers_after_a_detour():
    env = DangerousTaxi("pickup")
    begin(env, at(0, 1, 0, 1))
    assert env.expert() == "move west"
    env.step("move south")
    assert env.expert() in ("move north", "move west")


def test_at_the_goal_the_expert_has_nothing_to_do():
    env = DangerousTaxi("pickup")
    begin(env, at(0, 0, 0, 1))
    env.step("pick up")
    assert env.expert() is None


# ---- hints -----------------------------------------------------------------------------------------------------------


def test_reflections_by_hand():
    env = DangerousTaxi("full")
    begin(env, at(1, 0, 0, 1))
    said = [env.reflection()]
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


@pytest.mark.parametrize("stage", STAGES)
def test_a_reflection_never_names_an_action(stage):
    env = DangerousTaxi(stage)
    for task in env.tasks("test"):
        env.reset(options={"task": task})
        terminated = False
        while not terminated:
            assert not any(action in env.reflection() for action in ACTIONS)
            terminated = env.step(env.expert())[2]


def test_the_spoiler_names_the_best_action_and_where_everything_is():
    env = DangerousTaxi("pickup")
    begin(env, at(1, 0, 0, 1))
    assert env.spoiler() == (
        "The best next action is: move north. Taxi at row 1 column 0, passenger at row 0 column 0. "
        "Actions left at best: 2."
    )


def test_a_negative_example_can_be_made_and_unmade():
    """What gen-data does: perturb a step, ask for a reflection, restore."""
    env = DangerousTaxi("pickup")
    begin(env, at(2, 2, 0, 1))
    env.step(env.expert())
    here, observation, hints = env.snapshot(), env.observation, env.hints()
    env.step("move east")
    assert env.reflection().startswith("Mistake. ")
    env.restore(here)
    assert (env.observation, env.hints()) == (observation, hints)
