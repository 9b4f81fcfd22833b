"""The trainer with what prompts share computed once, in slots at play and trees at updates, against it without."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from tiny import LAYOUT, gpt2, language_model
from tiny_rlft import run

from reflectrl.config.rlft import Stage
from reflectrl.config.schema import LoraSection
from reflectrl.engine.seeding import seeded
from reflectrl.models.adapters import add_lora

LONG = replace(LAYOUT, instructions="add one or subtract one until the number is the target", history=6)
"""As real prompts are, most of one is as it was a step before."""


@dataclass
class Passes:
    """Sizes of the forward passes of a trainer's model, padding included."""

    plain: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    trees: list[int] = field(default_factory=list)

    def note(self, _module, _args, given):
        kinds = {(False, False): self.plain, (True, True): self.slots, (False, True): self.trees}
        kinds["past_key_values" in given, given.get("position_ids") is not None].append(given["input_ids"].numel())


def trained(folder, model, **options):
    """A trained run and its forward passes; sgd, because Adam makes steps of one size out of rounding."""
    defaults = {
        "stages": [Stage("main", 2, env={"size": 6})],
        "episodes": 6,
        "baseline": "value",
        "entropy": 0.1,
        "optim": "sgd",
        "learning_rate": 0.3,
        "layout": LONG,
    }
    made = run(folder, model, **{**defaults, **options})
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    passes = Passes()
    base.register_forward_pre_hook(passes.note, with_kwargs=True)
    return made.train(), passes


def lora():
    model = language_model("llama")
    with seeded(0):
        return add_lora(model, LoraSection(r=4), [40, 41])


POLICIES = {"gpt2": lambda: gpt2(spread=0.1, layers=2), "llama": lambda: language_model("llama"), "lora": lora}


@pytest.mark.parametrize("policy", POLICIES)
def test_training_is_the_same_with_and_without_reuse(tmp_path, policy):
    before = {name: weight.detach().clone() for name, weight in POLICIES[policy]().state_dict().items()}
    reusing, passes = trained(tmp_path / "reusing", POLICIES[policy]())
    plain, others = trained(tmp_path / "plain", POLICIES[policy](), prefix_reuse=False)
    assert [t.actions for played in reusing.episodes for t in played] == [
        t.actions for played in plain.episodes for t in played
    ]
    for one, other in zip(reusing.iterations, plain.iterations, strict=True):
        assert (one.loss, one.entropy) == pytest.approx((other.loss, other.entropy), abs=1e-5)
    for name, weight in plain.weights.items():
        torch.testing.assert_close(reusing.weights[name], weight, rtol=0, atol=1e-5)
    moved = [name for name, weight in before.items() if not torch.allclose(weight, plain.weights[name], atol=1e-3)]
    assert moved
    assert passes.slots
    assert passes.trees
    assert not passes.plain
    assert not others.slots
    assert not others.trees
    assert sum(passes.slots + passes.trees) < 0.6 * sum(others.plain)


@pytest.mark.parametrize("reuse", [True, False])
def test_no_pass_of_an_update_has_more_tokens_than_a_micro_batch(tmp_path, reuse):
    options = {"stages": [Stage("main", 1, env={"size": 6})], "prefix_reuse": reuse}
    whole, passes = trained(tmp_path / "whole", gpt2(spread=0.1), **options)
    parts, smaller = trained(tmp_path / "parts", gpt2(spread=0.1), **options, micro_batch_tokens=150)
    kind = "trees" if reuse else "plain"
    played = 0  # plain passes that were of the rollout: one a step, and one for the value where time ran out
    if not reuse:
        played = max(len(t.turns) for t in whole.episodes[0]) + any(t.truncated for t in whole.episodes[0])
    assert len(getattr(passes, kind)) == played + 1
    assert len(getattr(smaller, kind)) > played + 3
    assert max(getattr(smaller, kind)[played:]) <= 150 < max(getattr(passes, kind)[played:])
    for name, weight in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", ["recurrent_gemma", "falcon_h1"])
def test_a_policy_that_cannot_reuse_is_trained_all_the_same_with_a_warning(tmp_path, architecture, caplog):
    model = language_model(architecture)
    before = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    options = {"stages": [Stage("main", 1, env={"size": 4})], "episodes": 2, "learning_rate": 0.01}
    done, passes = trained(tmp_path, model, **options)
    warnings = [record.getMessage() for record in caplog.records if record.name == "reflectrl.engine.reuse"]
    assert len(warnings) == 1
    assert warnings[0].startswith("the policy reads every prompt from its beginning: its architecture ")
    assert passes.plain
    assert not passes.slots
    assert not passes.trees
    assert len(done.iterations) == 1
    assert any(not torch.equal(weight, done.weights[name]) for name, weight in before.items())


def test_under_autocast_prefixes_are_reused_too(tmp_path):
    done, passes = trained(tmp_path, gpt2(spread=0.1), bf16=True)
    plain, _ = trained(tmp_path / "plain", gpt2(spread=0.1), bf16=True, prefix_reuse=False)
    assert passes.slots
    assert passes.trees
    assert not passes.plain
    first, expected = done.iterations[0], plain.iterations[0]
    assert first.kl < 1e-3
    assert (first.loss, first.entropy) == pytest.approx((expected.loss, expected.entropy), abs=0.02)


# ---- side by side ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 3, 99])
def test_how_many_episodes_are_played_side_by_side_changes_nothing_that_is_drawn(tmp_path, batch_size):
    options = {"episodes": 8, "learning_rate": 1e-30}
    whole = run(tmp_path / "whole", gpt2(spread=0.1), **options).train()
    parts = run(tmp_path / "parts", gpt2(spread=0.1), batch_size=batch_size, **options).train()
    for all_of, some in zip(whole.episodes, parts.episodes, strict=True):
        assert [[turn.decision.action for turn in episode.turns] for episode in all_of] == [
            [turn.decision.action for turn in episode.turns] for episode in some
        ]
    assert len({len(episode.turns) for episode in whole.episodes[0]}) > 1
