"""Subclasses of ``ReflectRLTrainer``: their samples and losses are used, in Python and in a run."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from run_folders import unfinish
from tiny import LABELS, LAYOUT, gpt2, tokenizer
from tiny_rlft import config
from trained_runs import play_stages, small_recipe

from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import read_jsonl
from reflectrl.core.run_files import METRICS
from reflectrl.envs.number_line import NumberLine
from reflectrl.pipeline import STAGES
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.training.filtered import FilteredCloning
from reflectrl.training.rlft import ReflectRLTrainer

CLONING = "rlft.trainer=reflectrl.training.filtered:FilteredCloning"
"""Override that names the trainer that is shipped as an example."""


class Indifferent(ReflectRLTrainer):
    """Trainer whose loss is that of ours with an additional constant."""

    def minibatch_loss(self, samples, scores):
        loss = super().minibatch_loss(samples, scores)
        return replace(loss, total=loss.total + 5.0 * len(samples))


def trained(kind, folder):
    losses, advantages = [], []

    def note(done, fresh):
        losses.append(done.loss)
        advantages.append([(episode.success, each) for episode, each in zip(fresh, trainer.advantages, strict=True)])

    trainer = kind(
        gpt2(),
        config(folder, episodes=8),
        tokenizer(),
        env=NumberLine,
        reflector=ExpertReflector(),
        layout=LAYOUT,
        labels=LABELS,
        on_iteration=note,
    )
    trainer.train()
    return losses, advantages


def test_a_trainer_may_add_to_the_loss(tmp_path):
    (plain, *_), _ = trained(ReflectRLTrainer, tmp_path / "plain")
    (more, *_), _ = trained(Indifferent, tmp_path / "more")
    assert more == pytest.approx(plain + 5.0)


def test_a_trainer_may_estimate_advantages(tmp_path):
    _, iterations = trained(FilteredCloning, tmp_path)
    episodes = [episode for iteration in iterations for episode in iteration]
    assert {success for success, _ in episodes} == {True, False}
    assert all(set(advantages) == {float(success)} for success, advantages in episodes)


@pytest.mark.slow
def test_a_recipe_trains_with_the_class_that_it_names(trained_run):
    cloned = trained_run(CLONING, stages=STAGES[:3])
    (_, ours), (_, theirs) = (list(read_jsonl(run / METRICS))[0] for run in (trained_run(), cloned))
    assert ours["success"] == theirs["success"]
    assert ours["loss"] != theirs["loss"]
    with pytest.raises(InvalidInput, match='rlft.trainer: ".*FilteredCloning" -> null'):
        play_stages(small_recipe(), cloned, "rlft")


@pytest.mark.slow
def test_a_run_says_that_the_code_of_its_trainer_has_changed(trained_run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code = tmp_path / "method_of_a_test.py"
    code.write_text("from reflectrl import ReflectRLTrainer\nclass Mine(ReflectRLTrainer): ...\n")
    recipe = small_recipe("rlft.trainer=method_of_a_test:Mine", "rlft.lessons.0.iterations=1")
    run = shutil.copytree(trained_run(stages=STAGES[:2]), tmp_path / "run")
    play_stages(recipe, run, "rlft")
    assert "same inputs" in play_stages(recipe, run, "rlft")
    code.write_text(f"{code.read_text()}# changed\n")
    assert f"done before, with {code} as it was then" in play_stages(recipe, run, "rlft")
    (run / "policy" / "model.safetensors").unlink()
    unfinish(run, "rlft")
    assert f"continues with {code} as changed since it was begun" in play_stages(recipe, run, "rlft")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module:Mine", "cannot be imported"),
        ("reflectrl.core:Task", "not a subclass"),
        ("FilteredCloning", "rlft.trainer"),
    ],
)
def test_a_name_of_no_trainer_is_refused_before_any_work(name, why, tmp_path):
    with pytest.raises(InvalidInput, match=why):
        play_stages(small_recipe(f"rlft.trainer={name}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
