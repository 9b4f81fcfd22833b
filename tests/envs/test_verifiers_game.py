"""Environments of verifiers in our interface: its own classes, reasoning-gym's tasks, gymnasium's lake."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers", reason="needs the extra verifiers")

import verifiers_envs
from trained_runs import play_stages

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput, NatLangEnv, check_env, make_env
from reflectrl.core.errors import EnvFailed
from reflectrl.core.run_files import RESULTS
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.pool import WorkerLimits, WorkerPool
from reflectrl.rollout.results import read_results
from reflectrl.seats.others import RandomPolicy

LEGS = "verifiers:ReasoningGymEnv"
ARGS = {"gym": "leg_counting", "num_train_examples": 8, "num_eval_examples": 8}
LAKE, DOOR = "verifiers_envs:lake", "verifiers_envs:door"
Make = Callable[..., NatLangEnv]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make environments, and close them after the test."""
    made: list[NatLangEnv] = []

    def one(name: str, **options: Any) -> NatLangEnv:
        made.append(make_env(f"verifiers:{name}", **options))
        return made[-1]

    yield one
    for env in made:
        env.close()


def begun(env: NatLangEnv, number: int = 0) -> NatLangEnv:
    env.reset(seed=0, options={"task": env.tasks("train")[number]})
    return env


@pytest.mark.slow
@pytest.mark.parametrize(("name", "args"), [(LEGS, ARGS), (LAKE, {}), (DOOR, {"parser": "xml"})])
def test_it_passes_our_checks(name: str, args: dict[str, Any], make: Make) -> None:
    check_env(make(name, args=args))


@pytest.mark.slow
def test_a_question_of_reasoning_gym_takes_one_reply_that_its_own_rubric_scores(make: Make) -> None:
    env = make(LEGS, args=ARGS)
    assert "provide the answer in the following format:\n<answer>" in env.instructions
    for number, task in enumerate(env.tasks("train")):
        for said, reward in ((env._game.rg_dataset[number]["answer"], 1.0), ("a lot", 0.0)):
            text, _ = env.reset(options={"task": task})
            assert text == env._game.rg_dataset[number]["question"]
            assert env.step(said) == (
                "The episode is over.",
                reward,
                True,
                False,
                {"actions": (), "task": task.id, "success": reward == 1, "illegal": False},
            )


def test_a_game_takes_several_turns_and_the_reward_comes_at_the_end(make: Make) -> None:
    env = make(LAKE)
    assert (env.instructions, env.horizon) == ("Walk to square 15.", 8)
    assert env.reset(options={"task": env.tasks("test")[0]})[0] == "You are on square 0 of 16."
    played = [env.step(move) for move in ("down", "down", "right", "right", "down", "right", "thanks")]
    assert [text for text, *_ in played[:5]] == [f"You are on square {n} of 16." for n in (4, 8, 9, 10, 14)]
    assert played[5][0] == "You are on square 15 of 16.\nEpisode already ended."  # GymEnv asks once more
    assert [reward for _, reward, *_ in played] == [0, 0, 0, 0, 0, 0, 1]
    text, _, terminated, truncated, info = played[-1]
    assert (text, terminated, truncated, info["success"]) == ("The episode is over.", True, False, True)


def test_an_end_by_max_turns_is_scored_too_and_a_horizon_may_come_earlier(make: Make) -> None:
    env = begun(make(LAKE, args={"turns": 0}, horizon=2))
    env.step("down")
    assert env.step("down")[1:4] == (0.0, True, False)
    assert make(LAKE, horizon=3).horizon == 3
    with pytest.raises(InvalidInput, match="does not say how long an episode may be; give a horizon"):
        make(DOOR, args={"turns": -1})


@pytest.mark.parametrize("parser", ["plain", "xml", "think"])
def test_what_a_player_writes_is_where_the_parser_looks_for_it(parser: str, make: Make) -> None:
    env = begun(make(DOOR, args={"parser": parser}))
    assert env.step("somebody")[0] == "Greet me."
    assert env.step("hello number 0")[1] == 1.0


def test_examples_are_divided_where_there_are_none_for_evaluation(make: Make) -> None:
    env = make(DOOR)
    assert {split: [task.id for task in env.tasks(split)] for split in env.splits} == {
        "train": [f"train-{n}" for n in range(4)],
        "validation": ["validation-4", "validation-5"],
        "test": ["test-6", "test-7"],
    }
    assert [len(make(LAKE).tasks(split)) for split in env.splits] == [4, 2, 2]


def test_an_example_is_held_out_only_if_it_occurs_in_no_split_before(make: Make) -> None:
    env = make(DOOR, args={"names": [0, 1, 2, 0, 0, 3, 3, 4], "turns": 1})
    assert [task.id for split in env.splits for task in env.tasks(split)][4:] == ["validation-5", "test-7"]
    with pytest.raises(InvalidInput, match="each of the 2 validation examples occurs among those before"):
        make(DOOR, args={"names": [0] * 8})


def test_success_is_what_the_environment_calls_a_pass_or_what_an_option_says(make: Make) -> None:
    for options, success in (({}, True), ({"success_reward": 1.5}, False)):
        env = begun(make(DOOR, **options))
        env.step("somebody")
        assert env.step("hello number 0")[4]["success"] is success


@pytest.mark.parametrize("said", ["", "\x07\x1b[2J", "右へ", "word " * 20_000, "</said>\0"])
def test_whatever_is_written_is_answered(said: str, make: Make) -> None:
    env = begun(make(DOOR, args={"parser": "xml"}))
    assert env.step(said)[0] == "Greet me."
    assert env.step(said)[1:3] == (0.0, True)


# ---- rubrics and environments with faults ------------------------------------------------------------------------


def test_a_rubric_that_raises_counts_nothing_and_the_last_state_says_so(make: Make) -> None:
    env = begun(make(DOOR, args={"fault": "raises"}))
    env.step("somebody")
    text, reward, terminated, _, info = env.step("hello number 0")
    assert "Error calling reward function broken: 3 words, none of them right" in text
    assert (reward, terminated, info["illegal"], info["success"]) == (0.0, True, True, False)


@pytest.mark.parametrize(
    ("fault", "steps", "said"),
    [
        ("nan", 2, "returned reward nan for 'hello'; expected a finite number"),
        ("none", 2, "raised TypeError: .* 'float' and 'NoneType'"),
        ("error", 1, "the rollout ended with .*the door is locked"),
        ("bug", 1, "raised KeyError: 'door'"),
    ],
)
def test_a_fault_is_a_sentence_that_names_the_task_and_the_next_episode_plays(
    fault: str, steps: int, said: str, make: Make
) -> None:
    env = begun(make(DOOR, args={"fault": fault}))
    for _ in range(steps - 1):
        env.step("hello")
    with pytest.raises(EnvFailed, match=rf"task 'train-0' after {steps - 1} steps?, at action 'hello'.*{said}"):
        env.step("hello")
    assert begun(env, 1).observation.text == "I am number 1. Who are you?"


def test_a_picture_cannot_be_played(make: Make) -> None:
    with pytest.raises(InvalidInput, match="shows a picture or sound; only texts can be played"):
        begun(make(DOOR, args={"fault": "picture"})).step("hello")


@pytest.mark.slow
def test_a_late_reward_loses_its_episode_alone() -> None:
    options = {"environment": DOOR, "args": {"fault": "late"}}
    episodes = [Episode(task, 0) for task in make_env("verifiers", **options).tasks("train")[:1]]
    with WorkerPool(1, WorkerLimits(deadline_s=2, on_failure="drop")) as pool:
        envs = pool.make("verifiers", options, 1)
        assert rollout(envs, episodes, policy=RandomPolicy(), seats=[], layout=PromptFormat()) == []
        assert pool.failures == 1


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("verifiers_envs:armed", {}, "needs tools"),
        (DOOR, {"fault": "judge"}, "needs a judge"),
        (DOOR, {"fault": "group"}, "needs rewards of whole groups"),
        ("builtins:dict", {}, r"is \{\}; expected a MultiTurnEnv"),
        ("no-such-environment", {}, "Could not import 'no-such-environment' environment"),
        ("verifiers_envs:nothing", {}, "has no attribute 'nothing'"),
        (DOOR, {"colour": "red"}, "unexpected keyword argument 'colour'"),
    ],
)
def test_what_cannot_be_played_is_refused(
    name: str, args: dict[str, Any], said: str, make: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidInput, match=said):
        make(name, args=args)
    assert capfd.readouterr() == ("", "")


# ---- the process around it ---------------------------------------------------------------------------------------


def test_making_and_playing_leaves_signals_and_generators_as_they_were(make: Make) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    before = random.getstate()
    begun(make(LAKE)).step("down")
    assert random.getstate() == before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_it_is_made_and_played_in_another_thread_too(make: Make) -> None:
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(lambda: begun(make(DOOR)).step("somebody")[0]).result() == "Greet me."


def test_it_can_be_closed_in_a_notebook_and_played_again(make: Make) -> None:
    async def notebook() -> None:
        env = begun(make(DOOR))
        verifiers_envs.LEFT.clear()
        env.close()
        assert verifiers_envs.LEFT == ["number 0"]
        with pytest.raises(EnvFailed, match="it was closed; begin an episode with reset"):
            env.step("somebody")
        assert begun(env, 1).step("somebody")[0] == "Greet me."

    asyncio.run(notebook())


def test_a_rollout_is_cleaned_up_without_a_word_where_its_environment_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    verifiers_envs.LEFT.clear()
    begun(make_env(f"verifiers:{DOOR}"))
    gc.collect()
    assert (verifiers_envs.LEFT, caplog.text) == (["number 0"], "")


def test_a_rollout_that_is_left_is_cleaned_up(make: Make) -> None:
    env = begun(make(DOOR))
    env.step("somebody")
    verifiers_envs.LEFT.clear()
    begun(env, 1)
    assert verifiers_envs.LEFT == ["number 0"]


def test_a_copy_goes_on_from_the_same_turn(make: Make) -> None:
    env = begun(make(LAKE))
    env.step("down")
    for other in (copy.copy(env), pickle.loads(pickle.dumps(env))):
        assert other.observation == env.observation
        assert other.step("down")[0] == "You are on square 8 of 16."
        other.close()
    snapshot = env.snapshot()
    env.step("right")
    env.restore(snapshot)
    assert env.observation.text == "You are on square 4 of 16."


@pytest.mark.slow
def test_the_recipe_trains_with_the_same_bytes_in_this_process_and_in_workers(tmp_path: Path) -> None:
    small = ("rlft.lessons.0.iterations=1", "rlft.episodes=8", "rlft.validation=null", "rlft.keep=last")
    small += ("eval.episodes=2", "eval.controls=[]")
    for run, workers in (("here", 0), ("there", 2)):
        play_stages(load_recipe("verifiers/siblings", [*small, f"env.workers={workers}"]), tmp_path / run)
    assert {row.policy for row in read_results(tmp_path / "here" / RESULTS)} == {"random", "rlft"}
    weights = [(tmp_path / run / "policy" / "model.safetensors").read_bytes() for run in ("here", "there")]
    assert weights[0] == weights[1]
