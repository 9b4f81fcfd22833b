"""The plain side of the engine's benchmarks computes the same as the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_prompts import nano, set_up
from engine_sides import asks, iteration, plain_reflector, policy, reflector, tree_update
from plain import PlainPolicy, PlainReflector, bucketed_update, plain_update

from reflectrl.config.training import PPO, EntropyBonus
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.writer import LMReflector
from reflectrl.rollout import rollout
from reflectrl.seats.table import reflecting
from reflectrl.training.objective import Objective

CLIPPED = Objective(PPO(epsilon=0.2), entropy=EntropyBonus(0.05, 1.0))


@pytest.fixture(scope="module")
def played():
    """A scene, its steps, and a model with distributions far from uniform."""
    short = ["env.options.horizon=8", "env.options.count=8"]
    with set_up("alfworld/nano", short, menu=100) as scene:
        episodes = scene.steps(scene.play(3, expertise=0.8))
        reader = nano(scene, episodes)
        with torch.no_grad():
            for weight in reader.model.parameters():
                if weight.dim() > 1:
                    weight *= 5
        add_choice_head(reader.model)
        yield scene, episodes, reader


def gradients(reader, update, *arguments, **options):
    """Return the loss and the gradients of an update that does not change the weights."""
    optimizer = torch.optim.SGD(reader.model.parameters(), lr=0.0)
    loss = update(reader.model, optimizer, reader.encoder, *arguments, **options)
    return loss, {name: weight.grad.clone() for name, weight in reader.model.named_parameters()}


@pytest.mark.slow
def test_all_updates_have_the_same_gradients(played):
    _, episodes, reader = played
    views = [step.policy for episode in episodes for step in episode]
    draws = [(number + 0.5) / len(views) for number in range(len(views))]
    old = iter(LMPolicy(reader.model, reader.encoder).act(views, draws))
    samples = [
        replace(step.sample, decision=replace(step.sample.decision, logprob=next(old).logprob))
        for episode in episodes
        for step in episode
    ]
    assert any(sample.advantage > 0.1 for sample in samples)

    def trees(model, optimizer, encoder, samples, *, objective):
        return tree_update(replace(reader, model=model, encoder=encoder), optimizer, samples, objective)

    wanted_loss, wanted = gradients(reader, plain_update, reader.label_ids, samples, objective=CLIPPED)
    assert max(float(gradient.abs().max()) for gradient in wanted.values()) > 1e-2
    for update, *arguments in (
        (plain_update, reader.label_ids, samples, {"rows": 4}),
        (bucketed_update, samples, {"budget": 400}),
        (trees, samples, {}),
    ):
        loss, found = gradients(reader, update, *arguments[:-1], objective=CLIPPED, **arguments[-1])
        assert loss == pytest.approx(wanted_loss, abs=1e-5)
        for name, gradient in wanted.items():
            scale = max(1.0, float(gradient.norm()))
            assert float((found[name] - gradient).abs().max()) <= 1e-5 * scale, (update.__name__, name)


@pytest.mark.slow
def test_plain_players_play_the_episodes_that_players_of_the_library_play(played):
    scene, _, reader = played
    spoken, eos = {"max_new_tokens": 6, "temperature": 1.0}, [reader.tokenizer.eos_token_id]
    plain = PlainPolicy(reader.model, reader.encoder, reader.label_ids)
    plain_speaker = PlainReflector(reader.model, reader.tokenizer, reader.encoder, ends=eos, **spoken)
    speaker = LMReflector(reader.model, reader.tokenizer, max_length=reader.model.config.n_positions, **spoken)
    found, wanted = (
        rollout(envs, scene.episodes(3), policy=player, seats=reflecting(said_by), layout=scene.layout)
        for envs, player, said_by in (
            (scene.envs(1), plain, plain_speaker),
            (scene.envs(2), LMPolicy(reader.model, reader.encoder), speaker),
        )
    )
    assert [whole.actions for whole in found] == [whole.actions for whole in wanted]
    assert [[turn.reflection for turn in whole.turns] for whole in found] == [
        [turn.reflection for turn in whole.turns] for whole in wanted
    ]


@pytest.mark.slow
def test_both_sides_play_and_learn_an_iteration_of_recorded_views(played):
    _, episodes, reader = played
    for player, speaker in (
        (PlainPolicy(reader.model, reader.encoder, reader.label_ids), plain_reflector(reader, 1.0)),
        (policy(reader), reflector(reader, 1.0)),
    ):
        learned = []
        iteration(player, speaker, learned.extend, episodes[:1])
        assert learned == [step.sample for step in episodes[0]]
    asked = reflector(reader, 0.0, cache_size=100)
    asks(asked, [episodes[0]] * 2)
    assert asked.hit_rate >= 0.5
