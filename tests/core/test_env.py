from __future__ import annotations

import math

import pytest

from reflectrl.core import Hints, InvalidInput, Observation, Outcome, Task, WorkFailed
from reflectrl.core.spaces import TextSpace

AT_0 = Task("train-0", {"room": 0})
AT_1 = Task("train-1", {"room": 1})


def start(env, task=AT_0, seed=0):
    return env.reset(seed=seed, options={"task": task})


# ---- reset ---------------------------------------------------------------------------------------------------------


def test_reset_returns_the_text_and_what_is_legal(corridor):
    text, info = start(corridor())
    assert text.startswith("Room 0, number ")
    assert info == {"actions": ("right",), "task": "train-0", "success": False, "illegal": False}


def test_reset_without_a_task_draws_training_tasks_by_seed(corridor):
    env = corridor()
    drawn = [env.reset(seed=seed)[1]["task"] for seed in range(20)]
    assert set(drawn) == {"train-0", "train-1"}
    assert drawn == [corridor().reset(seed=seed)[1]["task"] for seed in range(20)]


def test_equal_seeds_are_equal_episodes_whatever_was_played_before(corridor):
    fresh, used = corridor(), corridor()
    start(used, AT_1, seed=5)
    used.step("left")
    assert start(fresh, seed=7) == start(used, seed=7)
    assert fresh.step("right") == used.step("right")


def test_a_drawn_task_and_the_same_task_given_are_the_same_episode(corridor):
    env = corridor()
    text, info = env.reset(seed=3)
    task = next(task for task in env.tasks("train") if task.id == info["task"])
    assert start(env, task, seed=3)[0] == text


def test_resets_without_a_seed_differ(corridor):
    env = corridor()
    assert len({env.reset(options={"task": AT_0})[0] for _ in range(5)}) == 5


def test_a_reused_environment_forgets_the_last_episode(corridor):
    env = corridor()
    start(env)
    env.step("right")
    start(env)
    assert env.last_action is None
    assert env.snapshot().actions == ()


def test_reset_refuses_an_unknown_option(corridor):
    with pytest.raises(InvalidInput, match=r"options \['tusk'\]; did you mean 'task'\?"):
        corridor().reset(options={"tusk": AT_0})


def test_reset_refuses_a_task_that_is_no_task(corridor):
    with pytest.raises(InvalidInput, match=r"task='train-0'; expected a Task of env.tasks"):
        corridor().reset(options={"task": "train-0"})


@pytest.mark.parametrize("horizon", [0, -1, 2.5, "10", None])
def test_a_horizon_that_is_no_number_of_steps_is_refused(corridor, horizon):
    with pytest.raises(InvalidInput, match="expected 1 or more whole steps"):
        corridor(horizon)


# ---- step ----------------------------------------------------------------------------------------------------------


def test_step_returns_gymnasiums_five_values(corridor):
    env = corridor()
    start(env)
    text, reward, terminated, truncated, info = env.step("right")
    assert text.startswith("Room 1, number ")
    assert (reward, terminated, truncated, info["actions"]) == (0.0, False, False, ("right", "left"))


def test_success_and_illegal_are_what_the_environment_declares(corridor):
    env = corridor(act=lambda _, __: Outcome(-1.0, ended=True, success=False, illegal=True))
    start(env)
    assert env.step("right")[4] | {"actions": ()} == {
        "actions": (),
        "task": "train-0",
        "success": False,
        "illegal": True,
    }


def test_running_out_of_time_truncates(corridor):
    env = corridor(horizon=2)
    start(env)
    assert env.step("right")[2:4] == (False, False)
    assert env.step("left")[2:4] == (False, True)


def test_an_end_on_the_last_step_terminates_and_does_not_truncate(corridor):
    env = corridor(horizon=3)
    start(env)
    env.step("right")
    env.step("right")
    _, reward, terminated, truncated, info = env.step("right")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


@pytest.mark.parametrize("horizon", [1, 5])
def test_step_after_the_end_is_refused(corridor, horizon):
    env = corridor(horizon)
    start(env, Task("test-2", {"room": 2}))
    env.step("right")
    with pytest.raises(InvalidInput, match="after the episode had ended; call reset first"):
        env.step("right")


def test_step_before_reset_is_refused(corridor):
    with pytest.raises(InvalidInput, match="call reset first"):
        corridor().step("right")


def test_an_action_that_is_not_on_the_menu_is_refused_and_changes_nothing(corridor):
    env = corridor()
    start(env)
    before = env.snapshot(), env.observation
    with pytest.raises(InvalidInput, match=r"'rigth' is not a legal action of 'corridor' here; did you mean 'right'\?"):
        env.step("rigth")
    with pytest.raises(InvalidInput, match="'left' is not a legal action"):
        env.step("left")  # legal elsewhere, not in room 0
    assert (env.snapshot(), env.observation) == before


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_finite_number_fails_the_work(corridor, reward):
    env = corridor(act=lambda _, __: Outcome(reward))
    start(env)
    with pytest.raises(WorkFailed, match=f"returned reward {reward} for 'right'; expected a finite number"):
        env.step("right")


def test_an_outcome_of_another_type_fails_the_work(corridor):
    env = corridor(act=lambda _, __: (0.0, False))
    start(env)
    with pytest.raises(WorkFailed, match=r"returned \(0.0, False\) from act\(\); expected an Outcome"):
        env.step("right")


def test_an_observation_of_another_type_fails_the_work(corridor):
    with pytest.raises(WorkFailed, match=r"returned 'A room.' from observe\(\); expected an Observation"):
        start(corridor(observe=lambda _: "A room."))


def test_no_legal_action_fails_the_work(corridor):
    env = corridor(observe=lambda _: Observation("A dark room.", ()))
    with pytest.raises(WorkFailed, match="at the start of task 'train-0': it offered no legal action"):
        start(env)


def test_an_ended_episode_needs_no_legal_action(corridor):
    env = corridor(observe=lambda self: Observation("Here.", ("right",) if self.room < 3 else ()))
    start(env, Task("test-2", {"room": 2}))
    assert env.step("right")[4]["actions"] == ()


# ---- what an author may leave out ----------------------------------------------------------------------------------


def test_hints_default_to_the_experts_action(corridor):
    env = corridor()
    start(env)
    assert env.hints() == Hints("right", "Next: right.", "The best next action is: right")


def test_an_environment_without_an_expert_has_no_hints(corridor):
    env = corridor(expert=lambda _: None)
    start(env)
    assert env.hints() == Hints(None, None, None)


# ---- snapshot and restore ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, None], ids=["seeded", "unseeded"])
def test_restore_reproduces_the_state_and_what_follows(corridor, seed):
    env = corridor()
    start(env, seed=seed)
    env.step("right")
    here, observation = env.snapshot(), env.observation
    after = env.step("left")
    env.restore(here)
    assert env.observation == observation
    assert env.last_action == "right"
    assert env.step("left") == after


def test_restore_comes_back_from_after_the_end(corridor):
    env = corridor()
    start(env, Task("test-2", {"room": 2}))
    here = env.snapshot()
    env.step("right")
    env.restore(here)
    assert env.step("right")[4]["success"]


def test_a_snapshot_can_be_restored_in_another_copy(corridor):
    env, other = corridor(), corridor()
    env.reset()
    env.step("right")
    other.restore(env.snapshot())
    assert other.observation == env.observation


# ---- views and spaces ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["observation", "task"])
def test_nothing_is_shown_before_the_first_reset(corridor, view):
    with pytest.raises(InvalidInput, match="has not been reset yet; call reset first"):
        getattr(corridor(), view)


def test_gymnasium_sees_the_task_with_the_state(corridor):
    asked = Observation("Room 0.", ("right",), task="Find the exit.")
    env = corridor(observe=lambda _: asked)
    text, _ = env.reset(seed=0)
    assert text == env.render() == "Find the exit.\nRoom 0."
    assert env.step("right")[0] == text


def test_steps_counts_the_actions_of_the_episode(corridor):
    env = corridor()
    start(env)
    assert env.steps == 0
    env.step("right")
    assert env.steps == 1
    env.reset()
    assert env.steps == 0


def test_render_is_the_text(corridor):
    env = corridor()
    text, _ = start(env)
    assert env.render() == text


def test_the_action_space_samples_legal_actions_by_seed(corridor):
    env = corridor()
    start(env, AT_1)
    env.action_space.seed(0)
    first = [env.action_space.sample() for _ in range(20)]
    env.action_space.seed(0)
    assert [env.action_space.sample() for _ in range(20)] == first
    assert set(first) == {"left", "right"}


def test_a_text_space_holds_every_text_and_nothing_else():
    space = TextSpace(("word",))
    assert "anything" in space
    assert 3 not in space
    assert space == TextSpace()


def test_a_text_space_draws_from_a_mask():
    space = TextSpace(("word",))
    assert {space.sample(mask=("left", "right")) for _ in range(20)} == {"left", "right"}
    assert space.sample() == "word"
    assert space.sample(mask=()) == ""  # the menu of an episode that has ended


@pytest.mark.parametrize("mask", [1, "left", (1,), {"left"}])
def test_a_text_space_refuses_a_mask_that_is_no_sequence_of_texts(mask):
    with pytest.raises(InvalidInput, match="expected a tuple of legal texts"):
        TextSpace().sample(mask=mask)


def test_a_text_space_refuses_probabilities():
    with pytest.raises(InvalidInput, match="give the legal texts as mask"):
        TextSpace().sample(probability=(0.5,))


def test_nothing_can_be_sampled_before_the_first_reset(corridor):
    with pytest.raises(InvalidInput, match="reset the environment first"):
        corridor().action_space.sample()


def test_further_splits_are_splits_like_the_others(corridor):
    def tasks(_, split):
        return [Task(f"{split}-0", {"room": 0})]

    env = corridor(tasks=tasks, further_splits=("far",))
    assert env.splits == ("train", "validation", "test", "far")
    assert [task.id for task in env.split_tasks("far")] == ["far-0"]
    with pytest.raises(InvalidInput, match=r"split 'fair' is unknown; did you mean 'far'\?"):
        env.any_tasks("fair")


def test_an_unknown_split_is_refused(corridor):
    with pytest.raises(InvalidInput, match=r"split 'tests' is unknown; did you mean 'test'\?"):
        corridor().split_tasks("tests")


def test_an_empty_split_is_refused(corridor):
    with pytest.raises(InvalidInput, match="has no tasks in split 'test'; choose another split"):
        corridor(tasks=lambda *_: []).split_tasks("test")
