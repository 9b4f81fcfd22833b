"""Training with prefix reuse (slots at play, trees in updates) compared with training without it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from tiny import LAYOUT, gpt2, language_model
from tiny_rlft import run, value_head

from reflectrl.config.training import EntropyBonus, Lesson, Terms
from reflectrl.lm.adapters import add_lora
from reflectrl.lm.load import adopt_kernels
from reflectrl.lm.section import LoraSection, ModelSection
from reflectrl.lm.seeding import seeded
from reflectrl.prompts import History

pytestmark = pytest.mark.numerical

LONG = replace(LAYOUT, instructions="add one or subtract one until the number is the target", history=6)
"""Layout in which most of a prompt is the same as a step before, as in real prompts."""


@dataclass
class Passes:
    """Sizes of the forward passes of a trainer's model, including padding."""

    plain: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    trees: list[int] = field(default_factory=list)

    def note(self, _module, _args, given):
        kinds = {(False, False): self.plain, (True, True): self.slots, (False, True): self.trees}
        kinds["past_key_values" in given, given.get("position_ids") is not None].append(given["input_ids"].numel())


def trained(folder, model, iterations=1, **options):
    """Train a model, and return the run and its forward passes.

    The optimizer is SGD, because Adam would turn rounding errors into steps of full size.
    """
    defaults = {
        "lessons": [Lesson("main", iterations, env={"size": 6})],
        "episodes": 6,
        "advantage": value_head(),
        "terms": Terms(entropy=EntropyBonus(0.1, 1.0)),
        "optimizer": torch.optim.SGD,
        "learning_rate": 0.3,
        "layout": LONG,
    }
    made = run(folder, model, **{**defaults, **options})
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    passes = Passes()
    base.register_forward_pre_hook(passes.note, with_kwargs=True)
    return made.train(), passes


def lora():
    with seeded(0):
        return add_lora(language_model("llama"), LoraSection(r=4), [40, 41])


def actions(done):
    return [t.actions for played in done.episodes for t in played]


def close(done, other):
    """Assert that the weights are equal up to rounding."""
    for name, weight in other.weights.items():
        torch.testing.assert_close(done.weights[name], weight, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "layout"),
    [
        (lora, LONG),
        (lambda: gpt2(spread=0.1, layers=2), replace(LONG, history=History(3, "transitions", reward=True))),
    ],
    ids=["llama with lora", "gpt2, past states"],
)
def test_training_is_the_same_with_and_without_reuse(tmp_path, policy, layout):
    before = policy().state_dict()
    reusing, passes = trained(tmp_path / "reusing", policy(), 2, layout=layout)
    plain, others = trained(tmp_path / "plain", policy(), 2, layout=layout, prefix_reuse=False)
    assert actions(reusing) == actions(plain)
    for one, other in zip(reusing.iterations, plain.iterations, strict=True):
        assert (one.loss, one.entropy) == pytest.approx((other.loss, other.entropy), abs=1e-5)
    close(reusing, plain)
    assert any(not torch.allclose(weight, plain.weights[name], atol=1e-3) for name, weight in before.items())
    assert passes.slots
    assert passes.trees
    assert not passes.plain
    assert not others.slots
    assert not others.trees
    assert sum(passes.slots + passes.trees) < 0.6 * sum(others.plain)


@pytest.mark.slow
@pytest.mark.parametrize("reuse", [True, False])
def test_no_pass_of_an_update_has_more_tokens_than_a_micro_batch(tmp_path, reuse):
    whole, passes = trained(tmp_path / "whole", gpt2(spread=0.1), prefix_reuse=reuse)
    parts, smaller = trained(tmp_path / "parts", gpt2(spread=0.1), prefix_reuse=reuse, micro_batch_tokens=150)
    kind = "trees" if reuse else "plain"
    played = 0  # plain passes of the rollout, one per step
    if not reuse:
        played = max(len(t.turns) for t in whole.episodes[0])
    assert len(getattr(passes, kind)) == played + 1
    assert len(getattr(smaller, kind)) > played + 2
    assert max(getattr(smaller, kind)[played:]) <= 150 < max(getattr(passes, kind)[played:])
    close(parts, whole)


@pytest.mark.slow
def test_a_policy_that_cannot_reuse_is_trained_with_a_warning(tmp_path, caplog):
    model = language_model("recurrent_gemma")
    before = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    done, passes = trained(tmp_path, model, episodes=2, learning_rate=0.01)
    (warning,) = [record for record in caplog.records if record.name == "reflectrl.lm.reuse"]
    assert "the policy" in warning.getMessage()
    assert passes.plain
    assert not passes.slots
    assert not passes.trees
    assert any(not torch.equal(weight, done.weights[name]) for name, weight in before.items())


@pytest.mark.slow
def test_under_autocast_prefixes_are_reused_too(tmp_path):
    done, passes = trained(tmp_path / "reusing", gpt2(spread=0.1), bf16=True)
    plain, _ = trained(tmp_path / "plain", gpt2(spread=0.1), bf16=True, prefix_reuse=False)
    assert passes.slots
    assert passes.trees
    assert not passes.plain
    first, expected = done.iterations[0], plain.iterations[0]
    assert first.kl < 1e-3
    assert (first.loss, first.entropy) == pytest.approx((expected.loss, expected.entropy), abs=0.02)


@pytest.mark.slow
def test_in_bfloat16_play_and_update_hardly_differ(tmp_path):
    model = gpt2(spread=0.1, layers=2, width=64)
    adopt_kernels(model, ModelSection(compute="bfloat16"))
    assert trained(tmp_path, model, episodes=2)[0].iterations[0].logprob_gap < 0.01
