"""``ReflectRLTrainer``: one training run with all features, shared by most tests, and tests that need other runs."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from tiny import LABELS, LAYOUT, MAX_LENGTH, gpt2, language_model, prefix_cache, quantized, tokenizer
from tiny_rlft import Killed, config, ppo, run, value_head

from reflectrl.config.advantage import NoBaseline, StepGroup
from reflectrl.config.training import EntropyBonus, EntropyTarget, Lesson, Replay, Term, Terms, ThoughtTerm
from reflectrl.core import EpisodeFailed, Utterance, WorkFailed
from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.adapters import add_lora
from reflectrl.lm.head import try_head
from reflectrl.lm.section import LoraSection
from reflectrl.lm.writer import LMReflector
from reflectrl.rollout import episode_metrics
from reflectrl.rollout.iteration import outcome_means
from reflectrl.rollout.turn import policy_views
from reflectrl.seats.corrector import ExpertCorrector
from reflectrl.seats.table import Seat
from reflectrl.training.batch import scored
from reflectrl.training.checkpoints import checkpoint_iteration, last_checkpoint
from reflectrl.training.collector import without_novelty
from reflectrl.training.curriculum import Curriculum
from reflectrl.training.learner import Pace, adamw, parameter_groups, schedule
from reflectrl.training.rlft import ReflectRLTrainer

pytestmark = pytest.mark.numerical

EVERYTHING = {
    "lessons": [
        Lesson("near", 9, env={"size": 4}, success_threshold=0.0, window=3),
        Lesson("far", 3, env={"size": 8}, tasks=("0-", "7-")),
    ],
    "layout": replace(LAYOUT, shuffle=True),
    "episodes": 8,
    "advantage": value_head(center=True, clip=0.2, learning_rate=8e-3),
    "update": ppo(num_iterations=2, num_minibatches=2, kl_of_entropy=0.0005),
    "terms": Terms(entropy=EntropyTarget(0.8, target_end=0.1, coef=0.1), kl=Term(0.01)),
    "rewards": {"env": 1.0, "novelty": 0.3},
    "normalize_rewards": True,
    "task_priority": 0.5,
    "ema": 0.5,
    "learning_rate": 4e-3,
    "learning_rate_end": 0.2,
    "replay": Replay(size=6, episodes=2),
    "save_every": 2,
}


def adapted():
    torch.manual_seed(0)
    return add_lora(gpt2(spread=0.1, layers=2), LoraSection(r=4, layers="1-1"), [])


def same(first, second):
    assert first.keys() == second.keys()
    return all(torch.equal(weight, second[name]) for name, weight in first.items())


def lesson(iterations, **options):
    return Lesson("main", iterations, env={"size": 6}, **options)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted training run."""
    with torch.random.fork_rng():
        return run(tmp_path_factory.mktemp("straight"), adapted(), **EVERYTHING).train()


# ---- the training run with all features ------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_iteration_describes_its_fresh_episodes(straight):
    steps, curriculum, weighted = 0, Curriculum(EVERYTHING["lessons"]), False
    for number, (iteration, episodes) in enumerate(zip(straight.iterations, straight.episodes, strict=True)):
        steps += sum(len(t.turns) for t in episodes)
        assert (iteration.iteration, len(episodes), iteration.env_steps) == (number, 8, steps)
        curriculum.weigh(episodes, NumberLine(**curriculum.lesson.env), EVERYTHING["task_priority"])
        curriculum.note(episodes)
        plain, means = episode_metrics(episodes).means, outcome_means(episodes, curriculum.weights)
        assert {name: getattr(iteration, name) for name in plain} == {**plain, **means}
        weighted |= plain["success"] != means["success"]
        if curriculum.add(means["success"]):
            curriculum.end_lesson()
    assert weighted
    assert curriculum.finished
    assert len({t.seed for episodes in straight.episodes for t in episodes}) == 6 * 8


@pytest.mark.slow
def test_stages_end_by_threshold_or_length_and_training_with_the_last(straight):
    assert [iteration.lesson for iteration in straight.iterations] == ["near"] * 3 + ["far"] * 3
    assert straight.trainer.curriculum.finished
    assert straight.trainer.learner.steps == 6 * 4 < straight.trainer.args.total_updates
    assert all(int(t.task.id[0]) < 4 for episodes in straight.episodes[:3] for t in episodes)
    assert {t.task.id[0] for episodes in straight.episodes[3:] for t in episodes} == {"0", "7"}


def test_good_episodes_are_replayed_at_later_updates_of_their_lesson(straight):
    assert [iteration.replayed for iteration in straight.iterations] == [0, 2, 2, 0, 2, 2]
    good = [without_novelty(t) for episodes in straight.episodes[3:] for t in episodes if t.success]
    assert list(straight.trainer.replay) == good[-6:]


def test_a_success_of_which_the_policy_was_sure_once_is_learned_again(tmp_path):
    """With its recorded logprob and value only, there would be neither a ratio nor an advantage."""
    options = {"lessons": [lesson(1)], "advantage": value_head(gae_lambda=0.95), "update": ppo(num_iterations=2)}
    played = run(tmp_path / "played", gpt2(spread=0.1), episodes=16, **options).train().episodes[0]
    won = next(episode for episode in played if episode.success)
    sure = [replace(turn, decision=replace(turn.decision, logprob=0.0, value=won.episode_return)) for turn in won.turns]

    def logprob(name, replay):
        again = run(tmp_path / name, gpt2(spread=0.1), replay=Replay(size=1, episodes=1), **options)
        again.trainer.replay.extend(replay)
        policy, decisions = again.train().trainer.policy, [turn.decision for turn in won.turns]
        [part] = policy.divide(policy_views(won, LAYOUT), decisions, max_tokens=10_000)
        return policy.score(part).logprobs.sum().item()

    assert logprob("with", [replace(won, turns=tuple(sure))]) > logprob("without", []) + 0.05


def test_metrics_show_the_learning_rate_of_schedule_and_divergence_and_each_gradient(straight):
    done = [(4 * number + 3) / straight.trainer.args.total_updates for number in range(6)]
    falling = [4e-3 * (1 - 0.8 * part) for part in done]
    factors = [each.learning_rate / rate for each, rate in zip(straight.iterations, falling, strict=True)]
    changes = {round(later / before, 6) for before, later in pairwise(factors)}
    assert factors[0] == pytest.approx(0.1)
    assert len(changes) > 1
    assert all(change == 0.5 or 1.0 <= change <= 2.0 for change in changes)
    assert len({each.grad_norm for each in straight.iterations if each.grad_norm > 0}) == 6


def test_the_learning_rate_may_fall_along_half_a_cosine(tmp_path):
    """The schedule of RL4VLM."""
    options = {"learning_rate": 1e-2, "learning_rate_end": 0.2, "learning_rate_schedule": "cosine"}
    done = run(tmp_path, lessons=[lesson(4)], **options).train()
    expected = [1e-2 * (0.6 + 0.4 * math.cos(math.pi * update / 4)) for update in range(4)]
    assert [each.learning_rate for each in done.iterations] == pytest.approx(expected)


def test_the_coefficient_of_entropy_follows_its_target_from_iteration_to_iteration(straight):
    term, expected = straight.trainer.args.terms.entropy, [0.1]
    for iteration, episodes in zip(straight.iterations, straight.episodes, strict=True):
        uniform = fmean(math.log(len(turn.menu)) for each in episodes for turn in each.turns)
        progress = len(expected) / 12  # of the iterations of both lessons, had none ended early
        expected.append(term.after(expected[-1], iteration.entropy, uniform=uniform, progress=progress))
    assert [iteration.entropy_coef for iteration in straight.iterations] == expected[:-1]
    assert len(set(expected)) == len(expected)


def test_adapters_and_the_value_head_learn_and_their_base_does_not(straight):
    before = adapted().state_dict()
    weights = {name: weight for name, weight in straight.weights.items() if "value_head" not in name}
    changed = {name for name, weight in weights.items() if not torch.equal(weight, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert any(weight.any() for name, weight in straight.weights.items() if "value_head" in name)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_weights(straight, tmp_path):
    with torch.random.fork_rng():
        killed = run(tmp_path, adapted(), **EVERYTHING, dies_after=3)
        with pytest.raises(Killed):
            killed.train()
        again = run(tmp_path, adapted(), **EVERYTHING)
        torch.manual_seed(1)  # the random state of another process must not matter
        checkpoint = last_checkpoint(tmp_path)
        assert checkpoint_iteration(checkpoint) == 2  # the last of "near", and the first of "far", are lost
        again.train(checkpoint)
    assert [*killed.iterations[:2], *again.iterations] == straight.iterations
    assert again.episodes == straight.episodes[2:]
    assert list(again.trainer.replay) == list(straight.trainer.replay)
    assert same(again.weights, straight.weights)
    finished = run(tmp_path, adapted(), **EVERYTHING).train(last_checkpoint(tmp_path))
    assert finished.iterations == []
    assert same(finished.weights, straight.weights)
    other = run(tmp_path / "other", adapted(), **{**EVERYTHING, "lessons": [lesson(1)], "seed": 1}).train()
    assert not {t.seed for t in other.episodes[0]} & {t.seed for t in straight.episodes[0]}


# ---- learning --------------------------------------------------------------------------------------------------------

LEARNING = {
    "gigpo": {"lessons": [Lesson("main", 25, env={"size": 8})], "advantage": StepGroup(), "episodes_per_task": 4},
    "ppo after a corrected thought": {
        "lessons": [Lesson("main", 11, env={"size": 8})],
        "advantage": value_head(),
        "update": ppo(num_iterations=3, num_minibatches=2),
        "terms": Terms(entropy=EntropyBonus(0.05, 1.0), sft_thought=ThoughtTerm()),
        "layout": replace(LAYOUT, action_mode="thought_choice"),
        "max_completion_length": 6,
        "seats": [Seat("corrector", ExpertCorrector())],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", LEARNING)
def test_the_policy_learns_to_walk_to_the_target(tmp_path, algorithm):
    options = {"episodes": 48, "learning_rate": 5e-3, "learning_rate_end": 0.2, "save_every": 100}
    options["terms"] = Terms(entropy=EntropyBonus(0.05, 1.0))
    done = run(tmp_path, gpt2(spread=0.1), **{**options, **LEARNING[algorithm]}).train()
    successes = [iteration.success for iteration in done.iterations]
    assert fmean(successes[:2]) < 0.75
    assert fmean(successes[-4:]) > 0.85
    assert (max(iteration.clipped for iteration in done.iterations) > 0) == (algorithm != "gigpo")
    if algorithm != "gigpo":
        corrected = [iteration.thought_corrected for iteration in done.iterations]
        assert fmean(corrected[-4:]) < 0.9 < corrected[0]  # some thoughts are the expert's, to the letter
    else:
        tasks = [t.task.id for t in done.episodes[0]]
        assert all(tasks[n : n + 4] == [tasks[n]] * 4 for n in range(0, 48, 4))
        assert len({t.actions for t in done.episodes[0][:4]}) > 1  # they are not the same episode


# ---- sampling and scoring agree --------------------------------------------------------------------------------------

TINY_CLIP = 1e-4
"""Clip range with which ``Iteration.clipped`` is the fraction of steps whose ratio is not 1."""
ROUNDED_CLIP = 0.1
"""Clip range for 8-bit products, where a last bit can round an input to another of 255 values; ratios move by 3 %."""
POLICIES = {
    "dropout": lambda _: gpt2(spread=0.1, layers=2, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5),
    "label tokens": lambda _: add_lora(language_model("llama"), LoraSection(r=4, dropout=0.5), [40, 41]),
    "8-bit lora": lambda at: add_lora(quantized("llama", at / "base", 8), LoraSection(r=4), []),
}


def lm_reflector(model, kind=LMReflector):
    return kind(model, tokenizer(), max_length=MAX_LENGTH, max_new_tokens=8)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_before_the_first_update_sampled_and_scored_probabilities_are_equal(tmp_path, policy, caplog):
    caplog.set_level(logging.ERROR, logger="bitsandbytes")  # it logs the type of computation at each call
    clip = ROUNDED_CLIP if policy == "8-bit lora" else TINY_CLIP
    done = run(
        tmp_path,
        POLICIES[policy](tmp_path),
        layout=replace(LAYOUT, shuffle=True),
        reflector=lm_reflector(gpt2(7, spread=0.1)),
        lessons=[lesson(2)],
        episodes=6,
        micro_batch_tokens=300,  # other batches than the rollout's
        update=ppo(epsilon=clip),
        learning_rate=1e-30,
    ).train()
    assert [iteration.clipped for iteration in done.iterations] == [0.0, 0.0]
    assert all(iteration.kl < clip / 100 for iteration in done.iterations)
    assert "reads every prompt from its beginning" not in caplog.text  # prefixes were reused on both sides


@pytest.mark.slow
def test_the_ratio_is_not_one_after_an_update(tmp_path):
    done = run(tmp_path, gpt2(spread=0.1), lessons=[lesson(1)], update=ppo(num_iterations=2, epsilon=TINY_CLIP)).train()
    assert done.iterations[0].clipped > 0.3  # of two passes, mostly steps of the second


@pytest.mark.slow
def test_updates_end_once_the_policy_has_moved_far(tmp_path):
    def trained(name, passes, **options):
        update = ppo(num_iterations=passes, **options)
        return run(tmp_path / name, gpt2(spread=0.1), lessons=[lesson(1)], update=update, learning_rate=1e-2)

    two, four = trained("two", 2).train(), trained("four", 4).train()
    stopped = trained("stopped", 4, target_kl=1e-4).train()  # which only the second pass sees
    assert same(stopped.weights, two.weights)
    assert not same(stopped.weights, four.weights)
    assert stopped.trainer.learner.steps == 4
    assert stopped.iterations == two.iterations


def entropic(*entropies):
    return [SimpleNamespace(turns=[SimpleNamespace(decision=SimpleNamespace(entropy=each))]) for each in entropies]


def test_the_learning_rate_follows_the_divergence_relative_to_the_entropy():
    pace = Pace(ppo(target_kl=0.03, kl_of_entropy=0.05), lambda *numbers: [list(numbers)])
    assert pace.factor == 0.1
    pace.begin(entropic(0.2, 0.6))  # a limit of 0.02
    assert [pace.went_far(kl) for kl in (0.0199, 0.0201)] == [False, True]
    factors = []
    for kl in (0.009, 0.015, 0.021, 0.0):  # less than half as far, nearly as far, further, not at all
        pace.follow(kl)
        factors.append(pace.factor)
    grown = 0.1 * math.sqrt(0.01 / 0.009)
    assert factors == pytest.approx([grown, grown, grown / 2, grown])
    for kl, most in ((0.0, 1), (0.001, 10), (0.0, 10)):  # while nothing is learned, the rate stays in its schedule
        for _ in range(20):
            pace.follow(kl)
        assert pace.factor == most
    for _ in range(20):
        pace.follow(1.0)
    assert 0 < pace.factor < 0.02
    pace.begin(entropic(2.3))
    assert [pace.went_far(kl) for kl in (0.0299, 0.0301)] == [False, True]  # ``target_kl``, which is less


def test_a_value_head_learns_at_its_own_rate_however_far_the_policy_moves():
    policy, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    both = torch.nn.ModuleList([policy, head])
    optimizer = adamw(parameter_groups(both, 0.1, head=head, head_rate=8e-3), lr=4e-3)
    pace = Pace(ppo(kl_of_entropy=0.05), lambda *numbers: [list(numbers)])
    rates = schedule(optimizer, lambda part: 1 - part / 2, 10, pace, head)
    optimizer.step()
    pace.factor = 0.5
    rates.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(
        [4e-3 * 0.95 * 0.5] * 2 + [8e-3 * 0.95] * 2
    )


@pytest.mark.slow
@pytest.mark.parametrize("bootstrap", [False, True])
def test_truncated_episodes_are_bootstrapped_if_asked_for_and_then_not_replayed(tmp_path, bootstrap):
    options = {"advantage": value_head(bootstrap_truncated=bootstrap), "replay": Replay(size=50, episodes=1)}
    done = run(tmp_path, gpt2(spread=0.1), lessons=[lesson(2, replay_threshold=-100.0)], episodes=16, **options).train()
    cut = [episode.last_value != 0 for episode in done.episodes[-1] if episode.truncated]
    assert cut == [bootstrap] * len(cut) != []
    played = [episode for episodes in done.episodes for episode in episodes]
    kept = [episode for episode in played if not (bootstrap and episode.truncated)]
    assert list(done.trainer.replay) == kept
    assert (len(kept) < len(played)) == bootstrap


# ---- the other players -----------------------------------------------------------------------------------------------


class CountingReflector(LMReflector):
    cleared = 0

    def clear(self):
        self.cleared += 1
        super().clear()


@pytest.mark.slow
def test_a_frozen_reflector_keeps_its_cache(tmp_path):
    model = gpt2(5, spread=0.2)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    player = lm_reflector(model, CountingReflector)
    done = run(tmp_path / "two", reflector=player, lessons=[lesson(3)]).train()
    assert same(model.state_dict(), before)
    assert not same(done.weights, gpt2().state_dict())
    assert player.cleared == 0
    assert player.hit_rate > 0.1
    assert len({turn.reflection for episodes in done.episodes for t in episodes for turn in t.turns}) > 1
    model = add_lora(gpt2(spread=0.2), LoraSection(r=4), [])
    single = lm_reflector(model, CountingReflector)
    run(tmp_path / "one", model, reflector=single).train()
    assert single.cleared == 3  # before each iteration, and at the end


@pytest.mark.slow
def test_in_a_resumed_iteration_a_reflector_computes_in_the_same_passes(tmp_path):
    def passes(checkpoint=None):
        """Train, and return the run and the shapes of the reflector's forward passes in each iteration."""
        model, shapes = gpt2(7, spread=0.1), defaultdict(list)
        try_head(model)  # now, because it reads a few rows
        options = {"max_length": MAX_LENGTH, "max_new_tokens": 12, "temperature": 0.3, "prefix_cache": prefix_cache()}
        reflector = LMReflector(model, tokenizer(), **options)
        training = run(tmp_path, reflector=reflector, lessons=[lesson(3)], save_every=1)

        def note(_, args, given):  # noqa: ARG001 - the signature of torch
            shapes[training.trainer.iteration].append(tuple(given["input_ids"].shape))

        model.register_forward_pre_hook(note, with_kwargs=True)
        return training.train(checkpoint), shapes

    whole, expected = passes()
    assert len({width for _, width in expected[1]}) > 2  # whole prompts, ends of those that share one, single tokens
    resumed, shapes = passes(tmp_path / "checkpoint-1")
    assert shapes == {number: expected[number] for number in (1, 2)}
    assert resumed.episodes == whole.episodes[1:]


class HalfBlind:
    """Rater that rates every second episode with 1 per step, and fails at the others."""

    asked = 0

    def say(self, views, draws):  # noqa: ARG002 - nothing is drawn
        said = []
        for view in views:
            self.asked += 1
            said.append(Utterance("", scores=(1.0,) * len(view.past) if self.asked % 2 else ()))
        return said


@pytest.mark.slow
def test_episodes_without_a_rating_are_neither_learned_from_nor_replayed(tmp_path):
    rewards, seen = {"rater": 1.0}, []
    plain = {"gamma": 1.0, "advantage": NoBaseline(normalize=False), "replay": Replay(size=50, episodes=1)}
    trainer = ReflectRLTrainer(
        gpt2(),
        config(tmp_path, lessons=[lesson(2, replay_threshold=-100.0)], episodes=6, rewards=rewards, **plain),
        tokenizer(),
        env=NumberLine,
        seats=[Seat("rater", HalfBlind())],
        layout=LAYOUT,
        labels=LABELS,
        on_iteration=lambda _, fresh: seen.append((list(fresh), trainer.advantages)),
    )
    trainer.train()
    for fresh, advantages in seen:
        assert {scored(episode, rewards) for episode in fresh} == {True, False}
        for episode, given in zip(fresh, advantages, strict=True):
            steps = len(episode.turns)
            assert given == (list(map(float, range(steps, 0, -1))) if scored(episode, rewards) else [])
    assert list(trainer.replay) == [episode for fresh, _ in seen for episode in fresh if scored(episode, rewards)]


# ---- environments ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_environments_of_a_stage_are_closed_when_it_ends(tmp_path):
    seen = []

    class Counted(NumberLine):
        def __init__(self, size):
            super().__init__(size)
            seen.append(("made", size))

        def close(self):
            seen.append(("closed", self.size))

    lessons = [Lesson("near", 2, env={"size": 4}), Lesson("far", 1, env={"size": 9})]
    done = run(tmp_path, lessons=lessons, episodes=2, env=Counted, reflector=None).train()
    assert seen == [(what, size) for size in (4, 9) for what in ("made", "closed") for _ in range(2)]
    assert {turn.reflection for episodes in done.episodes for t in episodes for turn in t.turns} == {None}


class Breaking(NumberLine):
    """Environment that fails in every episode that starts on an odd number."""

    def start(self, task):
        if task.options["start"] % 2:
            raise EpisodeFailed("broken")
        super().start(task)


@pytest.mark.slow
def test_dropped_episodes_are_not_learned_from(tmp_path):
    done = run(tmp_path / "some", env=Breaking, episodes=8).train()
    for iteration, episodes in zip(done.iterations, done.episodes, strict=True):
        assert 0 < len(episodes) < 8
        assert all(episode.task.options["start"] % 2 == 0 for episode in episodes)
        assert iteration.success == episode_metrics(episodes).success
    with pytest.raises(WorkFailed, match="all 4 episodes of iteration 0"):
        run(tmp_path / "none", env=Breaking, lessons=[lesson(1, tasks=("1-", "3-", "5-"))]).train()
