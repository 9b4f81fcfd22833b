from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tiny import gpt2
from tiny_rlft import config, run

from reflectrl.config.advantage import GAE, ValueHead
from reflectrl.config.rlft import PPO, EntropyBonus, EntropyTarget, Stage, Term, Terms, Validation
from reflectrl.core import InvalidInput
from reflectrl.models.adapters import add_lora
from reflectrl.models.section import LoraSection
from reflectrl.prompts import PromptFormat
from reflectrl.seats.reflector import ScriptedReflector
from reflectrl.seats.table import Seat


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"advantage": {"kind": "mean"}}, "advantage: unknown kind, given 'mean'; .* leave_one_out"),
        ({"advantage": {"gae_lambda": 0.9}}, "advantage: .* a kind: gae, none,"),
        (
            {"advantage": {"kind": "batch", "gae_lambda": 0.9}},
            "advantage.gae_lambda: .*: center, kind, normalize",
        ),
        ({"update": {"kind": "reinforce", "num_iterations": 2}}, "update.num_iterations: unknown key"),  # needs a clip
        ({"terms": {"entropy": {"kind": "target"}}}, "terms.entropy.target: nothing was given"),
        ({"episodes": 6, "episodes_per_task": 4}, "episodes"),  # an incomplete group
        ({"episodes": 0}, "episodes"),
        ({"replay": {"size": 8}}, "replay.episodes: nothing was given"),
        ({"max_steps": 50}, "max_steps=50 .* stages="),  # arguments of Trainer that RLFT does not read
        ({"num_train_epochs": 1}, "num_train_epochs=1"),
        ({"per_device_train_batch_size": 2}, "per_device_train_batch_size=2"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps=2"),
        ({"save_steps": 7}, "save_steps=7 .* save_every"),
        ({"save_strategy": "epoch"}, "save_strategy=epoch"),
        ({"logging_steps": 3}, "logging_steps=3"),
        ({"lr_scheduler_type": "cosine"}, "lr_scheduler_type=cosine .* learning_rate_schedule"),
        ({"warmup_steps": 10}, "warmup_steps=10"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing=True"),
        ({"fp16": True}, "fp16=True"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor=0.1"),
        ({"eval_strategy": "steps"}, "eval_strategy=steps .* set validation"),
        ({"fsdp": True}, "FSDP"),
        ({"deepspeed": {"zero_optimization": {"stage": 3}}}, "DeepSpeed"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path, options, fact):
    with pytest.raises(InvalidInput, match=fact):
        config(tmp_path, **options)


@pytest.mark.parametrize(
    ("mode", "options", "fact"),
    [
        ("json", {"terms": Terms(kl=Term(0.1))}, "terms.kl"),
        ("enumerated", {"thought_lambda": 0.2}, "thought_lambda=0.2"),
        ("enumerated", {"rewards": {"env": 1.0, "format": 1.0}}, "rewards names format"),
        ("thought_choice", {"rewards": {"env": 1.0, "illegal": -1.0}}, "rewards names illegal"),
        ("enumerated", {"temperature": 0.5}, "temperature=0.5"),
        ("enumerated", {"max_completion_length": 9}, "max_completion_length=9"),
    ],
)
def test_settings_without_effect_with_the_action_mode_of_the_layout_are_refused(tmp_path, mode, options, fact):
    with pytest.raises(InvalidInput, match=fact):
        run(tmp_path, layout=PromptFormat(history=0, labels="letters", action_mode=mode), **options)


def test_a_reward_that_nobody_gives_is_refused_and_so_is_a_prompt_that_the_model_cannot_read(tmp_path):
    with pytest.raises(InvalidInput, match="rewards names enviroment, .* known: env, format, illegal"):
        run(tmp_path, rewards={"enviroment": 1.0})
    with pytest.raises(InvalidInput, match="the model reads 128 tokens, but max_length=129"):
        run(tmp_path, max_length=129)


def test_players_that_would_have_no_effect_are_refused(tmp_path):
    silent = ScriptedReflector(lambda _: "")
    with pytest.raises(InvalidInput, match="a rater was seated, but rewards=.* leaves it out"):
        run(tmp_path, seats=[Seat("rater", silent)])
    with pytest.raises(InvalidInput, match="no term imitates its thoughts"):
        run(tmp_path, seats=[Seat("corrector", silent)])
    with pytest.raises(InvalidInput, match="2 players were seated as 'reflector'"):
        run(tmp_path, seats=[Seat("reflector", silent)])


def test_arguments_are_plain_values_for_trackers(tmp_path):
    plain = json.loads(config(tmp_path, terms=Terms(entropy=EntropyBonus(0.1))).to_json_string())
    assert plain["stages"][0]["iterations"] == 2
    assert plain["terms"]["entropy"]["coef"] == 0.1
    assert plain["advantage"]["kind"] == "batch"
    assert plain["learning_rate"] == 3e-3


def test_a_trainer_trains_once(tmp_path):
    done = run(tmp_path).train()
    with pytest.raises(InvalidInput, match="make another trainer"):
        done.train()


@pytest.mark.parametrize("name", ["FSDP", "DEEPSPEED"])
def test_sharding_asked_of_accelerate_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    with pytest.raises(InvalidInput, match=f"(?i){name}"):
        config(tmp_path)


def test_steps_of_the_trainer_follow_from_the_stages(tmp_path):
    stages = [Stage("one", 3, env={"size": 6}), Stage("two", 4, env={"size": 6})]
    args = config(tmp_path, stages=stages, update=PPO(num_iterations=2, num_minibatches=3), save_every=5)
    assert args.updates_per_iteration == 6
    assert (args.max_steps, args.save_steps, args.logging_steps) == (42, 30, 6)
    assert replace(args, gamma=0.5).max_steps == 42
    again = replace(args, stages=stages[:1], save_every=1)
    assert (again.max_steps, again.save_steps) == (18, 6)
    plain = config(tmp_path, stages=[{"name": "one", "iterations": 3}], validation={"every": 2})
    assert (plain.stages, plain.validation) == ([Stage("one", 3)], Validation(every=2))
    kinds = {
        "advantage": {"kind": "gae", "value": {"clip": 0.2}},
        "terms": {"entropy": {"kind": "target", "target": 0.3}},
    }
    plain = config(tmp_path, **kinds)
    assert (plain.advantage, plain.terms) == (GAE(value=ValueHead(clip=0.2)), Terms(entropy=EntropyTarget(0.3)))
    assert not args.gradient_checkpointing
    assert not args.activation_checkpointing
    assert not args.bf16


def test_a_policy_that_writes_beside_adapters_is_refused_in_another_precision_than_it_trains_in(tmp_path):
    thinking = PromptFormat(history=1, labels="letters", action_mode="thought_choice")
    with pytest.raises(InvalidInput, match="bf16=True"):
        run(
            tmp_path,
            add_lora(gpt2(), LoraSection(r=4), []),
            reflector=None,
            layout=thinking,
            max_completion_length=8,
            bf16=True,
        )
