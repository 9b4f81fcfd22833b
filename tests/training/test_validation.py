"""Validation during RLFT: fixed tasks, which weights are kept, patience, and resuming after a kill."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
import torch
from both import Both
from records import chose, turn_of
from tiny import LAYOUT, encoder, gpt2
from tiny_rlft import Killed, run
from torch import nn

from reflectrl.config.training import Lesson, Validation
from reflectrl.core import Observation, Task, Trajectory
from reflectrl.core.stop import Stop
from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.head import LogitScale, add_choice_head
from reflectrl.lm.policy import LMPolicy
from reflectrl.rollout import Episode
from reflectrl.rollout.loop import evaluate
from reflectrl.rollout.results import Validated
from reflectrl.seats.table import Seat
from reflectrl.training.checkpoints import last_checkpoint
from reflectrl.training.collector import Collector
from reflectrl.training.validation import Validator

OPTIONS = {
    "lessons": [Lesson("main", 3, env={"size": 6})],
    "rewards": {"env": -1.0},  # failing is rewarded, so the policy gets worse
    "learning_rate": 0.01,
    "episodes": 16,
    "save_every": 2,
    "validation": Validation(every=1, episodes=24),
}


class WatchedBoth(Both):
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
        return run(tmp_path_factory.mktemp("kept"), policy(), env=WatchedBoth, **OPTIONS).train()


class Unasked:
    """Player that speaks after the act, and may not be asked."""

    def say(self, views, draws):  # noqa: ARG002 - it is not asked
        raise AssertionError(f"{len(views)} episodes of a validation were corrected")


def test_a_validation_asks_no_player_whose_words_come_after_the_act():
    model = gpt2()
    add_choice_head(model)
    policy = LMPolicy(model, encoder())
    collector = Collector(NumberLine, policy, model, (Seat("corrector", Unasked()),), LAYOUT, 2)
    collector.open({"size": 4})
    episodes = [Episode(task, seed=0) for task in collector.envs[0].split_tasks("validation")]
    assert len(collector.validate(episodes, greedy=True)) == len(episodes)


@pytest.mark.slow
def test_validation_changes_nothing_of_the_training_and_never_reads_the_test_split(kept, tmp_path):
    plain = run(tmp_path, policy(), env=Both, **{**OPTIONS, "validation": None}).train()
    assert kept.episodes == plain.episodes
    assert [each.loss for each in kept.iterations] == [each.loss for each in plain.iterations]
    assert {each.validation_success for each in plain.iterations} == {None}
    assert WatchedBoth.splits_read == {"train", "validation"}


@pytest.mark.slow
def test_a_training_whose_time_is_up_is_validated_and_ends(tmp_path):
    stop = Stop()
    stop.deadline, stop.least = 0.0, 2
    done = run(tmp_path, policy(), env=Both, stop=stop, **OPTIONS).train()
    assert [each.ended for each in done.iterations] == [None, "minutes"]
    assert done.iterations[-1].validation_success is not None
    assert done.trainer.validated is not None


@pytest.mark.slow
def test_a_worsening_training_keeps_its_first_weights(kept):
    first, *_, last = kept.iterations
    assert first.validation_start > max(each.validation_success for each in kept.iterations)
    assert {each.validation_start for each in kept.iterations[1:]} == {None}
    assert last.ended == "iterations"
    assert first.validation_expert == 1
    began = policy().state_dict()
    assert all(torch.equal(weight, kept.weights[name]) for name, weight in began.items())
    as_played = {"options": {"size": 6}, "seed": kept.trainer.args.seed, "episodes": 24}
    found = evaluate(kept.trainer, Both, "validation", **as_played)
    assert (found.success, found.episode_return) == pytest.approx(kept.trainer.validated.rank)
    assert evaluate(Greedy(kept.trainer), Both, "validation", **as_played).success == first.validation_start_greedy
    assert kept.trainer.validated == Validated(
        first.validation_start, first.validation_start_greedy, kept.trainer.validated.episode_return, 24, 0
    )


@pytest.mark.slow
def test_a_training_that_gets_better_ends_with_the_weights_that_did_best(tmp_path):
    better = {**OPTIONS, "rewards": {"env": 1.0}, "ema": 0.5, "lessons": [Lesson("main", 4, env={"size": 6})]}
    done = run(tmp_path, policy(), **better).train()
    best = max(done.iterations, key=lambda each: (each.validation_success, each.validation_return, each.iteration))
    assert best.validation_success > done.iterations[0].validation_start
    as_played = {"options": {"size": 6}, "seed": done.trainer.args.seed, "episodes": 24}
    assert evaluate(done.trainer, NumberLine, "validation", **as_played).success == best.validation_success
    assert done.trainer.validated.iterations == best.iteration + 1


@pytest.mark.slow
def test_a_policy_that_hesitates_begins_sharpened(tmp_path):
    options = {**OPTIONS, "rewards": {"env": 1.0}, "save_every": 1, "ema": 0.5, "sharpen": (1.0, 9.0, 3.0)}
    taught = run(tmp_path / "taught", policy(), **{**OPTIONS, "rewards": {"env": 1.0}}).train().weights

    def begun(folder, **more):
        model = policy()
        model.load_state_dict(taught)
        LogitScale(model).set(1 / 9)
        return run(folder, model, **{**options, **more})

    plain, sharp = begun(tmp_path / "plain", sharpen=()).train(), begun(tmp_path / "sharp").train()
    first, *rest = sharp.iterations
    assert first.sharpened == 9
    assert {each.sharpened for each in (*rest, *plain.iterations)} == {None}
    assert first.validation_start > plain.iterations[0].validation_start
    assert first.validation_start_greedy == plain.iterations[0].validation_start_greedy
    assert first.entropy < plain.iterations[0].entropy
    continued = begun(tmp_path / "sharp").train(tmp_path / "sharp" / "checkpoint-1")
    assert same(continued.weights, sharp.weights)


class Greedy:
    """The players of a trainer, with a greedy policy."""

    def __init__(self, trainer):
        self.policy, self.seats, self.layout = trainer.policy.greedy(), trainer.seats, trainer.layout


@pytest.mark.slow
def test_a_killed_run_still_knows_its_best_weights(tmp_path):
    options = {**OPTIONS, "save_every": 1, "lessons": [Lesson("near", 2, env={"size": 4}), Lesson("main", 9)]}
    options |= {"validation": Validation(every=1, episodes=8, patience=3)}
    straight = run(tmp_path / "straight", policy(), **options).train()
    killed = run(tmp_path / "killed", policy(), dies_after=2, **options)
    with pytest.raises(Killed):
        killed.train()
    checkpoint = last_checkpoint(tmp_path / "killed")
    again = run(tmp_path / "killed", policy(), **options).train(checkpoint)
    assert [*killed.iterations[:2], *again.iterations] == straight.iterations
    assert straight.iterations[-1].ended == "patience"
    assert again.trainer.validated == straight.trainer.validated
    assert same(again.weights, straight.weights)


@pytest.mark.slow
def test_each_stage_is_validated_and_ends_with_patience(tmp_path):
    lessons = [Lesson("near", 3, env={"size": 4}), Lesson("main", 100, env={"size": 6})]
    options = {"lessons": lessons, "learning_rate": 1e-30, "validation": Validation(every=2, episodes=4, patience=2)}
    done = run(tmp_path, **options).train()
    assert [each.lesson for each in done.iterations] == ["near"] * 3 + ["main"] * 4  # the start, then two no better
    assert [each.validation_success is not None for each in done.iterations] == [False, True, True, *[False, True] * 2]
    starts = [each.lesson for each in done.iterations if each.validation_start is not None]
    assert starts == ["near", "main"]
    assert [each.ended for each in done.iterations if each.ended] == ["iterations", "patience"]


@pytest.mark.slow
def test_the_last_stage_is_compared_with_the_weights_before_the_first(tmp_path):
    lessons = [Lesson("near", 2, env={"size": 4}), Lesson("main", 2, env={"size": 6})]
    done = run(tmp_path, policy(), env=Both, **{**OPTIONS, "lessons": lessons}).train()
    [start] = [each.validation_start for each in done.iterations[2:] if each.validation_start is not None]
    assert start > max(each.validation_success for each in done.iterations[2:])
    assert all(torch.equal(weight, done.weights[name]) for name, weight in policy().state_dict().items())


class OneWay(NumberLine):
    """Environment with the expert's action alone on its menus."""

    def observe(self):
        seen = super().observe()
        return replace(seen, actions=(self.expert() or seen.actions[0],), common=())


@pytest.mark.slow
def test_a_stage_ends_once_the_policy_does_as_well_as_the_expert(tmp_path):
    options = {"lessons": [Lesson("main", 5, env={"size": 4})], "validation": Validation(every=2, episodes=4)}
    done = run(tmp_path, env=OneWay, reflector=None, **options).train()
    assert [each.ended for each in done.iterations] == [None, "expert"]
    assert done.iterations[0].validation_expert == 1.0


@pytest.mark.slow
def test_an_environment_without_validation_tasks_is_trained_without_a_validation(tmp_path, caplog):
    class Unvalidated(NumberLine):
        def tasks(self, split):
            return [] if split == "validation" else super().tasks(split)

    done = run(tmp_path, env=Unvalidated, validation=Validation()).train()
    assert "has no tasks in split 'validation'" in caplog.text
    assert {each.validation_success for each in done.iterations} == {None}
    assert done.trainer.validated is None


class Played:
    """Collector whose episodes end as scripted: for each validation the wins of each group, and the mean return."""

    def __init__(self, *validations, expert=None):
        self.validations = list(validations)
        self.expert = expert

    def validate(self, episodes, *, greedy):  # noqa: ARG002 - the script knows
        wins, mean = self.validations.pop(0)
        return self._played(episodes, dict(wins), mean)

    def play_expert(self, episodes):
        return None if self.expert is None else self._played(episodes, {"": self.expert[0]}, self.expert[1])

    def _played(self, episodes, left, mean):
        played = []
        for each in episodes:
            group = each.task.group
            left[group] = left.get(group, 0) - 1
            turn = turn_of(Observation("Here.", ("go",)), ("go",), None, chose(0, "go"), mean)
            won = left[group] >= 0
            played.append(Trajectory(each.task, 0, (turn,), terminated=True, truncated=False, success=won))
        return played


def validated(settings, *results, model=None, expert=None):
    """Return a validator before the first iteration, and the collector that has the given results."""
    validator = Validator(settings, model, seed=0, share=(0, 1), trained=64)
    validator.begin_lesson(NumberLine())
    collector = Played(*(({"": wins}, mean) for wins, mean in results), expert=expert)
    validator.start(collector, gather)
    return validator, collector


def gather(*numbers):
    return [numbers]


def test_returns_break_ties_and_the_latest_weights_are_kept():
    model = nn.Linear(1, 1)
    results = ((3, 0.0), (5, 0.1), (5, 0.3), (5, 0.3), (5, 0.2), (2, 0.9))
    model.weight.data.fill_(0)
    validator, collector = validated(Validation(episodes=8, greedy=False, patience=3), *results, model=model)
    ends = []
    for number in range(1, 6):
        model.weight.data.fill_(number)
        validator.play(collector, gather, number)
        ends.append(validator.ends)
    validator.load_best()
    assert model.weight.item() == 3
    assert validator.kept == Validated(5 / 8, None, pytest.approx(0.3), 8, 3)
    assert ends == [None, None, None, None, "patience"]


def test_patience_is_not_used_up_while_nothing_has_ever_succeeded():
    results = [(0, 0.0)] * 4 + [(1, 0.0)] * 3
    validator, collector = validated(Validation(episodes=8, greedy=False, patience=2), *results)
    ends = []
    for number in range(1, 7):
        validator.play(collector, gather, number)
        ends.append(validator.ends)
    assert ends == [None] * 5 + ["patience"]


@pytest.mark.parametrize(
    ("results", "end"),
    [
        ([(4, 0.2), (6, 0.6), (6, 0.6)], 2),  # as often as the expert, and at its return
        ([(6, 0.6), (6, 0.6)], 1),  # the starting weights count
        ([(4, 0.2), (6, 0.6), (5, 0.9), (7, 0.6), (6, 0.6)], 4),  # in a row
        ([(6, 0.2), (6, 0.3), (6, 0.57), (6, 0.59), (6, 0.58)], 4),  # 95 % of the way from 0.2 to 0.6
        ([(6, 0.2), (7, 0.4), (8, 0.5), (8, 0.5)], None),
    ],
)
def test_the_level_of_the_expert_is_its_success_and_nearly_its_return(results, end):
    validator, collector = validated(Validation(episodes=8, greedy=False), *results, expert=(6, 0.6))
    ends = []
    for number in range(1, len(results)):
        validator.play(collector, gather, number)
        ends.append(validator.ends)
    assert ends == [None] * (len(ends) - 1) + [None if end is None else "expert"]
    assert end in (None, len(ends))


@pytest.mark.parametrize(("expert", "last"), [(None, 6), ((8, 9.0), 11)])
def test_patience_is_short_where_nothing_is_left_to_win(expert, last):
    results = [(0, 0.0), (8, 1.0), (8, 2.0), *[(8, 2.0)] * 10]
    validator, collector = validated(Validation(episodes=8, greedy=False, patience=9), *results, expert=expert)
    ends = [validator.ends]
    for number in range(1, len(results)):
        validator.play(collector, gather, number)
        ends.append(validator.ends)
    assert ends.index("patience") == last


@pytest.mark.parametrize(("episodes", "every"), [(64, 10), (512, 2), (4, 160)])
def test_without_an_interval_validations_play_a_fifth_of_the_episodes(episodes, every):
    validator = Validator(Validation(), None, seed=0, share=(0, 1), trained=episodes)
    validator.begin_lesson(NumberLine())
    assert [number for number in range(1, 161) if validator.due(number, ended=False)][0] == every
    assert validator.due(1, ended=True)


class GroupedLine(NumberLine):
    """Four tasks in two groups."""

    def __init__(self, size=6):
        super().__init__(size)
        groups = {0: "even", 1: "odd", 2: "even", 4: "even"}
        grouped = [Task(f"{n}-to-5", {"start": n, "target": 5, "group": group}) for n, group in groups.items()]
        self._tasks = {task.id: task for task in grouped}

    def tasks(self, split):  # noqa: ARG002 - the same in each
        return list(self._tasks.values())


def test_the_success_of_each_group_is_gathered():
    validator = Validator(Validation(episodes=8), None, seed=0, share=(0, 2), trained=8)
    validator.begin_lesson(GroupedLine())
    played = Played(({"even": 2}, 0.5), ({"even": 1}, 0.0))
    assert validator.play(played, lambda *numbers: [numbers, numbers], 1) == {  # two processes that win equally often
        "validation_success": 4 / 8,
        "validation_greedy": 2 / 8,
        "validation_return": 0.5,
        "validation_by_group": {"even": 4 / 6, "odd": 0.0},
    }


@pytest.mark.slow
def test_an_iteration_has_the_success_of_its_groups(tmp_path):
    validation = Validation(every=2, episodes=8, greedy=False)
    done = run(tmp_path, policy(), env=GroupedLine, episodes=8, validation=validation).train()
    for iteration, played in zip(done.iterations, done.episodes, strict=True):
        groups = {episode.task.group for episode in played}
        assert iteration.success_by_group == {
            group: fmean(episode.success for episode in played if episode.task.group == group) for group in groups
        }
    first, second = done.iterations
    assert first.validation_by_group == {}
    assert second.validation_success == pytest.approx(
        (6 * second.validation_by_group["even"] + 2 * second.validation_by_group["odd"]) / 8
    )
