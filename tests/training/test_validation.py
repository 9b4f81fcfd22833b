"""Validation during RLFT: fixed tasks, which weights are kept, patience, and resuming after a kill."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import pytest
import torch
from tiny import LAYOUT, encoder, gpt2
from tiny_rlft import Killed, run
from torch import nn

from reflectrl.config.rlft import Stage, Validation
from reflectrl.core import InvalidInput, Task
from reflectrl.engine.head import add_choice_head
from reflectrl.envs.number_line import NumberLine
from reflectrl.models.policy import LMPolicy
from reflectrl.players import Seat
from reflectrl.rollout import Episode
from reflectrl.rollout.evaluate import evaluate
from reflectrl.training.checkpoints import last_checkpoint
from reflectrl.training.collector import Collector
from reflectrl.training.validation import Validator

OPTIONS = {
    "stages": [Stage("main", 3, env={"size": 6})],
    "rewards": {"env": -1.0},  # failing is rewarded, so the policy gets worse and the last weights are not the best
    "learning_rate": 0.01,
    "episodes": 16,
    "save_every": 2,
    "validation": Validation(every=1, episodes=24),
    "keep": "best",
}


class WatchedLine(NumberLine):
    """Environment that records the splits that were read."""

    splits_read: set[str] = set()

    def tasks(self, split):
        self.splits_read.add(split)
        return super().tasks(split)


def policy():
    return gpt2(2, spread=0.1)


def same(first, second):
    return all(torch.equal(weight, second[name]) for name, weight in first.items())


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    with torch.random.fork_rng():
        return run(tmp_path_factory.mktemp("kept"), policy(), env=WatchedLine, **OPTIONS).train()


class Silent:
    """Player that speaks after the act, and may not be asked."""

    def say(self, views, draws):  # noqa: ARG002 - it is not asked
        raise AssertionError(f"{len(views)} episodes of a validation were corrected")


def test_a_validation_asks_no_player_whose_words_come_after_the_act():
    model = gpt2()
    add_choice_head(model)
    policy = LMPolicy(model, encoder())
    collector = Collector(NumberLine, policy, model, (Seat("corrector", Silent()),), LAYOUT, 2)
    collector.open({"size": 4})
    episodes = [Episode(task, seed=0) for task in collector.envs[0].split_tasks("validation")]
    assert collector.count_wins(episodes, greedy=True).total() <= len(episodes)


@pytest.mark.slow
def test_validation_changes_nothing_of_the_training_and_never_reads_the_test_split(kept, tmp_path):
    plain = run(tmp_path, policy(), **{**OPTIONS, "validation": None, "keep": "last"}).train()
    assert kept.episodes == plain.episodes
    assert [each.loss for each in kept.iterations] == [each.loss for each in plain.iterations]
    assert {each.validation_success for each in plain.iterations} == {None}
    assert WatchedLine.splits_read == {"train", "validation"}


@pytest.mark.slow
def test_training_ends_with_the_weights_that_did_best(kept):
    successes = [each.validation_success for each in kept.iterations]
    assert max(successes) == successes[0] > successes[-1]
    as_played = {"options": {"size": 6}, "seed": kept.trainer.args.seed}
    assert evaluate(kept.trainer, NumberLine, "validation", episodes=24, **as_played).success == successes[0]
    greedy = evaluate(Greedy(kept.trainer), NumberLine, "validation", **as_played)
    assert greedy.success == kept.iterations[0].validation_greedy


class Greedy:
    """The players of a trainer, with a greedy policy."""

    def __init__(self, trainer):
        self.policy, self.seats, self.layout = trainer.policy.greedy(), trainer.seats, trainer.layout


@pytest.mark.slow
def test_a_killed_run_still_knows_its_best_weights(kept, tmp_path):
    killed = run(tmp_path, policy(), dies_after=2, **OPTIONS)
    with pytest.raises(Killed):
        killed.train()
    again = run(tmp_path, policy(), **OPTIONS).train(last_checkpoint(tmp_path))
    assert [*killed.iterations[:2], *again.iterations] == kept.iterations
    assert same(again.weights, kept.weights)


@pytest.mark.slow
def test_each_stage_is_validated_now_and_then_and_at_its_end_and_ends_with_patience(tmp_path):
    stages = [Stage("near", 3, env={"size": 4}), Stage("main", 100, env={"size": 6})]
    options = {"stages": stages, "learning_rate": 1e-30, "validation": Validation(every=2, episodes=4, patience=2)}
    done = run(tmp_path, **options).train()
    assert [each.stage for each in done.iterations] == ["near"] * 3 + ["main"] * 6  # the best, then two no better
    assert [each.validation_success is not None for each in done.iterations] == [False, True, True, *[False, True] * 3]


class Scripted:
    """Collector that wins the given number of episodes of each group, each time it plays."""

    def __init__(self, *wins):
        self.wins = list(wins)

    def count_wins(self, episodes, *, greedy):  # noqa: ARG002 - its wins are given
        return Counter(self.wins.pop(0))


def test_of_equally_good_weights_the_latest_are_kept_and_a_tie_uses_up_patience():
    model = nn.Linear(1, 1)
    validator = Validator(Validation(episodes=8, greedy=False, patience=2), model, seed=0, share=(0, 1))
    validator.begin_stage(NumberLine())
    collector, exhausted = Scripted(*({"": wins} for wins in (3, 5, 5, 2))), []
    for number in range(4):
        model.weight.data.fill_(number)
        assert validator.play(collector, lambda *wins: [wins])["validation_success"] in (3 / 8, 5 / 8, 2 / 8)
        exhausted.append(validator.exhausted)
    validator.load_best()
    assert model.weight.item() == 2
    assert exhausted == [False, False, False, True]


class GroupedLine(NumberLine):
    """Four tasks in two groups."""

    def __init__(self, size=6):
        super().__init__(size)
        groups = {0: "even", 1: "odd", 2: "even", 4: "even"}
        grouped = [Task(f"{n}-to-5", {"start": n, "target": 5, "group": group}) for n, group in groups.items()]
        self._tasks = {task.id: task for task in grouped}

    def tasks(self, split):  # noqa: ARG002 - the same in each
        return list(self._tasks.values())


def test_the_success_of_each_group_is_that_of_its_sampled_episodes_on_all_processes():
    validator = Validator(Validation(episodes=8), None, seed=0, share=(0, 2))
    validator.begin_stage(GroupedLine())
    played = Scripted({"even": 1, "odd": 1}, {"even": 1})
    assert validator.play(played, lambda *wins: [wins, wins]) == {  # two processes that win equally often
        "validation_success": 4 / 8,
        "validation_greedy": 2 / 4,
        "validation_by_group": {"even": 2 / 6, "odd": 2 / 2},
    }


@pytest.mark.slow
def test_an_iteration_has_the_success_of_the_groups_that_were_played_and_validated(tmp_path):
    validation = Validation(every=2, episodes=8, greedy=False)
    done = run(tmp_path, policy(), env=GroupedLine, episodes=8, validation=validation).train()
    for iteration, played in zip(done.iterations, done.episodes, strict=True):
        groups = {episode.task.group for episode in played}
        assert iteration.success_by_group == {
            group: fmean(episode.success for episode in played if episode.task.group == group) for group in groups
        }
    first, second = done.iterations
    assert first.validation_by_group == {}
    once = run(tmp_path / "drawn", policy(), env=GroupedLine, episodes=24, task_priority=0.8).train()
    weighted = [*zip(once.episodes[-1], once.trainer.curriculum.weights, strict=True)]
    rates = once.iterations[-1].success_by_group
    assert rates["even"] != pytest.approx(fmean(e.success for e, _ in weighted if e.task.group == "even"))
    for group, rate in rates.items():
        wins, weights = zip(
            *((e.success * weight, weight) for e, weight in weighted if e.task.group == group), strict=True
        )
        assert rate == pytest.approx(sum(wins) / sum(weights))
    assert second.validation_success == pytest.approx(
        (6 * second.validation_by_group["even"] + 2 * second.validation_by_group["odd"]) / 8
    )


def test_best_weights_need_a_validation(tmp_path):
    with pytest.raises(InvalidInput, match="keep"):
        run(tmp_path, keep="best")
