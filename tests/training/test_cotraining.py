"""Both players are trained by the same advantages: two adapters on one base."""

from __future__ import annotations

import pytest
import torch
from tiny import LAYOUT, gpt2
from tiny_rlft import Killed, Run, run

from reflectrl.config.model import LoraSection
from reflectrl.config.rlft import Stage
from reflectrl.core import InvalidInput
from reflectrl.models.adapters import add_lora
from reflectrl.models.load import LanguageModel
from reflectrl.models.reflecting import ACTING, REFLECTING, add_reflector
from reflectrl.training.checkpoints import last_checkpoint

OPTIONS = {
    "reflector": None,
    "episodes": 8,
    "stages": [Stage("main", 4, env={"size": 6})],
    "baseline": "value",
    "num_iterations": 2,
    "num_minibatches": 2,
    "epsilon": 0.2,
    "max_completion_length": 6,
    "save_every": 2,
}


def two_players(folder, seed=0):
    """A model whose base and adapters are always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for role in ("reflector", "policy"):
            model = add_lora(gpt2(spread=0.1), LoraSection(r=4), [])
            if role == "reflector":
                model.save_pretrained(str(folder / role), save_embedding_layers=False)
        add_reflector(LanguageModel(model, None), folder / "reflector")
    return model


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("straight")
    return run(folder, two_players(folder), **OPTIONS).train()


def test_before_the_first_update_all_ratios_are_one_and_each_player_then_moves(straight):
    for iteration in straight.iterations:
        assert iteration.logprob_gap < 1e-5
        assert min(iteration.thought_kl, iteration.action_kl) > 0
        assert 0 < iteration.thought_tokens <= 6


def test_both_adapters_learn_and_their_base_does_not(straight, tmp_path):
    before = two_players(tmp_path).state_dict()
    changed = {name for name, weight in before.items() if not torch.equal(weight, straight.weights[name])}
    assert all("lora_" in name for name in changed)
    assert {name.split(".")[-2] for name in changed} == {ACTING, REFLECTING}


def test_a_killed_training_goes_on_as_if_it_had_not_stopped(straight, tmp_path):
    killed = run(tmp_path, two_players(tmp_path), **OPTIONS, dies_after=2)
    with pytest.raises(Killed):
        killed.train()
    # other adapters: all that counts is in the checkpoint
    again = run(tmp_path, two_players(tmp_path, seed=1), **OPTIONS).train(last_checkpoint(tmp_path))
    assert [*killed.iterations[:2], *again.iterations] == straight.iterations
    assert again.episodes == straight.episodes[2:]
    assert all(torch.equal(weight, straight.weights[name]) for name, weight in again.weights.items() if "lora_" in name)


@pytest.mark.parametrize(
    ("options", "need"),
    [({"kl": 0.1}, "terms without kl"), ({"layout": "thought_choice"}, "not thought_choice")],
)
def test_what_knows_nothing_of_a_trained_reflector_is_refused(options, need, tmp_path):
    if "layout" in options:
        options = {"layout": LAYOUT.__class__(history=3, labels="letters", action_mode="thought_choice")}
    with pytest.raises(InvalidInput, match=need):
        run(tmp_path, two_players(tmp_path), **{**OPTIONS, **options})
