"""All frozen players together: planner, memory, reflector, corrector and rater, in training and after a kill."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from interruptions import kill_and_resume_rlft
from remembered import past
from tiny import LABELS, LAYOUT, gpt2, tokenizer
from tiny_rlft import config
from trained_runs import TrainedRuns, small_recipe

from reflectrl.config.training import Lesson, ThoughtTerm
from reflectrl.core.run_files import METRICS, POLICY, RATINGS, STAGES, training_episodes_file
from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.writer import LMReflector, LocalModel
from reflectrl.prompts.rating import Questions, Scale
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.turn import policy_views
from reflectrl.seats.base import FrozenModel
from reflectrl.seats.corrector import CUE, JUDGED, LocalCorrector
from reflectrl.seats.memory import Memory
from reflectrl.seats.neural import HiddenStates
from reflectrl.seats.planner import Planner, local_text
from reflectrl.seats.rater import Rater
from reflectrl.seats.retriever import Retriever
from reflectrl.seats.table import Seat
from reflectrl.training.rlft import ReflectRLTrainer

MEMORY = ("players.memory={episodes: 1, steps: 2, max_chars: 120}", "model.max_length=256")
CORRECTOR = (
    "prompt.action_mode=thought_choice",
    "players.policy.max_new_tokens=8",
    "players.corrector.player=expert",
    "rlft.terms.sft_thought.coef=1.0",
)
RATER = ("players.rater={player: rule}", "rlft.rewards={rater: 1.0, env: 0.0}")
ALL = (*MEMORY, "players.planner.player=expert", *CORRECTOR, *RATER)


@pytest.mark.slow
def test_a_memory_may_sit_in_the_evaluation_alone_of_an_adapter(trained_run: TrainedRuns) -> None:
    memory = "eval.memory={episodes: 1, steps: 2, max_chars: 120}"
    run = trained_run(memory, "model.lora={r: 4}", "model.max_length=256", "eval.policies=[rlft]", "eval.greedy=false")
    assert (run / POLICY / "adapter_model.safetensors").is_file()
    for file, shown in ((training_episodes_file(3), False), ("trajectories/eval-rlft-local-sampled.jsonl", True)):
        _, played = read_trajectories(run / file)
        assert {"memory" in turn.said for episode in played for turn in episode.turns} == {shown}


@pytest.mark.slow
def test_x3_x4_all_seats_keep_their_order_and_survive_a_kill(trained_run: TrainedRuns, tmp_path: Path) -> None:
    whole = trained_run(*ALL, stages=STAGES[:3])
    header, played = read_trajectories(whole / training_episodes_file(3))
    order = ["planner", "memory", "reflector", "corrector", "rater"]
    for episode in played:
        assert list(episode.turns[0].said) == order[: 5 if len(episode.turns) == 1 else 4]
        assert all(list(turn.said) == order[1:4] for turn in episode.turns[1:-1])
        for shown in policy_views(episode, header.prompt):
            assert list(shown.said) == order[:3]  # without the corrector and the rater
            assert "Memory: Done before: " in shown.prompt.text
    run = shutil.copytree(trained_run(*ALL, stages=STAGES[:2]), tmp_path / "small")
    kill_and_resume_rlft(small_recipe(*ALL), run)
    for file in (METRICS, RATINGS, training_episodes_file(3), f"{POLICY}/model.safetensors"):
        assert (run / file).read_bytes() == (whole / file).read_bytes()


@pytest.mark.slow
def test_training_leaves_frozen_players_alone(tmp_path: Path) -> None:
    length = 512
    planner, compared, reflector, corrector, rater, policy = (
        LanguageModel(gpt2(seed, spread=0.2, n_positions=length), tokenizer()) for seed in range(6)
    )
    memory = Memory(Retriever([past("", ("add one", "Number 2."))], HiddenStates(compared.base, tokenizer(), length)))
    rating = Rater(LocalModel(rater, Scale(), max_length=length), Questions())
    seats = [
        Seat("planner", Planner(local_text(FrozenModel(planner, length), 4))),
        Seat("memory", memory),
        Seat("reflector", LMReflector(reflector.model, tokenizer(), max_length=length, max_new_tokens=4)),
        Seat("corrector", LocalCorrector(LocalModel(corrector, JUDGED, max_length=length, cue=CUE))),
        Seat("rater", rating),
    ]
    models = [each.model for each in (planner, compared, reflector, corrector, rater, policy)]
    before = [{name: weight.clone() for name, weight in model.state_dict().items()} for model in models]
    args = config(
        tmp_path,
        lessons=[Lesson("main", 2, env={"size": 4})],
        episodes=2,
        rewards={"rater": 1.0},
        max_length=length,
        max_completion_length=8,
    )
    args = replace(args, terms=replace(args.terms, sft_thought=ThoughtTerm()))
    layout = replace(LAYOUT, action_mode="thought_choice")
    tables = {"env": NumberLine, "seats": seats, "layout": layout, "labels": LABELS}
    ReflectRLTrainer(policy.model, args, tokenizer(), **tables).train()
    changed = [
        any(not torch.equal(weight, old[name]) for name, weight in model.state_dict().items())
        for model, old in zip(models, before, strict=True)
    ]
    assert changed == [False] * 5 + [True]
