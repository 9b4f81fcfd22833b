"""Evaluation on a fixed list of games: the same whatever is played side by side, and it says what was played."""

from __future__ import annotations

import functools

import pytest

from reflectrl.config import load_recipe
from reflectrl.config.schema import BuiltinSection, ModelSection
from reflectrl.core import make_env
from reflectrl.endpoint.account import Account
from reflectrl.engine.head import add_choice_head
from reflectrl.envs.alfworld import AlfWorld
from reflectrl.envs.alfworld.games import make_games, write_game
from reflectrl.models.builtin import make_base
from reflectrl.models.encode import PromptEncoder
from reflectrl.models.load import new_model
from reflectrl.models.policy import LMPolicy
from reflectrl.models.tokenizer import label_ids
from reflectrl.pipeline.evaluate import judge
from reflectrl.pipeline.folder import RunFolder
from reflectrl.players import ExpertReflector
from reflectrl.prompts import PromptFormat, labels
from reflectrl.report import print_table
from reflectrl.rollout.evaluate import evaluate, fixed_episodes
from reflectrl.rollout.metrics import episode_metrics
from reflectrl.rollout.results import read_results

HOUSES = (14, 29, 304, 316, 419)
"""Small floor plans, which the engine translates fast."""
LAYOUT = PromptFormat(history=2, labels="added", shuffle=True)


def make():
    return AlfWorld("alfworld:all", count=8, scenes=HOUSES, horizon=3, path=2)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """The built-in model as it is before training, so that it plays everything that can be played."""
    env = make()
    corpus = []
    for task in env.tasks("train"):
        env.reset(seed=0, options={"task": task})
        corpus.append("\n".join((env.observation.full_text, *env.observation.actions, env.reflection())))
    names = labels(LAYOUT.labels, env.max_actions)
    shape = BuiltinSection(layers=1, width=16, heads=2, vocabulary=1500, pieces="names")
    section = ModelSection(builtin=shape, max_length=1024)
    base = make_base(section, tmp_path_factory.mktemp("run") / "base", corpus=corpus, labels=names, seed=0)
    lm = new_model(base, labels=names, seed=0)
    add_choice_head(lm.base)
    return LMPolicy(lm.model, PromptEncoder(lm.tokenizer, label_ids(lm.tokenizer, names), 1024))


@pytest.fixture(scope="module")
def play(policy):
    """Play the list of episodes, so many side by side, or all of them at once where there are fewer."""
    episodes = fixed_episodes(make(), "test", episodes=12, max_tasks=None, seed=0)
    envs = [make() for _ in episodes]

    @functools.cache
    def side_by_side(size):
        return evaluate(envs[:size], episodes, policy=policy, reflector=ExpertReflector(), layout=LAYOUT)

    return side_by_side


def told(trajectories):
    """Everything but the probabilities, whose last digits depend on what is multiplied side by side."""
    return [
        (
            trajectory.task.id,
            trajectory.seed,
            trajectory.success,
            [(turn.observation, turn.menu, turn.reflection, turn.decision.action, turn.reward) for turn in each],
        )
        for trajectory in trajectories
        for each in [trajectory.turns]
    ]


@pytest.mark.parametrize("size", [7, 64])
def test_a_sampled_model_plays_the_same_whatever_is_played_beside_it(play, size):
    alone, beside = play(1), play(size)
    assert told(beside) == told(alone)
    assert episode_metrics(beside).success == episode_metrics(alone).success
    for one, other in zip(alone, beside, strict=True):
        for turn, same in zip(one.turns, other.turns, strict=True):
            assert same.decision.probabilities == pytest.approx(turn.decision.probabilities, abs=1e-5)


def test_the_episodes_that_are_compared_differ(play):
    played = play(1)
    assert len({trajectory.task.id for trajectory in played}) == 6
    assert len({trajectory.actions for trajectory in played}) > len(played) / 2


# ---- what results say of themselves ----------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_games_that_were_made_here_are_called_self_generated(split, tmp_path):
    games = make_games("all", split, 6)
    for game in games:
        write_game(tmp_path / split / game.name, game)
    for env in (AlfWorld(), AlfWorld("alfworld:all"), AlfWorld(str(tmp_path))):
        assert env.benchmark(split, 6) == "ALFWorld engine, self-generated games"


@pytest.fixture
def published(tmp_path):
    for split, own in (("train", "train"), ("valid_seen", "validation"), ("valid_unseen", "test")):
        for game in make_games("all", own, 6, scenes=HOUSES):
            write_game(tmp_path / "json_2.1.1" / split / game.name.partition("/")[0] / "trial_T2019", game)
    return tmp_path


def test_published_games_are_called_by_their_split_and_by_how_many_were_played(published, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(published))
    for dataset in ("alfworld:published", str(published), str(published / "json_2.1.1")):
        env = AlfWorld(dataset)
        assert len(env.tasks("test")) == 6
        assert env.benchmark("test", 4) == "ALFWorld valid_unseen, 4 of 134 games"
        assert env.benchmark("test", 134) == "ALFWorld valid_unseen"
        assert env.benchmark("validation", 140) == "ALFWorld valid_seen"
        assert env.benchmark("train", 6) == "ALFWorld train, 6 of 3553 games"


def test_an_evaluation_says_what_was_played_in_its_rows_its_last_words_and_its_table(published, tmp_path, capsys):
    dataset = [f"env.options.dataset={published}", "env.options.scenes=null"]
    changes = [*dataset, "eval.policies=[random, expert]", "eval.episodes=3"]
    recipe = load_recipe("alfworld/nano", changes)
    run = RunFolder(tmp_path / "nano")
    run.path.mkdir()
    run.begin(recipe, "eval")
    notes = []
    judge(recipe, run, Account(), lambda _done, _total, note: notes.append(note), notes.append)
    assert [row.benchmark for row in read_results(run / "eval.jsonl")] == ["ALFWorld valid_unseen, 3 of 134 games"] * 2
    assert notes[-1].endswith("of 3 episodes; ALFWorld valid_unseen, 3 of 134 games, split test")
    print_table([run.path])
    assert capsys.readouterr().out.endswith("\nPlayed on ALFWorld valid_unseen, 3 of 134 games, split test.\n")


def test_other_environments_need_no_words():
    assert make_env("number_line").benchmark("test", 3) == ""
