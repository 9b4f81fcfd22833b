"""Engine and training on a GPU, if there is one (``pytest -m gpu``), and the same tests on the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from records import shown
from tiny import LAYOUT, MAX_LENGTH, draws, encoder, gpt2, language_model, policy_prompt, reflector_prompt, tokenizer
from tiny_rlft import Killed, ppo, run, value_head

from reflectrl.config.training import EntropyBonus, Lesson, Replay, Terms
from reflectrl.lm.adapters import add_lora
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.reuse import prefix_cache_for
from reflectrl.lm.section import LoraSection
from reflectrl.lm.seeding import seeded
from reflectrl.lm.writer import LMReflector
from reflectrl.training.checkpoints import last_checkpoint

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS has no deterministic matrix products
CUDA = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
PROMPTS = [[policy_prompt(number, actions=2 + number % 4, past=past) for number in range(6)] for past in range(4)]
"""The prompts of each of four steps of six episodes."""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=CUDA)])
def device(request) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Select deterministic kernels; the default ones of a GPU add in varying order."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# ---- the engine ------------------------------------------------------------------------------------------------------


def played_and_scored(model, decided=None, *, reuse):
    """Return the decisions, their probabilities at play, and the log-probabilities and gradient of an update.

    The update is with the actions ``decided``, by default those of this play: rounding may change a sampled one.
    """
    model.zero_grad()
    cache = prefix_cache_for(model, MAX_LENGTH, "policy", 1024) if reuse else None
    assert (cache is not None) is reuse
    policy, views = LMPolicy(model, encoder(), prefix_cache=cache), [shown(step) for step in PROMPTS]
    decisions = [decision for step in views for decision in policy.act(step, draws(len(step)))]
    scored = torch.zeros(len(decisions), device=model.device)
    for part in policy.divide([view for step in views for view in step], decided or decisions, max_tokens=1024):
        scores = policy.score(part)
        (scores.logprobs.sum() / len(decisions)).backward()
        scored[list(part.indices)] = scores.logprobs.detach()
    assert (policy.reused > 0) is reuse
    shares = [share for decision in decisions for share in decision.choice.probabilities]
    gradient = torch.cat([weight.grad.flatten().float() for weight in model.parameters() if weight.grad is not None])
    return decisions, (torch.tensor(shares), scored.cpu(), gradient.cpu())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_slots_and_trees_compute_what_plain_rows_do(architecture, dtype, tolerance, device):
    model = language_model(architecture).to(device, dtype)
    add_choice_head(model)
    decided, plain = played_and_scored(model, reuse=False)
    _, reusing = played_and_scored(model, decided, reuse=True)
    for wanted, found in zip(plain, reusing, strict=True):
        assert float((found - wanted).norm() / wanted.norm()) < tolerance
    assert float(plain[2].norm()) > 0.01


@pytest.mark.usefixtures("deterministic")
def test_a_reflection_through_slots_is_that_of_generate(device):
    model = language_model("llama").to(device)
    cache = prefix_cache_for(model, MAX_LENGTH, "reflector")
    assert cache is not None
    prompts = [reflector_prompt(number, past=number % 3) for number in range(8)]
    for temperature in (0.0, 1.0):
        said, wanted = (
            LMReflector(
                model,
                tokenizer(),
                max_length=MAX_LENGTH,
                max_new_tokens=12,
                temperature=temperature,
                prefix_cache=kept,
            ).write(prompts, draws(8))
            for kept in (cache, None)
        )
        assert said == wanted
        assert len({utterance.text for utterance in said}) > 1


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "bf16"),
    [("cpu", False), pytest.param("cuda", False, marks=CUDA), pytest.param("cuda", True, marks=CUDA)],
    indirect=["device"],
)
def test_the_policy_learns_to_walk_to_the_target(tmp_path, bf16, device):
    done = run(
        tmp_path,
        gpt2(spread=0.1),
        lessons=[Lesson("main", 8, env={"size": 8})],
        advantage=value_head(),
        update=ppo(num_iterations=3, num_minibatches=2),
        episodes=48,
        learning_rate=5e-3,
        learning_rate_end=0.2,
        terms=Terms(entropy=EntropyBonus(0.05, 1.0)),
        save_every=100,
        bf16=bf16,
        use_cpu=device.type == "cpu",
    ).train()
    assert {weight.device.type for weight in done.weights.values()} == {device.type}
    successes = [iteration.success for iteration in done.iterations]
    assert fmean(successes[:2]) < 0.75
    assert fmean(successes[-3:]) > 0.85


@pytest.mark.slow
@pytest.mark.usefixtures("deterministic")
def test_killed_and_resumed_ends_in_the_bytes_of_never_killed(tmp_path, device):
    def training(name, **options):
        with seeded(0):
            model = add_lora(gpt2(spread=0.1), LoraSection(r=4), [])
        return run(
            tmp_path / name,
            model,
            lessons=[Lesson("main", 4, env={"size": 6})],
            layout=replace(LAYOUT, shuffle=True),
            episodes=8,
            advantage=value_head(),
            update=ppo(num_minibatches=2),
            replay=Replay(size=6, episodes=2),
            save_every=1,
            use_cpu=device.type == "cpu",
            **options,
        )

    straight = training("straight").train()
    with pytest.raises(Killed):
        training("killed", dies_after=2).train()
    again = training("killed").train(last_checkpoint(tmp_path / "killed"))
    assert again.iterations == straight.iterations[2:]
    assert again.episodes == straight.episodes[2:]
    for name, weight in straight.weights.items():
        assert torch.equal(again.weights[name], weight), name
