"""The plain side of the engine's benchmarks computes what the engine must."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_prompts import NANO, ends, made_up_actions, nano, set_up, with_menu, without_menu
from plain import (
    PlainPolicy,
    PlainReflector,
    ScoringPolicy,
    bucketed_update,
    buckets,
    padded_update,
    plain_update,
    score_actions,
)

from reflectrl.engine.head import add_choice_head
from reflectrl.models.encode import action_distribution
from reflectrl.models.policy import LMPolicy
from reflectrl.models.reflector import LMReflector
from reflectrl.rollout import rollout
from reflectrl.training.objective import Objective

PPO = Objective(epsilon=0.2, entropy_coef=0.05, value_coef=0.0)


@pytest.fixture(scope="module", params=NANO)
def played(request):
    """A scene, its steps, and a model that is far from uniform."""
    short = ["env.options.horizon=8", *(["env.options.count=8"] if request.param.startswith("alfworld") else [])]
    with set_up(request.param, short, menu=100) as scene:
        episodes = scene.steps(scene.play(3, expertise=0.8))
        reader = nano(scene, episodes)
        with torch.no_grad():
            for weight in reader.model.parameters():
                if weight.dim() > 1:
                    weight *= 5
        add_choice_head(reader.model)
        yield scene, episodes, reader


def policies(episodes):
    return [step.policy for episode in episodes for step in episode]


def draws(prompts):
    return [(number + 0.5) / len(prompts) for number in range(len(prompts))]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_plain_policy_plays_from_the_distribution_of_the_choice_head(played, batch_size):
    _, episodes, reader = played
    prompts = policies(episodes)
    plain = PlainPolicy(reader.model, reader.encoder, reader.label_ids, batch_size=batch_size)
    decisions = plain.act(prompts, draws(prompts))
    with torch.no_grad():
        wanted, _ = action_distribution(reader.model, reader.encoder.batch(prompts, reader.model.device))
    for decision, row in zip(decisions, wanted.probs, strict=True):
        assert decision.probabilities == pytest.approx(row[: len(decision.probabilities)].tolist(), abs=1e-5)
    assert any(max(decision.probabilities) > 2 / len(decision.probabilities) for decision in decisions), "not uniform"
    ours = LMPolicy(reader.model, reader.encoder).act(prompts, draws(prompts))
    assert [decision.index for decision in decisions] == [decision.index for decision in ours]
    assert [d.logprob for d in decisions] == pytest.approx([d.logprob for d in ours], abs=1e-4)


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("number", [20, 100])
def test_scores_are_those_of_a_loop_over_actions_and_tokens(played, number, batch_size):
    _, episodes, reader = played
    prompt = [*reader.encoder.tokens(without_menu(policies(episodes)[0]))]
    actions = [list(reader.tokenizer(action)["input_ids"]) for action in made_up_actions(episodes, number)]
    assert len({len(ids) for ids in actions}) > 1, "padding matters"
    with torch.no_grad():
        scores = score_actions(reader.model, prompt, actions, batch_size=batch_size)
        for ids, score in list(zip(actions, scores.tolist(), strict=True))[:6]:
            logprobs = reader.model(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)
            by_hand = [float(logprobs[len(prompt) + at - 1, token]) for at, token in enumerate(ids)]
            assert score == pytest.approx(sum(by_hand) / len(ids), abs=1e-4)


def test_a_scoring_policy_plays_in_proportion_to_its_scores(played):
    scene, episodes, reader = played
    prompt = with_menu(policies(episodes)[0], scene.layout, actions := made_up_actions(episodes, 20))
    decisions = ScoringPolicy(reader.model, reader.tokenizer, reader.encoder).act([prompt] * 5, draws([prompt] * 5))
    with torch.no_grad():
        ids = [list(reader.tokenizer(action)["input_ids"]) for action in actions]
        wanted = score_actions(reader.model, reader.encoder.tokens(without_menu(prompt)), ids).softmax(-1)
    assert decisions[0].probabilities == pytest.approx(wanted.tolist(), abs=1e-5)
    assert sorted(decision.index for decision in decisions) == [decision.index for decision in decisions]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_plain_reflector_says_what_the_local_one_says(played, temperature):
    _, episodes, reader = played
    prompts = [step.reflector for episode in episodes for step in episode][:5]
    options = {"max_new_tokens": 12, "temperature": temperature}
    local = LMReflector(reader.model, reader.tokenizer, max_length=reader.model.config.n_positions, **options)
    wanted = [said.text for said in local.write(prompts, draws(prompts))]
    for batch_size in (1, 4):
        plain = PlainReflector(
            *(reader.model, reader.tokenizer, reader.encoder),
            ends=[reader.tokenizer.eos_token_id],
            batch_size=batch_size,
            **options,
        )
        assert [said.text for said in plain.reflect(prompts, draws(prompts))] == wanted


def test_replies_of_a_random_model_end_raggedly(played):
    _, episodes, reader = played
    prompts = [step.reflector for episode in episodes for step in episode][:8]
    stops = ends(len(reader.tokenizer), reader.tokenizer.eos_token_id, share=0.1)
    plain = PlainReflector(
        *(reader.model, reader.tokenizer, reader.encoder), ends=stops, max_new_tokens=30, temperature=1.0, batch_size=8
    )
    tokens = [said.tokens for said in plain.reflect(prompts, draws(prompts))]
    assert len(set(tokens)) > 3
    assert min(tokens) < 30


def gradients(reader, update, *arguments, **options):
    """Loss and gradients of an update that leaves the weights alone."""
    optimizer = torch.optim.SGD(reader.model.parameters(), lr=0.0)
    loss = update(reader.model, optimizer, reader.encoder, *arguments, **options)
    return loss, {name: weight.grad.clone() for name, weight in reader.model.named_parameters()}


def test_all_updates_have_the_same_gradients(played):
    _, episodes, reader = played
    prompts = policies(episodes)
    old = iter(LMPolicy(reader.model, reader.encoder).act(prompts, draws(prompts)))
    each = [[replace(step.sample, old_logprob=next(old).logprob) for step in episode] for episode in episodes]
    samples = [sample for episode in each for sample in episode]
    assert any(sample.advantage > 0.1 for sample in samples)
    wanted_loss, wanted = gradients(reader, plain_update, reader.label_ids, samples, objective=PPO)
    assert max(float(gradient.abs().max()) for gradient in wanted.values()) > 1e-2
    for update, *arguments in (
        (plain_update, reader.label_ids, samples, {"rows": 4}),
        (bucketed_update, samples, {"budget": 400}),
        (padded_update, each, {}),
    ):
        loss, found = gradients(reader, update, *arguments[:-1], objective=PPO, **arguments[-1])
        assert loss == pytest.approx(wanted_loss, abs=1e-5)
        for name, gradient in wanted.items():
            scale = max(1.0, float(gradient.norm()))
            assert float((found[name] - gradient).abs().max()) <= 1e-5 * scale, (update.__name__, name)


def test_buckets_keep_every_step_within_their_budget(played):
    _, episodes, reader = played
    samples = [step.sample for episode in episodes for step in episode]
    parts = list(buckets(reader.encoder, samples, 300))
    widths = [[len(reader.encoder.tokens(sample.prompt)) for sample in part] for part in parts]
    assert sorted(map(id, samples)) == sorted(id(sample) for part in parts for sample in part)
    assert all(len(width) * max(width) <= 300 for width in widths)
    assert [length for width in widths for length in width] == sorted(length for width in widths for length in width)
    assert [len(part) for part in buckets(reader.encoder, samples, 1)] == [1] * len(samples)


def test_plain_players_play_the_episodes_that_players_of_the_library_play(played):
    scene, _, reader = played
    episodes = scene.episodes(3)
    spoken = {"max_new_tokens": 6, "temperature": 1.0}
    eos = [reader.tokenizer.eos_token_id]
    envs = scene.envs(2)
    found = rollout(
        envs[:1],
        episodes,
        policy=PlainPolicy(reader.model, reader.encoder, reader.label_ids),
        reflector=PlainReflector(reader.model, reader.tokenizer, reader.encoder, ends=eos, **spoken),
        layout=scene.layout,
    )
    wanted = rollout(
        envs,
        episodes,
        policy=LMPolicy(reader.model, reader.encoder),
        reflector=LMReflector(reader.model, reader.tokenizer, max_length=reader.model.config.n_positions, **spoken),
        layout=scene.layout,
    )
    assert [whole.actions for whole in found] == [whole.actions for whole in wanted]
    assert [[turn.reflection for turn in whole.turns] for whole in found] == [
        [turn.reflection for turn in whole.turns] for whole in wanted
    ]
