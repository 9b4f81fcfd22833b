"""Policies that write before they act, from the recipe to the evaluation and a loaded agent."""

from __future__ import annotations

import shutil
from statistics import fmean
from types import SimpleNamespace

import pytest
from command_line import reflectrl
from interruptions import kill_and_resume_rlft
from trained_runs import SHORT, play_stages, small_recipe

import reflectrl as rl
from reflectrl.config import load_recipe
from reflectrl.core.jsonl import read_jsonl
from reflectrl.core.layout import METRICS, POLICY, training_episodes_file
from reflectrl.pipeline import STAGES
from reflectrl.rollout.record import read_trajectories

SILENT = "players.reflector.player=none"
COMBINED = {
    "a thought, then a label": ("prompt.action_mode=thought_choice", SILENT),
    "a thought beside a reflector": ("prompt.action_mode=thought_choice",),
    "a corrected thought beside a reflector": (
        "prompt.action_mode=thought_choice",
        "players.corrector.player=expert",
        "rlft.terms.sft_thought.coef=1.0",
    ),
    "JSON, with replay": (
        "prompt.action_mode=json",
        "sft.policy.label_smoothing=0",
        SILENT,
        "rlft.replay={size: 8, episodes: 2}",
    ),
}
VALUE = ("rlft.advantage={kind: gae}", "rlft.update={kind: ppo, num_iterations: 2, num_minibatches: 1}")


@pytest.mark.parametrize("how", COMBINED)
def test_what_a_policy_writes_is_trained_recorded_measured_and_written_by_the_agent(how, trained_run):
    mode, *others = COMBINED[how]
    run = trained_run(mode, "players.policy.max_new_tokens=8", *VALUE, *others)
    lines = [line for _, line in read_jsonl(run / METRICS)]
    assert max(line["logprob_gap"] for line in lines) < 1e-4  # ratios are 1 before the first update
    assert all(0 < line["thought_tokens"] <= 8 and 0 < line["thought_distinct"] <= 1 for line in lines)
    header, played = read_trajectories(run / training_episodes_file(0))
    assert header.prompt.action_mode == mode.partition("=")[2]
    for turn in (turn for episode in played for turn in episode.turns):
        written = turn.decision.choice.written
        assert len(written.logprobs) == len(written.ids) <= 8
        assert turn.decision.action in turn.observation.actions
        assert ("reflector" in turn.said) == (SILENT not in others)
    env = rl.make_env("number_line", size=8)
    env.reset(seed=0)
    move = rl.load_agent(run).act(env.observation)
    assert move.decision.choice.written is not None
    assert move.decision.action in env.observation.actions
    shown = reflectrl("play", "--run", run, "--split", "test")
    assert shown.code == 0, shown.err
    assert shown.out.count("  Thought: ") == shown.out.count("  Action: ") > 0


@pytest.mark.parametrize("change", ["players.policy.max_new_tokens=9", "players.policy.temperature=0.5"])
def test_a_run_does_not_go_on_with_other_settings_of_what_is_written(change, trained_run):
    settings = (*COMBINED["a thought, then a label"], "players.policy.max_new_tokens=8", *VALUE)
    with pytest.raises(rl.InvalidInput, match=change.partition("=")[0]):
        play_stages(small_recipe(*settings, change), trained_run(*settings))


def test_a_policy_that_writes_nothing_has_no_thoughts_to_measure(trained_run):
    assert {line["thought_tokens"] for _, line in read_jsonl(trained_run() / METRICS)} == {None}


@pytest.mark.slow
def test_thoughts_are_learned_from_misread_states_and_rl_makes_them_better(tmp_path):
    short = ["rlft.stages.0.iterations=9", "eval.episodes=200", "eval.policies=[sft,rlft]", "eval.greedy=false"]
    recipe = load_recipe("gym_cards/nano_number_line_thought_choice", short)
    play_stages(recipe, tmp_path / "run")
    before, after = (row["metrics"]["success"] for _, row in read_jsonl(tmp_path / "run" / "eval.jsonl"))
    assert before < 0.6
    assert after > 0.8


def test_l9_a_policy_without_thoughts_goes_through_all_stages(tmp_path):
    play_stages(load_recipe("gym_cards/nano_number_line_nothought", SHORT), tmp_path / "run")
    assert "rlft" in {row["policy"] for _, row in read_jsonl(tmp_path / "run" / "eval.jsonl")}


@pytest.mark.slow
def test_l9_g10_rl_corrects_misread_thoughts_a_corrector_more_of_them_and_without_a_weight_texts_fall_apart(tmp_path):
    """Compare three trainings from one SFT; ``benchmarks/siblings.py thoughts_number_line`` has five seeds."""
    short = ["seed=21", "rlft.stages.0.iterations=6"]
    term_alone = "rlft.rewards.format=0.0"  # the recipe of GTR rewards the format too
    whole, arms = load_recipe("gym_cards/nano_number_line_rl4vlm", short), {}
    play_stages(whole, tmp_path / "whole", *STAGES[:2])
    arms["thought and action"] = whole
    arms["the action alone"] = load_recipe(whole, ["rlft.thought_lambda=0.0"])
    arms["with a corrector"] = load_recipe("gym_cards/nano_number_line_gtr", [*short, term_alone])
    begins, ends = {}, {}
    for name, recipe in arms.items():
        run = shutil.copytree(tmp_path / "whole", tmp_path / name)
        play_stages(recipe, run, "rlft")
        lines = [line for _, line in read_jsonl(run / METRICS)]
        assert 0.3 < lines[0]["success"] < 0.6
        begins[name] = lines[0]["illegal"]
        assert max(line["logprob_gap"] for line in lines) < 1e-4  # thought and action are scored as they were sampled
        ends[name] = SimpleNamespace(
            **{key: fmean(line[key] for line in lines[-3:]) for key in ("success", "illegal", "thought_misread")}
        )
    both, alone, corrected = ends.values()
    assert both.success > 0.7
    assert alone.success < both.success - 0.2  # a bound of its own would depend on the rounding
    assert alone.illegal > max(0.3, 2 * both.illegal, begins["the action alone"])
    assert corrected.thought_misread < both.thought_misread
    assert corrected.success > both.success - 0.05


CORRECTED = (
    "prompt.action_mode=thought_choice",
    SILENT,
    "players.policy.max_new_tokens=8",
    "players.corrector.player=expert",
    "rlft.terms.sft_thought.coef=1.0",
    "rlft.rewards={env: 1.0, format: 1.0}",
)


@pytest.mark.slow
def test_a_run_with_a_corrector_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(trained_run, tmp_path):
    whole = trained_run(*CORRECTED)
    _, played = read_trajectories(whole / training_episodes_file(0))
    assert any(turn.said["corrector"].text for episode in played for turn in episode.turns)
    assert {turn.rewards["format"] for episode in played for turn in episode.turns} == {1.0}
    run = shutil.copytree(trained_run(*CORRECTED, stages=STAGES[:2]), tmp_path / "small")
    kill_and_resume_rlft(small_recipe(*CORRECTED), run)
    assert (run / METRICS).read_bytes() == (whole / METRICS).read_bytes()
    assert (run / POLICY / "model.safetensors").read_bytes() == (whole / POLICY / "model.safetensors").read_bytes()
