from __future__ import annotations

import logging
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from tiny import LAYOUT, MAX_LENGTH, gpt2, language_model, quantized, tokenizer
from tiny_rlft import Killed, run

from reflectrl.config.rlft import Stage
from reflectrl.config.schema import LoraSection
from reflectrl.core import EpisodeFailed, InvalidInput, WorkFailed
from reflectrl.envs.number_line import NumberLine
from reflectrl.models.adapters import add_lora
from reflectrl.models.reflector import LMReflector
from reflectrl.rollout import episode_metrics
from reflectrl.training.checkpoints import last_checkpoint
from reflectrl.training.rlft import checkpoint_iteration


def lm_reflector(model, kind=LMReflector, **options):
    return kind(model, tokenizer(), max_length=MAX_LENGTH, max_new_tokens=8, **options)


def stage(iterations, **options):
    return Stage("main", iterations, env={"size": 6}, **options)


def same(first, second):
    assert first.keys() == second.keys()
    return all(torch.equal(weight, second[name]) for name, weight in first.items())


# ---- learning --------------------------------------------------------------------------------------------------------


LEARNING = {
    "episodes": 48,
    "learning_rate": 5e-3,
    "learning_rate_end": 0.2,
    "entropy": 0.05,
    "save_every": 100,
}


@pytest.mark.parametrize("baseline", ["none", "batch", "leave_one_out", "value"])
def test_the_policy_learns_to_walk_to_the_target(tmp_path, baseline):
    done = run(
        tmp_path,
        gpt2(spread=0.1),
        stages=[Stage("main", 25, env={"size": 8})],
        episodes_per_task=4 if baseline == "leave_one_out" else 1,
        baseline=baseline,
        **LEARNING,
    ).train()
    successes = [iteration.success for iteration in done.iterations]
    assert fmean(successes[:2]) < 0.75
    assert fmean(successes[-5:]) > 0.9


def test_several_clipped_updates_a_batch_learn_from_fewer_episodes(tmp_path):
    done = run(
        tmp_path,
        gpt2(spread=0.1),
        stages=[Stage("main", 8, env={"size": 8})],
        num_iterations=3,
        num_minibatches=2,
        epsilon=0.2,
        **LEARNING,
    ).train()
    assert done.trainer.state.global_step == 8 * 3 * 2
    assert fmean(iteration.success for iteration in done.iterations[-4:]) > 0.8
    assert max(iteration.clipped for iteration in done.iterations) > 0
    assert max(iteration.kl for iteration in done.iterations) > 0


def test_adapters_learn_and_their_base_does_not(tmp_path):
    model = add_lora(gpt2(spread=0.1), LoraSection(r=4), [])
    start = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    done = run(tmp_path, model).train()
    changed = {name for name, weight in done.weights.items() if not torch.equal(weight, start[name])}
    assert changed
    assert all("lora_" in name for name in changed)


# ---- sampling and scoring agree --------------------------------------------------------------------------------------

TINY_CLIP = 1e-5
"""As the clip range, it makes ``Iteration.clipped`` the fraction of steps whose ratio is not 1."""


POLICIES = {
    "gpt2": lambda _: gpt2(spread=0.1, layers=2),
    "dropout": lambda _: gpt2(spread=0.1, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5),
    "llama": lambda _: language_model("llama"),
    "lora": lambda _: add_lora(gpt2(spread=0.1), LoraSection(r=4, dropout=0.5), []),
    "label tokens": lambda _: add_lora(language_model("llama"), LoraSection(r=4), [40, 41]),
    "4-bit lora": lambda at: add_lora(quantized("llama", at / "base", 4), LoraSection(r=4), []),
    "8-bit lora": lambda at: add_lora(quantized("llama", at / "base", 8), LoraSection(r=4), []),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_before_the_first_update_sampled_and_scored_probabilities_are_equal(tmp_path, policy, caplog):
    caplog.set_level(logging.ERROR, logger="bitsandbytes")  # it says at each call in what it computes
    done = run(
        tmp_path,
        POLICIES[policy](tmp_path),
        layout=replace(LAYOUT, shuffle=True),
        reflector=lm_reflector(gpt2(7, spread=0.1)),
        stages=[stage(2)],
        episodes=12,
        micro_batch_tokens=300,  # other batches than the rollout's
        epsilon=TINY_CLIP,
        learning_rate=1e-30,
    ).train()
    assert [iteration.clipped for iteration in done.iterations] == [0.0, 0.0]
    assert all(iteration.kl < 1e-6 for iteration in done.iterations)
    assert "reads every prompt from its beginning" not in caplog.text  # prefixes were reused on both sides


def test_the_ratio_is_not_one_after_an_update(tmp_path):
    done = run(tmp_path, gpt2(spread=0.1), num_iterations=2, epsilon=TINY_CLIP).train()
    assert done.iterations[0].clipped > 0.4  # of two passes, the second


def test_micro_batches_make_the_same_update_as_one_batch(tmp_path):
    # not Adam, which makes steps of one size out of gradients that are zero but for rounding
    options = {"baseline": "value", "entropy": 0.1, "optim": "sgd", "learning_rate": 0.5, "episodes": 8}
    whole = run(tmp_path / "whole", gpt2(spread=0.1), **options).train()
    parts = run(tmp_path / "parts", gpt2(spread=0.1), **options, micro_batch_tokens=100).train()
    assert len({turn.observation for t in whole.episodes[0] for turn in t.turns}) > 6
    assert not torch.allclose(whole.weights["lm_head.weight"], gpt2(spread=0.1).lm_head.weight, atol=1e-3)
    for name, weight in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], weight, rtol=0, atol=1e-5)
    assert parts.iterations[0].loss == pytest.approx(whole.iterations[0].loss, abs=1e-5)


# ---- the reflector ---------------------------------------------------------------------------------------------------


class CountingReflector(LMReflector):
    cleared = 0

    def clear(self):
        self.cleared += 1
        super().clear()


def test_the_reflector_is_frozen_and_keeps_its_cache(tmp_path):
    model = gpt2(5, spread=0.2)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    player = lm_reflector(model, CountingReflector)
    done = run(tmp_path, reflector=player, stages=[stage(4)]).train()
    assert same(model.state_dict(), before)
    assert not same(done.weights, gpt2().state_dict())
    assert player.cleared == 0
    assert player.hit_rate > 0.2
    said = {turn.reflection for episodes in done.episodes for t in episodes for turn in t.turns}
    assert len(said) > 1


@pytest.mark.parametrize("adapters", [False, True])
def test_a_single_player_reflects_with_its_new_weights(tmp_path, adapters):
    model = gpt2(spread=0.2)
    if adapters:
        model = add_lora(model, LoraSection(r=4), [])
    player = lm_reflector(model, CountingReflector)
    done = run(tmp_path, model, reflector=player, stages=[stage(3)]).train()
    assert player.cleared == 3
    first = done.episodes[2][0].turns[0]
    assert first.reflection is not None
    assert len(done.iterations) == 3


def test_without_a_reflector_the_prompts_have_no_reflection(tmp_path):
    done = run(tmp_path, reflector=None, stages=[stage(1)]).train()
    assert {turn.reflection for t in done.episodes[0] for turn in t.turns} == {None}


# ---- menus -----------------------------------------------------------------------------------------------------------


def test_labels_are_shuffled_at_each_step(tmp_path):
    done = run(tmp_path, layout=replace(LAYOUT, shuffle=True), episodes=16).train()
    menus = {turn.menu for episodes in done.episodes for t in episodes for turn in t.turns if len(turn.menu) == 2}
    assert len(menus) == 2
    assert all(set(turn.menu) == set(turn.observation.actions) for t in done.episodes[0] for turn in t.turns)
    assert all(
        turn.menu[turn.decision.choice.index] == turn.decision.action for t in done.episodes[0] for turn in t.turns
    )


# ---- replay ----------------------------------------------------------------------------------------------------------


def test_good_episodes_are_replayed_at_later_updates(tmp_path):
    options = {"stages": [stage(4)], "episodes": 16, "replay_size": 12, "replay_episodes": 5}
    done = run(tmp_path / "replay", **options).train()
    assert [iteration.replayed for iteration in done.iterations] == [0, 5, 5, 5]
    kept = list(done.trainer.replay)
    assert len(kept) == 12
    assert all(episode.success for episode in kept)
    assert kept == [t for episodes in done.episodes for t in episodes if t.success][-12:]
    without = run(tmp_path / "none", **{**options, "replay_size": 0}).train()
    assert without.iterations[0] == done.iterations[0]
    assert not same(without.weights, done.weights)


def test_a_stage_says_what_is_worth_replaying(tmp_path):
    done = run(
        tmp_path, stages=[stage(2, replay_threshold=0.9)], episodes=16, replay_size=100, replay_episodes=1
    ).train()
    good = [t for episodes in done.episodes for t in episodes if t.episode_return >= 0.9]
    assert list(done.trainer.replay) == good
    assert 0 < len(good) < sum(t.success for episodes in done.episodes for t in episodes)


STAGES = [
    Stage("near", 4, env={"size": 4}),
    Stage("far", 4, env={"size": 6}, replay_threshold=100.0),  # nothing is as good
]


def test_a_stage_replays_no_episode_of_an_earlier_one(tmp_path):
    options = {"stages": STAGES, "episodes": 16, "replay_size": 50, "replay_episodes": 5, "save_every": 2}
    straight = run(tmp_path / "straight", **options).train()
    assert [iteration.replayed for iteration in straight.iterations] == [0, 5, 5, 5, 0, 0, 0, 0]
    killed = run(tmp_path / "killed", **options, dies_after=5)
    with pytest.raises(Killed):
        killed.train()
    checkpoint = last_checkpoint(tmp_path / "killed")
    assert checkpoint_iteration(checkpoint) == 4  # where the second stage begins
    again = run(tmp_path / "killed", **options).train(checkpoint)
    assert again.iterations == straight.iterations[4:]
    assert list(again.trainer.replay) == list(straight.trainer.replay) == []


# ---- the curriculum --------------------------------------------------------------------------------------------------


def test_stages_end_by_their_thresholds_and_training_with_the_last(tmp_path):
    stages = [
        Stage("near", 50, env={"size": 4}, success_threshold=0.0, window=2),
        Stage("far", 3, env={"size": 9}, tasks=("0-", "8-")),
        Stage("all", 50, env={"size": 6}, success_threshold=0.0, window=1),
    ]
    done = run(tmp_path, stages=stages).train()
    assert [iteration.stage for iteration in done.iterations] == ["near", "near", "far", "far", "far", "all"]
    assert done.trainer.curriculum.finished
    assert done.trainer.state.global_step == 6 < done.trainer.args.max_steps
    far = [episode.task.id for episodes in done.episodes[2:5] for episode in episodes]
    assert {task[0] for task in far} <= {"0", "8"}
    assert any("8" in task for task in far)
    assert all(int(t.task.id[0]) < 4 for episodes in done.episodes[:2] for t in episodes)


def test_a_stage_without_tasks_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="asks for tasks that start with"):
        run(tmp_path, stages=[stage(1, tasks=("nowhere",))]).train()


def test_the_environments_of_a_stage_are_closed_when_it_ends(tmp_path):
    told = []

    class Counted(NumberLine):
        def __init__(self, size):
            super().__init__(size)
            told.append(("made", size))

        def close(self):
            told.append(("closed", self.size))

    stages = [Stage("near", 2, env={"size": 4}), Stage("far", 1, env={"size": 9})]
    run(tmp_path, stages=stages, episodes=2, env=Counted).train()
    assert told == [(what, size) for size in (4, 9) for what in ("made", "closed") for _ in range(2)]


class Breaking(NumberLine):
    """Breaks in every episode that does not begin on an even number."""

    def start(self, task):
        if task.options["start"] % 2:
            raise EpisodeFailed("broken")
        super().start(task)


def test_the_policy_learns_from_the_episodes_that_were_not_dropped(tmp_path):
    done = run(tmp_path, env=Breaking, episodes=8).train()
    assert len(done.iterations) == 2
    for iteration, episodes in zip(done.iterations, done.episodes, strict=True):
        assert 0 < len(episodes) < 8
        assert all(episode.task.options["start"] % 2 == 0 for episode in episodes)
        assert iteration.success == episode_metrics(episodes).success


def test_an_iteration_whose_episodes_all_broke_is_an_error(tmp_path):
    with pytest.raises(WorkFailed, match="failed in all 4 episodes of iteration 0, so there is nothing to learn from"):
        run(tmp_path, env=Breaking, stages=[stage(1, tasks=("1-", "3-", "5-"))]).train()


# ---- what an iteration shows -----------------------------------------------------------------------------------------


def test_an_iteration_describes_its_fresh_episodes(tmp_path):
    done = run(tmp_path, episodes=6, stages=[stage(3)]).train()
    steps = 0
    for number, (iteration, episodes) in enumerate(zip(done.iterations, done.episodes, strict=True)):
        metrics = episode_metrics(episodes)
        steps += sum(len(t.turns) for t in episodes)
        assert (iteration.iteration, len(episodes), iteration.env_steps) == (number, 6, steps)
        assert (iteration.success, iteration.episode_return) == (metrics.success, metrics.episode_return)
        assert (iteration.length, iteration.entropy) == (metrics.length, metrics.entropy)
    assert len({t.seed for episodes in done.episodes for t in episodes}) == 18


def test_groups_of_episodes_start_from_the_same_task(tmp_path):
    done = run(tmp_path, episodes=8, episodes_per_task=4, stages=[stage(1)]).train()
    tasks = [t.task.id for t in done.episodes[0]]
    assert tasks[:4] == tasks[:1] * 4
    assert tasks[4:] == tasks[4:5] * 4
    assert len({t.actions for t in done.episodes[0][:4]}) > 1  # but they are not the same episode


def test_trackers_see_the_metrics_of_each_iteration_and_the_falling_learning_rate(tmp_path):
    done = run(tmp_path, stages=[stage(4)], learning_rate=4e-3, learning_rate_end=0.5).train()
    logs = [log for log in done.trainer.state.log_history if "learning_rate" in log]
    assert [log["success"] for log in logs] == [iteration.success for iteration in done.iterations]
    assert [log["learning_rate"] for log in logs] == pytest.approx([4e-3, 3.5e-3, 3e-3, 2.5e-3])


# ---- the same again --------------------------------------------------------------------------------------------------

EVERYTHING = {
    "stages": [
        Stage("near", 5, env={"size": 4}, success_threshold=0.95, window=4),
        Stage("far", 3, env={"size": 8}),
    ],
    "episodes": 8,
    "baseline": "value",
    "num_iterations": 2,
    "num_minibatches": 2,
    "epsilon": 0.2,
    "entropy": 0.1,
    "entropy_end": 0.1,
    "learning_rate_end": 0.2,
    "replay_size": 6,
    "replay_episodes": 2,
    "save_every": 2,
}


def test_the_same_seed_gives_the_same_run(tmp_path):
    one, two = (run(tmp_path / name, **EVERYTHING).train() for name in ("one", "two"))
    assert one.iterations == two.iterations
    assert one.episodes == two.episodes
    assert same(one.weights, two.weights)
    other = run(tmp_path / "other", **EVERYTHING, seed=1).train()
    assert other.episodes != one.episodes


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("dies_after", [2, 6])  # within the first stage, and the second
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, adapters, dies_after):
    def model():
        return add_lora(gpt2(spread=0.1), LoraSection(r=4), []) if adapters else gpt2(spread=0.1)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        straight = run(tmp_path / "straight", model(), **EVERYTHING).train()
        torch.manual_seed(0)
        killed = run(tmp_path / "killed", model(), **EVERYTHING, dies_after=dies_after)
        with pytest.raises(Killed):
            killed.train()
        torch.manual_seed(1)  # what another process starts with must not matter
        again = run(tmp_path / "killed", model(), **EVERYTHING)
        checkpoint = last_checkpoint(tmp_path / "killed")
        done = checkpoint_iteration(checkpoint)
        again.train(checkpoint)
    assert done == dies_after  # iterations 0 to dies_after - 1: the last one is lost
    assert [*killed.iterations[:done], *again.iterations] == straight.iterations
    assert again.episodes == straight.episodes[done:]
    assert list(again.trainer.replay) == list(straight.trainer.replay)
    assert again.trainer.curriculum.index == straight.trainer.curriculum.index
    assert same(again.weights, straight.weights)
    assert any("value_head" in name for name in straight.weights)


def test_going_on_from_the_end_changes_nothing(tmp_path):
    for name, stages in {
        "last step": [stage(2)],
        "threshold": [stage(9, success_threshold=0.0, window=2)],
    }.items():
        finished = run(tmp_path / name, stages=stages, save_every=2).train()
        checkpoint = last_checkpoint(tmp_path / name)
        assert checkpoint_iteration(checkpoint) == 2
        again = run(tmp_path / name, stages=stages, save_every=2).train(checkpoint)
        assert again.iterations == []
        assert same(again.weights, finished.weights)
