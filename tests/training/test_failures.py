from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import gpt2
from tiny_models import LABELS, policy_row, reflector_row, save_tiny
from tiny_rlft import run, value_head
from tiny_sft import fine_tune

from reflectrl.config.training import Lesson
from reflectrl.core import WorkFailed
from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.load import new_model
from reflectrl.training.checkpoints import last_checkpoint

ROWS = [reflector_row("|T:P|", " Mistake."), policy_row("|T:P|", "2")]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def untouched(weights, before):
    return all(torch.equal(weight, before[name]) for name, weight in weights.items() if "value_head" not in name)


# ---- rlft ------------------------------------------------------------------------------------------------------------


class Rich(NumberLine):
    """Environment with a reward whose square is too large for a float32."""

    def act(self, action):
        return replace(super().act(action), reward=1e30)


def test_rewards_beyond_all_numbers_stop_before_the_weights_are_touched(tmp_path):
    done = run(tmp_path / "run", env=Rich, advantage=value_head(normalize=False))
    before = done.weights
    with pytest.raises(WorkFailed, match=r"inf .* iteration 0") as caught:
        done.train()
    assert done.iterations == []
    assert done.trainer.learner.steps == 0
    assert untouched(done.weights, before)
    (dump,) = (tmp_path / "run" / "failures").iterdir()
    assert dump.name == "rlft-iteration-00000.jsonl"
    assert str(dump) in str(caught.value)
    first, *_ = rows = lines(dump)
    assert set(first) == {"prompt", "menu", "action", "advantage", "return", "old_logprob"}
    assert "Number" in first["prompt"]
    assert first["action"] in first["menu"].values()
    assert all(row["return"] >= 9e29 and row["old_logprob"] <= 0 for row in rows)


@pytest.mark.slow
def test_a_gradient_that_is_no_number_leaves_the_last_good_checkpoint(tmp_path):
    options = {
        "advantage": value_head(),
        "lessons": [Lesson("main", 20, env={"size": 6})],
        "save_every": 1,
        "optimizer": torch.optim.SGD,
        "max_grad_norm": 1.0,
        "learning_rate": 1e18,  # the first step goes too far
    }
    done = run(tmp_path / "run", gpt2(spread=0.1), failures=tmp_path / "elsewhere", **options)
    with pytest.raises(WorkFailed, match="nan"):
        done.train()
    steps = done.trainer.learner.steps
    assert len(done.iterations) == steps >= 1
    assert last_checkpoint(tmp_path / "run").name == f"checkpoint-{steps}"
    assert untouched(load_file(tmp_path / "run" / f"checkpoint-{steps}" / "model.safetensors"), done.weights)
    assert {row["advantage"] for row in lines(*(tmp_path / "elsewhere").iterdir())} == {"nan"}  # JSON knows no NaN


# ---- sft -------------------------------------------------------------------------------------------------------------


def test_a_model_that_is_broken_on_disk_is_not_trained(tmp_path):
    section = save_tiny("gpt2", tmp_path / "base")
    weights = load_file(tmp_path / "base" / "model.safetensors")
    weights["transformer.h.0.mlp.c_fc.bias"][3] = torch.nan
    save_file(weights, tmp_path / "base" / "model.safetensors", metadata={"format": "pt"})
    lm = new_model(section, labels=LABELS, seed=0)
    before = {name: weight.clone() for name, weight in lm.model.state_dict().items()}
    with pytest.raises(WorkFailed, match="nan .* step 1 of sft both"):
        fine_tune(lm, ROWS, tmp_path / "checkpoints", "both", micro_batch_size=2, failures=tmp_path / "failures")
    after = lm.model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items() if "c_fc.bias" not in name)
    rows = lines(tmp_path / "failures" / "sft-both-step-00001.jsonl")
    assert len(rows) == 4  # of both micro-batches
    assert {row["completion"] for row in rows} == {" Mistake.<|eos|>", "2"}
    assert {row["prompt"] for row in rows} == {row.prompt.text for row in ROWS}
