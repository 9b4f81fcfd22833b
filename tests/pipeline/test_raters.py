"""Recipes with a rater: RLFT on ratings alone, records, resuming, and the audit of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import reflectrl, refused
from scripted_endpoint import Chat, ScriptedEndpoint
from trained_runs import TrainedRuns, play_stages, small_recipe

from reflectrl.config import Recipe, dump_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.run_files import STAGES
from reflectrl.pipeline.agent import load_agent
from reflectrl.report import report
from reflectrl.report.runs import read_runs
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import read_results

pytestmark = pytest.mark.slow
STEP = re.compile(r"Number (\d+), target (\d+)\.(?: \| (add|subtract) one)?")


def judge(chat: Chat) -> str:
    """Reply with a summary of the last step shown, or with the highest rating if that step led to the target."""
    asked = chat[1]["content"]
    if "Rate how well" in asked:
        return "3" if "on the target" in asked else "1"
    number, target, action = STEP.findall(asked)[-1]
    end = int(number) + {"add": 1, "subtract": -1}.get(action, 0)
    return f"The agent ended {'on' if end == int(target) else 'off'} the target."


def rated_by(endpoint: ScriptedEndpoint, name: str, *more: str) -> Recipe:
    at = f"players.rater.endpoint.base_url={endpoint.url}"
    return small_recipe(at, "rlft.episodes=8", "eval.policies=[rlft]", "eval.greedy=false", *more, name=name)


def numbers(run: Path) -> dict[str, object]:
    done = reflectrl("audit-rater", run, "--format", "json")
    assert done.code == 0, done.err
    return json.loads(done.out)["all"]


def test_the_reward_is_the_rating_and_success_stays_in_the_metrics(trained_run: TrainedRuns) -> None:
    run = trained_run(name="vtifa/nano")
    [read] = read_runs([run])
    assert [len(line.levels) for line in read.ratings] == [6] * 4
    assert [point.success for point in read.points] == [sum(line.success) / 6 for line in read.ratings]
    _, played = read_trajectories(run / "trajectories" / "rlft-00003.jsonl")
    for episode, level in zip(played, read.ratings[3].levels, strict=False):
        assert [turn.rewards.get("rater") for turn in episode.turns] == [None] * (len(episode.turns) - 1) + [level / 3]
        assert all("reflector" in turn.said for turn in episode.turns)  # the reflector's words are recorded too
    assert read_results(run / "eval.jsonl")
    _, judged = read_trajectories(run / "trajectories" / "eval-rlft-local-sampled.jsonl")
    assert not any("rater" in turn.said for episode in judged for turn in episode.turns)
    assert [seat.role for seat in load_agent(run).seats] == ["reflector"]


def test_the_audit_finds_a_rater_that_is_wrong_on_purpose(trained_run: TrainedRuns, tmp_path: Path) -> None:
    wrong = trained_run("players.rater.accuracy=0.0", name="vtifa/nano", stages=STAGES[:3])
    found = numbers(wrong)
    assert (found["accuracy"], found["precision"], found["recall"]) == (0.0, 0.0, 0.0)
    assert found["success_correlation"] == pytest.approx(-1)
    done = reflectrl("audit-rater", wrong)
    assert re.search(r"^all +24 of 24 +0\.0% +0\.0% +0\.0% +-1\.00 ", done.out, re.M)
    assert re.search(r"^last quarter +6 of 6 ", done.out, re.M)
    page = report([wrong], tmp_path / "report.html").read_text()
    assert "<h4>Ratings</h4>" in page
    assert page.count("-1.00") >= 1
    plain = trained_run()
    assert "has no ratings to audit" in refused("audit-rater", plain)
    assert "<h4>Ratings</h4>" not in report([plain], tmp_path / "plain.html").read_text()


def test_a_rater_that_rewards_nothing_is_audited_too(trained_run: TrainedRuns) -> None:
    assert numbers(trained_run(name="vtifa/nano_true_reward", stages=STAGES[:3]))["episodes"] == 24


def test_a_chat_model_knows_the_end_of_an_episode(
    trained_run: TrainedRuns, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    def play(name: str) -> None:
        recipe = rated_by(endpoint, f"vtifa/nano_{name}", "rlft.lessons.0.iterations=2", "eval.episodes=4")
        play_stages(recipe, trained_run.begin(recipe, tmp_path / name))

    endpoint.reply = judge
    for name, accurate, rewards in (("endpoint", 1.0, {1.0, 3.0}), ("max_only", 1.0, {0.0, 1.0})):
        play(name)
        found = numbers(tmp_path / name)
        assert (found["accuracy"], found["unrated"]) == (accurate, 0)
        _, played = read_trajectories(tmp_path / name / "trajectories" / "rlft-00000.jsonl")
        assert {each.turns[-1].rewards["rater"] for each in played} <= rewards
    play("no_actions")
    found = numbers(tmp_path / "no_actions")
    assert (found["precision"], found["recall"]) == (1.0, 1.0)
    [run] = read_runs([tmp_path / "no_actions"])
    assert [(calls.role, calls.model) for calls in run.calls] == [("rater", "local")]


def test_v6_a_server_that_is_down_costs_episodes_and_not_the_run(
    trained_run: TrainedRuns, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    endpoint.reply = judge
    more = (
        "players.rater.endpoint.max_attempts=1",
        "players.rater.max_failure_rate=0.5",
        "rlft.lessons.0.iterations=2",
    )
    recipe = rated_by(endpoint, "vtifa/nano_votes", *more, "players.rater.endpoint.concurrency=1", "eval.episodes=4")
    endpoint.faults.extend(["500"] * 2)
    play_stages(recipe, trained_run.begin(recipe, tmp_path / "run"), "rlft")
    [run] = read_runs([tmp_path / "run"])
    assert [line.levels.count(None) > 0 for line in run.ratings] == [True, False]
    assert len(run.points) == 2


def test_a_small_model_learns_to_rate_and_rates_in_the_others_place(trained_run: TrainedRuns, tmp_path: Path) -> None:
    rated = ("rlft.record_episodes=6", "players.rater.accuracy=1.0")
    run = trained_run(*rated, name="vtifa/nano", stages=STAGES[:3])
    for out in (tmp_path / "rater", tmp_path / "again"):
        done = reflectrl("train-rater", run, "--out", out, "--steps", "4", "--max-length", "256")
        assert done.code == 0, done.err
    assert "trained on 21 rated episodes; agrees with" in done.out
    assert (tmp_path / "rater" / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    model = (f"players.rater.model.name={out}", "players.rater.model.max_length=256", "rlft.lessons.0.iterations=1")
    recipe = small_recipe(*model, "eval.policies=[sft]", name="vtifa/nano_learned")
    play_stages(recipe, trained_run.begin(recipe, tmp_path / "run"))
    assert numbers(tmp_path / "run")["unrated"] == 0
    for other, given in (("labels=[bad,good]", '["bad", "good"]'), ("include_actions=false", "false")):
        unlike = small_recipe(*model, "eval.policies=[sft]", f"players.rater.{other}", name="vtifa/nano_learned")
        name = other.partition("=")[0]
        with pytest.raises(
            InvalidInput, match=rf"players\.rater\.{name} is {re.escape(given)}, but .* was trained with"
        ):
            play_stages(unlike, trained_run.begin(unlike, tmp_path / name))
    (out / "rater.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"rater.json is not JSON.*train the rater again"):
        play_stages(recipe, trained_run.begin(recipe, tmp_path / "damaged"))
    small = refused("train-rater", run, "--out", tmp_path / "other", "--max-length", "32")
    assert "--max-length 32 is too small for the question alone" in small
    assert "is there already" in refused("train-rater", run, "--out", out)
    (tmp_path / "file").touch()
    assert "cannot be made" in refused("train-rater", run, "--out", tmp_path / "file" / "rater")
    assert "no players.rater" in refused("train-rater", trained_run(), "--out", tmp_path / "other")
    assert "learning_rate: given 0.0" in refused("train-rater", run, "--out", tmp_path / "other", "--learning-rate", 0)
    assert "package:nope" in refused("train-rater", run, "--out", tmp_path / "other", "--model", "package:nope")


def test_training_resumes_after_a_rater_that_failed_too_often(
    trained_run: TrainedRuns, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    endpoint.reply = judge
    recipe = rated_by(endpoint, "vtifa/nano_endpoint", "eval.episodes=4")
    run, straight = (trained_run.begin(recipe, tmp_path / name) for name in ("run", "straight"))
    play_stages(recipe, straight, "rlft")
    left = 20  # calls until the model breaks

    def breaking(chat: Chat) -> str:
        nonlocal left
        left -= 1
        return judge(chat) if left > 0 or "Rate how well" not in chat[1]["content"] else "bananas"

    endpoint.reply = breaking
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
    stopped = reflectrl("rlft", "--recipe", tmp_path / "recipe.yaml", "--runs", tmp_path, "--run", "run")
    assert (stopped.code, "fix the rater" in stopped.err) == (1, True)
    endpoint.reply = judge
    (run / "calls" / "rater" / "rejected.jsonl").unlink()
    play_stages(recipe, run, "rlft")
    for file in ("ratings.jsonl", "metrics.jsonl"):
        assert (run / file).read_bytes() == (straight / file).read_bytes()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("players.rater=null",), "rlft.rewards names rater"),
        (("rlft.validation={every: 2}",), "rlft.validation reads the environment's success"),
        (("rlft.replay={size: 9, episodes: 2}",), "rlft.replay reads the environment's success"),
        (("rlft.task_priority=0.5",), "rlft.task_priority reads the environment's success"),
        (("rlft.lessons.0.success_threshold=0.9",), "rlft.lessons.success_threshold reads the environment's success"),
        (("players.rater.labels=[good, Good]",), "at least two, all different"),
        (("players.rater.model.name=builtin/nano",), "model is not trained"),
        (("players.rater.votes=3",), "would all be the same"),
    ],
)
def test_recipes_whose_ratings_would_reward_nothing_are_refused(overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        small_recipe(*overrides, name="vtifa/nano")


def test_a_rater_that_rewards_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="rlft.rewards leaves it out"):
        small_recipe("players.rater={player: rule}")
