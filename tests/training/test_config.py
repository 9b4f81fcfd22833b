from __future__ import annotations

from dataclasses import replace

import pytest
from tiny import LABELS, LAYOUT, gpt2, tokenizer
from tiny_rlft import config, run

from reflectrl.config.advantage import GAE, ValueHead
from reflectrl.config.training import PPO, EntropyTarget, Lesson, Term, Terms, Validation
from reflectrl.core import InvalidInput
from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.adapters import add_lora
from reflectrl.lm.section import LoraSection
from reflectrl.prompts import PromptFormat
from reflectrl.seats.reflector import ScriptedReflector
from reflectrl.seats.table import Seat
from reflectrl.training.arguments import suited_args
from reflectrl.training.config import ReflectRLConfig
from reflectrl.training.rlft import ReflectRLTrainer


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"advantage": {"kind": "mean"}}, "advantage: unknown kind, given 'mean'; .* leave_one_out"),
        ({"episodes": 0}, "episodes"),
        ({"sharpen": (1.0, 2.0), "validation": None}, "sharpen=.*needs a validation"),
        ({"sharpen": (1.0, 0.0)}, "sharpen.1: given 0"),
        ({"max_steps": 50}, "max_steps: unknown key, given 50"),  # an argument of Trainer
        ({"save_evry": 7}, "save_evry: unknown key, given 7; did you mean 'save_every'"),
        ({"save_total_limit": 0}, "save_total_limit: given 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path, options, fact):
    with pytest.raises(InvalidInput, match=fact):
        config(tmp_path, **options)


@pytest.mark.parametrize(
    ("mode", "options", "fact"),
    [
        ("json", {"terms": Terms(kl=Term(0.1))}, "terms.kl"),
        ("thought_choice", {"rewards": {"env": 1.0, "illegal": -1.0}}, "rewards names illegal"),
        ("enumerated", {"temperature": 0.5}, "temperature=0.5"),
        ("enumerated", {"max_completion_length": 9}, "max_completion_length=9"),
    ],
)
def test_settings_without_effect_with_the_action_mode_of_the_layout_are_refused(tmp_path, mode, options, fact):
    with pytest.raises(InvalidInput, match=fact):
        run(tmp_path, layout=PromptFormat(history=0, labels="letters", action_mode=mode), **options)


def test_unknown_rewards_and_too_long_prompts_are_refused(tmp_path):
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


def test_a_trainer_trains_once(tmp_path):
    done = run(tmp_path).train()
    with pytest.raises(InvalidInput, match="make another trainer"):
        done.train()


@pytest.mark.parametrize(
    ("asked", "fact"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed was asked for"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}, "accelerate shards nothing here"),  # on one CPU
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}, "fsdp_cpu_ram_efficient_loading"),
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, "mixed precision fp16 was asked for"),
    ],
)
def test_sharding_or_precision_that_accelerate_would_not_do_is_refused(tmp_path, monkeypatch, asked, fact):
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=fact):
        run(tmp_path)


def test_a_training_after_another_one_has_its_own_precision(tmp_path):
    kinds = [run(tmp_path / f"{bf16}", bf16=bf16).trainer.accelerator.mixed_precision for bf16 in (False, True, False)]
    assert kinds == ["no", "bf16", "no"]


def test_the_number_of_updates_follows_from_the_stages(tmp_path):
    lessons = [Lesson("one", 3, env={"size": 6}), Lesson("two", 4, env={"size": 6})]
    args = config(tmp_path, lessons=lessons, update=PPO(num_iterations=2, num_minibatches=3), save_every=5)
    assert args.updates_per_iteration == 6
    assert args.total_updates == 42
    assert replace(args, lessons=lessons[:1]).total_updates == 18
    plain = config(tmp_path, lessons=[{"name": "one", "iterations": 3}], validation={"every": 2})
    assert (plain.lessons, plain.validation) == ([Lesson("one", 3)], Validation(every=2))
    kinds = {
        "advantage": {"kind": "gae", "value": {"clip": 0.2}},
        "terms": {"entropy": {"kind": "target", "target": 0.3}},
    }
    plain = config(tmp_path, **kinds)
    assert (plain.advantage, plain.terms) == (GAE(value=ValueHead(clip=0.2)), Terms(entropy=EntropyTarget(0.3)))


def test_writing_policies_play_in_the_precision_they_train_in(tmp_path):
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


class Paid(NumberLine):
    """Returns in the thousands."""

    def act(self, action):
        outcome = super().act(action)
        return replace(outcome, reward=1000 * outcome.reward)


def test_a_trainer_without_arguments_takes_those_that_suit_its_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for env, scaled in ((NumberLine, False), (Paid, True)):
        args = ReflectRLTrainer(
            gpt2(n_positions=1024), processing_class=tokenizer(), env=env, layout=LAYOUT, labels=LABELS
        ).args
        assert (args.gamma, args.normalize_rewards) == (0.95, scaled)
        assert args.update == PPO(kl_of_entropy=0.05)
        assert replace(args, gamma=1.0, normalize_rewards=False, update=PPO()) == ReflectRLConfig()


def test_the_learning_rate_follows_the_divergence_unless_the_policy_thinks():
    updates = {mode: suited_args(NumberLine, replace(LAYOUT, action_mode=mode)).update for mode in ("text", "json")}
    assert updates == {"text": PPO(kl_of_entropy=0.05), "json": PPO()}
