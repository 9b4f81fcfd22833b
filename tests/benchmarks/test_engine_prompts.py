"""Prompts for the engine's benchmarks: real, the same each time, and of the lengths that are asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from engine_prompts import (
    GPT2_VOCABULARY,
    NANO,
    PAPER,
    Step,
    ends,
    gpt2_small,
    lengths,
    made_up_actions,
    nano,
    new_tokens,
    set_up,
    with_menu,
    without_menu,
)

from reflectrl.core import InvalidInput

TINY = {"n_layer": 1, "n_embd": 8, "n_head": 1}


@pytest.fixture(scope="module", params=[*PAPER, *NANO])
def scene(request):
    few = ["env.options.count=8"] if request.param.startswith("alfworld") else []
    with set_up(request.param, few) as scene:
        yield scene


@pytest.fixture(scope="module")
def taxi():
    with set_up("dangerous_taxi/paper", menu=100) as scene:
        yield scene, scene.steps(scene.play(4))


@pytest.fixture(scope="module")
def reader(taxi):
    return gpt2_small(*taxi, **TINY)


def all_steps(episodes) -> list[Step]:
    return [step for episode in episodes for step in episode]


def test_prompts_of_every_environment_are_the_same_each_time(scene):
    episodes = scene.steps(scene.play(2, seed=5))
    assert scene.steps(scene.play(2, seed=5)) == episodes
    steps = all_steps(episodes)
    assert all(step.policy.text.startswith(step.reflector.text) for step in steps), "the same state, then a reflection"
    assert all(0 <= step.sample.index < len(step.policy.menu.actions) for step in steps)
    assert {step.sample.old_logprob for step in steps} == {0.0}


def test_nano_reads_its_recipe_s_prompts_and_every_label(scene):
    episodes = scene.steps(scene.play(2))
    made = nano(scene, episodes)
    assert len(set(made.label_ids)) == len(scene.labels)
    rows = [made.encoder.tokens(step.reflector) for step in all_steps(episodes)]
    with torch.no_grad():
        assert made.model(torch.tensor([rows[0]])).logits.shape == (1, len(rows[0]), len(made.tokenizer))


def test_other_seeds_play_other_episodes(taxi):
    scene, episodes = taxi
    assert scene.steps(scene.play(4)) == episodes
    assert scene.steps(scene.play(4, seed=1)) != episodes


def test_a_perfect_expert_never_errs_and_a_noisy_one_does(taxi):
    scene, _ = taxi
    assert all(trajectory.success for trajectory in scene.play(6, expertise=1.0))
    assert not all(trajectory.success for trajectory in scene.play(6, expertise=0.2))


def test_episodes_are_as_long_as_they_are_wanted(taxi):
    scene, _ = taxi
    assert [len(trajectory.turns) for trajectory in scene.play(3, steps=4, expertise=0.9)] == [4, 4, 4]
    with pytest.raises(InvalidInput, match="lasted 16 steps; expected 1"):
        scene.play(1, steps=16)


def test_a_horizon_of_one_s_own():
    with set_up("dangerous_taxi/paper", ["env.options.horizon=2"]) as scene:
        assert max(len(trajectory.turns) for trajectory in scene.play(4, expertise=1.0)) == 2


def test_whatever_a_random_model_says_can_be_read_again(reader):
    assert len(reader.tokenizer) == GPT2_VOCABULARY == reader.model.config.vocab_size
    said = [1000, GPT2_VOCABULARY - 1, 40_000, 1001]
    assert reader.tokenizer(reader.tokenizer.decode(said))["input_ids"] == said


def test_random_weights_come_from_the_seed(taxi, reader):
    same, other = (gpt2_small(*taxi, seed=seed, **TINY).model.lm_head.weight for seed in (0, 1))
    assert torch.equal(reader.model.lm_head.weight, same)
    assert not torch.equal(same, other)


def test_so_many_tokens_end_a_reply():
    assert len(ends(1000, eos=1)) in (30, 31)
    assert 1 in ends(1000, eos=1)
    assert max(ends(1000, eos=1)) < 1000


def test_a_menu_can_be_left_out_or_replaced(taxi, reader):
    scene, episodes = taxi
    prompt = episodes[0][0].policy
    assert without_menu(prompt).text == prompt.text.replace(prompt.menu.text, "")
    assert with_menu(prompt, scene.layout, prompt.menu.actions) == prompt
    actions = made_up_actions(episodes, 100)
    assert len(set(actions)) == 100
    assert actions[: len(prompt.menu.actions)] == list(prompt.menu.actions)
    wide = with_menu(prompt, scene.layout, actions)
    assert wide.text.endswith(f"\n99. {actions[99]}\nAction:\n")
    assert len(reader.encoder.batch([wide], torch.device("cpu")).choice_ids) == 100


def test_a_beginning_that_is_shared_counts_once():
    rows = [(1, 2, 3), (1, 2, 4, 5), (7,), (1, 2), (1, 2, 3)]
    assert new_tokens(rows) == 6  # 1 2 3, 4 5, 7
    assert new_tokens([]) == 0


def test_the_table_counts_what_a_tree_would(taxi, reader):
    scene, episodes = taxi
    cells = lengths(scene, reader, episodes)
    rows = [reader.encoder.tokens(step.policy) for step in all_steps(episodes)]
    prefixes = {tuple(row[: at + 1]) for row in rows for at in range(len(row))}
    assert cells[-1] == f"{100 * len(prefixes) / sum(map(len, rows)):.0f}"
    assert cells[3] == f"{sum(map(len, rows)) / len(rows):.0f}"
    assert all(int(once) >= int(ever) for once, ever in pairwise(cells[-2:]))
