"""All frozen players at one table: planner, memory, reflector, corrector and rater, in training and after a kill."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from interruptions import kill_and_resume_rlft
from trained_runs import TrainedRuns, small_recipe

from reflectrl.core.layout import METRICS, POLICY, RATINGS, STAGES, training_episodes_file
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.turn import policy_views

MEMORY = ("players.memory={episodes: 1, steps: 2, max_chars: 120}", "model.max_length=256")
CORRECTOR = (
    "prompt.action_mode=thought_choice",
    "players.policy.max_new_tokens=8",
    "players.corrector.player=expert",
    "rlft.terms.sft_thought.coef=1.0",
)
RATER = ("players.rater={player: rule}", "rlft.rewards={rater: 1.0, env: 0.0}")
ALL = (*MEMORY, "players.planner.player=expert", *CORRECTOR, *RATER, "eval.policies=[rlft]", "eval.greedy=false")
SILENT = ("players.reflector.player=none", "eval.controls=[]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "roles"),
    [
        ((*MEMORY, *CORRECTOR, *SILENT), ["memory", "corrector"]),
        ((*CORRECTOR, *RATER, *SILENT), ["corrector", "rater"]),
    ],
)
def test_two_frozen_players_without_a_reflector_train_a_policy(
    overrides: tuple[str, ...], roles: list[str], trained_run: TrainedRuns
) -> None:
    run = trained_run(*overrides, "eval.policies=[rlft]", "eval.greedy=false")
    _, played = read_trajectories(run / training_episodes_file(3))
    for episode in played:
        assert list(episode.turns[-1].said) == roles
        assert ("rater" in episode.turns[-1].rewards) == ("rater" in roles)
    assert any(turn.said["corrector"].text for episode in played for turn in episode.turns)


@pytest.mark.slow
def test_x3_x4_with_a_player_in_every_seat_the_order_holds_and_a_kill_changes_no_byte(
    trained_run: TrainedRuns, tmp_path: Path
) -> None:
    whole = trained_run(*ALL)
    header, played = read_trajectories(whole / training_episodes_file(3))
    order = ["planner", "memory", "reflector", "corrector", "rater"]
    for episode in played:
        assert list(episode.turns[0].said) == order[: 5 if len(episode.turns) == 1 else 4]
        assert all(list(turn.said) == order[1:4] for turn in episode.turns[1:-1])
        for shown in policy_views(episode, header.prompt):
            assert list(shown.said) == order[:3]  # neither what corrects it nor what rates it
            assert "Memory: Done before: " in shown.prompt.text
    run = shutil.copytree(trained_run(*ALL, stages=STAGES[:2]), tmp_path / "small")
    kill_and_resume_rlft(small_recipe(*ALL), run)
    for file in (METRICS, RATINGS, f"{POLICY}/model.safetensors"):
        assert (run / file).read_bytes() == (whole / file).read_bytes()
