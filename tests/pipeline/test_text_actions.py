"""Environments without menus, whose policies write their actions: from the check to a loaded agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from orders import Orders
from trained_runs import SHORT, play_stages

from reflectrl import InvalidInput, Observation, Outcome, check_env, load_agent, register_env
from reflectrl.config import Recipe, check_recipe, load_recipe
from reflectrl.core.run_files import RESULTS
from reflectrl.data_gen.demonstrations import save_episode
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import read_results

WRITES = ("env.name=orders", "env.options={}", "prompt.action_mode=text", "sft.policy.label_smoothing=0")


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    register_env("orders", Orders)


def recipe_of(*overrides: str) -> Recipe:
    return load_recipe("number_line/nano", [*SHORT, *WRITES, *overrides])


def test_an_environment_without_menus_takes_any_text() -> None:
    check_env(Orders())
    env = Orders()
    env.reset(options={"task": env.tasks("train")[0]})
    text, reward, terminated, _, info = env.step("\x07 \u53f3")
    assert (reward, terminated, info["illegal"], info["actions"]) == (-0.1, False, True, ())
    assert "Nobody knows" in text


def test_an_environment_that_fails_at_an_odd_text_is_refused() -> None:
    class Strict(Orders):
        def act(self, action: str) -> Outcome:
            action.split()[0]  # fails for an empty text
            return super().act(action)

    with pytest.raises(InvalidInput, match="IndexError"):
        check_env(Strict())


def test_an_expert_has_to_say_what_a_policy_can_write() -> None:
    class Wordy(Orders):
        def expert(self) -> str:
            return f"{self.wanted}\nplease"

    with pytest.raises(InvalidInput, match="expected one line of words with single spaces"):
        check_env(Wordy())


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("eval.policies=[rlft, remote]", "eval.policies: remote answers with a label"),
        ("data={teacher: openai, trajectory: teacher}", "data.trajectory: the teacher chooses from a menu"),
        ("rlft.rewards={env: 1.0, format: 1.0}", "format says whether a text is on the menu"),
        ("rlft.fallback_credit=mask", "mask is about texts that are not on the menu"),
    ],
)
def test_what_needs_a_menu_is_refused_without_one(override: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_recipe(recipe_of(override))


@pytest.mark.parametrize("mode", ["enumerated", "thought_choice"])
def test_a_label_cannot_answer_without_a_menu(mode: str) -> None:
    with pytest.raises(InvalidInput, match="no menus .* set that to json or text or thought_text"):
        check_recipe(recipe_of(f"prompt.action_mode={mode}"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["thought_text", "json"])
def test_a_policy_writes_its_actions_in_all_stages(mode: str, tmp_path: Path) -> None:
    """The mode ``text`` goes through all stages in the next test."""
    run = tmp_path / "run"
    grouped = ("rlft.advantage={kind: group}", "rlft.episodes_per_task=2", "rlft.gamma=1")
    play_stages(recipe_of(f"prompt.action_mode={mode}", *grouped), run)
    rows = {row.policy: row.metrics for row in read_results(run / RESULTS) if row.mode == "sampled"}
    assert rows["expert"].success == 1
    assert rows["random"].illegal > 0.2  # its words are those of the text
    _, played = read_trajectories(next((run / "trajectories").glob("rlft-*.jsonl*")))
    turns = [turn for each in played for turn in each.turns]
    assert all(turn.menu == () and turn.decision.choice.index == -1 for turn in turns)
    header, shown = read_trajectories(run / "data" / "teacher.jsonl")
    assert save_episode(tmp_path / "shown.jsonl", header, next(iter(shown))) == 1
    play_stages(recipe_of(f"data.demonstrations=[{tmp_path / 'shown.jsonl'}]"), tmp_path / "taught", "gen-data")
    agent = load_agent(run)
    move = agent.act(Observation("Wanted: the red cat."))
    assert move.decision.choice.written is not None


@pytest.mark.slow
def test_rlft_teaches_what_to_write(tmp_path: Path) -> None:
    taught = (
        "players.reflector.player=none",
        "data.samples=600",
        "sft.policy.steps=25",
        "sft.policy.learning_rate=3e-3",
    )
    played = (
        "rlft.lessons.0.iterations=30",
        "rlft.episodes=32",
        "rlft.episodes_per_task=4",
        "rlft.terms.entropy.coef=0.01",
    )
    learns = ("rlft.update={kind: ppo}", "rlft.advantage={kind: gae}", "players.policy.max_new_tokens=6")
    play_stages(recipe_of(*taught, *played, *learns, "eval.split=train", "eval.episodes=64"), tmp_path / "run")
    rows = read_results(tmp_path / "run" / RESULTS)
    found = {row.policy: row.metrics.success for row in rows if row.mode == "sampled"}
    assert found["rlft"] >= found["sft"] + 0.3  # 0.16 and 0.88 here
