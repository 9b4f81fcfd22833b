"""Both players, as two adapters on one base, are trained with the same advantages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import LABELS, LAYOUT, encoder, gpt2, tokenizer
from tiny_rlft import Killed, Run, ppo, run, value_head

from reflectrl.config.training import Lesson, Term, Terms
from reflectrl.core import InvalidInput
from reflectrl.lm.adapters import add_lora
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.reflecting import ACTING, REFLECTING, add_reflector
from reflectrl.lm.section import LoraSection
from reflectrl.lm.tokenizer import label_ids
from reflectrl.prompts.format import AFTER_THOUGHT, before_reflection, with_reflection
from reflectrl.rollout.turn import policy_views
from reflectrl.training.checkpoints import last_checkpoint

OPTIONS = {
    "reflector": None,
    "episodes": 8,
    "lessons": [Lesson("main", 4, env={"size": 6})],
    "advantage": value_head(),
    "update": ppo(num_iterations=2, num_minibatches=2),
    "max_reflection_length": 6,
    "reflection_temperature": 0.8,
    "save_every": 2,
}


def two_players(folder, seed=0):
    """Return a model with a base and adapters that depend on the seed only."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for role in ("reflector", "policy"):
            model = add_lora(gpt2(spread=0.1), LoraSection(r=4), [])
            if role == "reflector":
                model.save_pretrained(str(folder / role), save_embedding_layers=False)
        add_reflector(LanguageModel(model, None), folder / "reflector")
    return model


def options_of(mode):
    """Return options with the layout of a mode; only a policy that thinks has a length of its thoughts."""
    return {
        **OPTIONS,
        "layout": replace(LAYOUT, action_mode=mode),
        **({} if mode == "enumerated" else {"max_completion_length": 5}),
    }


@pytest.fixture(scope="module", params=["enumerated", "thought_choice"])
def straight(request, tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("straight")
    return run(folder, two_players(folder), **options_of(request.param)).train()


@pytest.mark.slow
def test_ratios_begin_at_one_and_each_player_moves(straight):
    for iteration in straight.iterations:
        assert iteration.logprob_gap < 1e-5
        assert min(iteration.thought_kl, iteration.action_kl) > 0
        thinks = straight.trainer.layout.action_mode == "thought_choice"
        assert 6 * thinks < iteration.thought_tokens <= 6 + 5 * thinks


def test_texts_and_labels_are_scored_by_their_own_adapter(straight):
    layout, model, policy = straight.trainer.layout, straight.model, straight.trainer.policy
    thinks, end, known = layout.action_mode == "thought_choice", tokenizer().eos_token_id, encoder()
    views = [view for episode in straight.episodes[0] for view in policy_views(episode, layout)] * 20
    pairs = [*zip(views, policy.act(views, [at / len(views) for at in range(len(views))]), strict=True)]
    short = [each for each in pairs if end in each[1].choice.written.ids[:5]]
    assert short
    for view, decision in (*short[:3], *pairs[:3]):
        written, menu = decision.choice.written, view.menu
        split = written.ids.index(end) + 1 if end in written.ids[:6] else 6
        words = tokenizer().decode(written.ids[:split], skip_special_tokens=True)
        asked = known.all_tokens([before_reflection(view.prompt), with_reflection(view.prompt, words)])
        texts = (written.ids[:split], written.ids[split:])
        reflected, thought = (
            logits_of(model, adapter, prompt, text)[-len(text) - 1 : -1] / temperature
            for adapter, prompt, text, temperature in zip((REFLECTING, ACTING), asked, texts, (0.8, 1.0), strict=True)
        )
        found = torch.cat([reflected, thought]).log_softmax(-1).gather(1, torch.tensor(written.ids)[:, None])[:, 0]
        assert found.tolist() == pytest.approx(written.logprobs, abs=1e-5)
        before = (
            *(token for token in texts[1] if token != end),
            *(known.continuation(AFTER_THOUGHT) if thinks else ()),
        )
        labels = logits_of(model, ACTING, asked[1], before)[-1, label_ids(tokenizer(), LABELS)[: len(menu.actions)]]
        assert labels.log_softmax(-1)[decision.choice.index].item() == pytest.approx(decision.logprob, abs=1e-5)


def logits_of(model, adapter, *texts):
    model.set_adapter(adapter)
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor([[token for text in texts for token in text]])).logits[0]


def test_both_adapters_learn_and_their_base_does_not(straight, tmp_path):
    before = two_players(tmp_path).state_dict()
    changed = {name for name, weight in before.items() if not torch.equal(weight, straight.weights[name])}
    assert all("lora_" in name for name in changed)
    assert {name.split(".")[-2] for name in changed} == {ACTING, REFLECTING}


@pytest.mark.slow
def test_a_killed_training_goes_on_as_if_it_had_not_stopped(straight, tmp_path):
    options = options_of(straight.trainer.layout.action_mode)
    killed = run(tmp_path, two_players(tmp_path), **options, dies_after=2)
    with pytest.raises(Killed):
        killed.train()
    # other adapters: all that counts is in the checkpoint
    again = run(tmp_path, two_players(tmp_path, seed=1), **options).train(last_checkpoint(tmp_path))
    assert [*killed.iterations[:2], *again.iterations] == straight.iterations
    assert again.episodes == straight.episodes[2:]
    assert all(torch.equal(weight, straight.weights[name]) for name, weight in again.weights.items() if "lora_" in name)


@pytest.mark.parametrize(
    ("options", "need"),
    [({"terms": Terms(kl=Term(0.1))}, "terms without kl"), (options_of("json"), "enumerated or thought_choice")],
)
def test_what_knows_nothing_of_a_trained_reflector_is_refused(options, need, tmp_path):
    with pytest.raises(InvalidInput, match=need):
        run(tmp_path, two_players(tmp_path), **{**OPTIONS, **options})
