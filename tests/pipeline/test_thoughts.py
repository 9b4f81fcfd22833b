"""Policies that write before they act, from the recipe to the evaluation and a loaded agent."""

from __future__ import annotations

import pytest
from command_line import reflectrl
from trained_runs import play_stages, small_recipe

import reflectrl as rl
from reflectrl.core.jsonl import read_jsonl
from reflectrl.core.run_files import METRICS, training_episodes_file
from reflectrl.rollout.record import read_trajectories

SILENT = "players.reflector.player=none"
COMBINED = {
    "a thought, then a label": ("prompt.action_mode=thought_choice", SILENT),
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
BRIEF = ("eval.policies=[rlft]", "eval.controls=[]", "eval.greedy=false", "eval.episodes=4")


@pytest.mark.slow
@pytest.mark.parametrize("how", COMBINED)
def test_what_a_policy_writes_is_trained_and_recorded(how, trained_run):
    mode, *others = COMBINED[how]
    run = trained_run(mode, "players.policy.max_new_tokens=8", *VALUE, *BRIEF, *others)
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


@pytest.mark.slow
@pytest.mark.parametrize("change", ["players.policy.max_new_tokens=9", "players.policy.temperature=0.5"])
def test_a_run_does_not_go_on_with_other_text_settings(change, trained_run):
    mode, *others = COMBINED["a thought, then a label"]
    settings = (mode, "players.policy.max_new_tokens=8", *VALUE, *BRIEF, *others)  # those of the run above
    with pytest.raises(rl.InvalidInput, match=change.partition("=")[0]):
        play_stages(small_recipe(*settings, change), trained_run(*settings))


def test_a_policy_that_writes_nothing_has_no_thoughts_to_measure(trained_run):
    assert {line["thought_tokens"] for _, line in read_jsonl(trained_run() / METRICS)} == {None}
