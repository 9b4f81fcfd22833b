"""Corrected thoughts, and the term that imitates them (GTR)."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator
from run_folders import episode
from thinkers import Thinks
from tiny import LABELS, encoder, gpt2, language_model, tokenizer
from tiny_rlft import config, value_head

from reflectrl.config.advantage import BatchMean, NoBaseline, StepGroup
from reflectrl.config.training import Lesson, RLFTSettings, Terms, ThoughtTerm
from reflectrl.core import Image, InvalidInput, Written, make_env
from reflectrl.endpoint.client import ChatClient
from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.thinking import writing_policy
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.chats import answer_text
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.turn import policy_views
from reflectrl.seats.corrector import ExpertCorrector, Informed, RemoteCorrector
from reflectrl.seats.others import RandomPolicy
from reflectrl.seats.reflector import ScriptedReflector
from reflectrl.seats.table import Seat
from reflectrl.training.batch import scored, step_samples, weighted_rewards
from reflectrl.training.collector import Collector
from reflectrl.training.config import ReflectRLConfig
from reflectrl.training.imitation import Imitation, corrections_of
from reflectrl.training.learner import copy_weights
from reflectrl.training.rlft import ReflectRLTrainer

MODES = ("thought_choice", "json")


def layout_of(mode):
    return PromptFormat(history=1, labels="letters", action_mode=mode)


def policy_of(mode, model=None, **options):
    model = language_model("gpt2") if model is None else model
    add_choice_head(model)
    given = {"max_new_tokens": 40, "temperature": 1.0, **options}
    return writing_policy(mode, LanguageModel(model, tokenizer()), encoder(), **given)


class Answers(RandomPolicy):
    """Random policy whose answers are JSON every other time, and otherwise unreadable."""

    answers = 0

    def act(self, views, draws):
        return [self._answered(decision) for decision in super().act(views, draws)]

    def _answered(self, decision):
        self.answers += 1
        text, legal = "Up.", self.answers % 2 == 0
        if legal:
            text = answer_text("json", "The target is lower.", decision.action)
        return replace(decision, choice=replace(decision.choice, written=Written(text, (1,), (0.0,), 1, legal)))


def says(text):
    """Return a corrector that always says the same sentence."""
    return ScriptedReflector(lambda _: text)


def played(mode, corrector, policy=None, count=3):
    env = NumberLine(size=5)
    episodes = [Episode(task, seed) for seed, task in enumerate(env.tasks("train")[:count])]
    seats = [Seat("corrector", corrector)]
    return rollout([env], episodes, policy=policy or policy_of(mode), seats=seats, layout=layout_of(mode))


def arguments(tmp_path, **options):
    return ReflectRLConfig(output_dir=str(tmp_path), use_cpu=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_thoughts_of_legal_steps_are_imitated(mode):
    policy = policy_of(mode)
    episodes = played(mode, says("The target is higher."), Answers() if mode == "json" else policy)
    views = [view for each in episodes for view in policy_views(each, layout_of(mode))]
    turns = [turn for each in episodes for turn in each.turns]
    found = corrections_of(episodes, layout_of(mode))
    legal = [(v, t) for v, t in zip(views, turns, strict=True) if t.decision.choice.legal]
    assert 0 < len(legal) == len(turns) // (2 if mode == "json" else 1)
    assert [each.prompt for each in found] == [view.prompt for view, _ in legal]
    for row, (_, turn) in zip(found, legal, strict=True):
        prompt, text, scored = policy.to_imitate(row.prompt, row.thought, row.action)
        assert prompt == encoder().tokens(row.prompt, 60)
        learned, rest = (tokenizer().decode(ids, skip_special_tokens=True) for ids in (text[:scored], text[scored:]))
        assert (learned, rest) == {
            "thought_choice": (" The target is higher.", ""),
            "json": (' {"thoughts": "The target is higher.", ', f'"action": "{turn.decision.action}"}}'),
        }[mode]


@pytest.mark.slow
def test_right_missing_and_illegal_thoughts_are_not_imitated():
    mode = "thought_choice"
    assert corrections_of(played(mode, says("")), layout_of(mode)) == []
    [first, *_] = played(mode, says("Up."))
    (turn, *_) = first.turns
    written = turn.decision.choice.written

    def changed(**how):
        choice = replace(turn.decision.choice, written=replace(written, **how))
        return replace(first, turns=(replace(turn, decision=replace(turn.decision, choice=choice)),))

    assert corrections_of([changed(text=" Up. ")], layout_of(mode)) == []
    assert corrections_of([changed(legal=False)], layout_of(mode)) == []
    assert len(corrections_of([changed(text="Down.")], layout_of(mode))) == 1


def test_the_expert_corrects_what_differs_from_its_own_words():
    said = {
        (turn.observation.text, turn.said["corrector"].text)
        for each in played("thought_choice", ExpertCorrector(), Thinks(" The target is  higher. "), count=6)
        for turn in each.turns[:1]
    }
    for text, correction in said:
        start, target = (int(number) for number in text.strip(".").replace("Number ", "").split(", target "))
        assert correction == ("" if start < target else "The target is lower.")
    assert len({correction for _, correction in said}) == 2


@pytest.mark.slow
def test_the_imitation_loss_is_that_of_the_thoughts_tokens(tmp_path):
    mode, model = "json", language_model("gpt2")
    policy = policy_of(mode, model)
    imitation = Imitation(ThoughtTerm(coef=0.5), policy, layout_of(mode))
    episodes = played("thought_choice", says("Up."), policy_of("thought_choice", model))
    imitation.add(episodes)
    assert imitation.steps == sum(len(each.turns) for each in episodes) == len(imitation.corrections)
    imitation.corrections = imitation.corrections[:1]
    [row] = imitation.corrections
    prompt, text, scored = policy.to_imitate(row.prompt, row.thought, row.action)
    with torch.no_grad():
        logprobs = model(input_ids=torch.tensor([[*prompt, *text]])).logits[0].log_softmax(-1)
    expected = -sum(logprobs[len(prompt) - 1 + at, text[at]].item() for at in range(scored)) / scored
    args, seen = arguments(tmp_path), []
    hook = model.lm_head.register_forward_hook(lambda *call: seen.append(call[-1]) or call[-1].retain_grad())
    [loss] = imitation.losses(model, args, Accelerator(cpu=True), 0, 8)
    assert loss.item() == pytest.approx(0.5 * expected, abs=1e-5)
    loss.backward()
    hook.remove()
    assert (seen[0].grad[0].abs().amax(-1) > 0).tolist() == [True] * scored  # no other place has logits
    falling = Imitation(ThoughtTerm(coef=0.5, coef_end=0.0), policy, layout_of(mode))
    falling.corrections = imitation.corrections
    updates, here = [args.total_updates * at // 4 for at in range(5)], Accelerator(cpu=True)
    parts = [loss.item() for at in updates for loss in falling.losses(model, args, here, at, 8)]
    assert parts == pytest.approx([0.5 * expected * (1 - at / 4) for at in range(5)], abs=1e-5)


def test_corrections_are_kept_and_drawn_as_the_term_says(tmp_path):
    mode = "thought_choice"
    policy, episodes = policy_of(mode), played(mode, says("Up."))
    everything, latest = (
        Imitation(ThoughtTerm(aggregate=which), policy, layout_of(mode)) for which in ("all", "latest")
    )
    for imitation in (everything, latest):
        for each in episodes:
            imitation.add([each])
    assert len(everything.corrections) == sum(len(each.turns) for each in episodes)
    assert latest.corrections == corrections_of(episodes[-1:], layout_of(mode))
    restored = Imitation(ThoughtTerm(), policy, layout_of(mode))
    first = everything.corrections[0]
    everything.corrections[0] = replace(first, prompt=replace(first.prompt, images=(Image(b"a picture"),)))
    path = tmp_path / "state.json"
    restored.restore(json.loads(json.dumps(everything.state(path))), path)
    assert (restored.corrections, restored.steps) == (everything.corrections, everything.steps)
    everything.steps *= 10  # a tenth of the steps were corrected
    every_step = Imitation(ThoughtTerm(sample="all"), policy, layout_of(mode))
    every_step.restore(everything.state(path), path)
    drawn = [len(every_step._drawn(10, random.Random(seed))) for seed in range(200)]
    assert 0.5 < sum(drawn) / len(drawn) < 1.5
    assert len(everything._drawn(10**6, random.Random(0))) == len(everything.corrections)
    imitation = Imitation(ThoughtTerm(), policy, layout_of(mode))
    assert list(imitation.losses(None, arguments(tmp_path), Accelerator(cpu=True), 0, 8)) == []


def test_steps_can_be_drawn_from_the_latest_iteration_alone():
    mode = "thought_choice"
    imitation = Imitation(ThoughtTerm(aggregate="latest", sample="all"), policy_of(mode), layout_of(mode))
    for each in played(mode, says("Up."), Thinks("Down.")):
        imitation.add([each])  # every step is corrected
    assert [len(imitation._drawn(1, random.Random(seed))) for seed in range(50)] == [1] * 50


def trainer_of(folder, term=None, seats=(), **options):
    """Return a trainer of a policy that writes thoughts, and its model."""
    terms = replace(options.pop("terms", Terms(entropy=None)), sft_thought=term)
    args = config(folder, max_completion_length=8, terms=terms, **options)
    layout, model = layout_of("thought_choice"), gpt2(spread=0.1)
    return model, ReflectRLTrainer(model, args, tokenizer(), env=NumberLine, seats=seats, layout=layout, labels=LABELS)


@pytest.mark.slow
def test_g2_with_nothing_to_correct_a_run_is_that_without_a_corrector(tmp_path):
    plain, trainer = trainer_of(tmp_path / "rl4vlm")
    trainer.train()
    for words, same in (("", True), ("Up.", False)):
        seat = Seat("corrector", says(words))
        corrected, trainer = trainer_of(tmp_path / f"gtr{words}", ThoughtTerm(), [seat])
        trainer.train()
        assert (trainer.imitation.corrections == []) == same
        pairs = zip(plain.state_dict().values(), corrected.state_dict().values(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs) == same


def reported(folder, term=None, *seats, **options):
    """Return the metrics of each of two iterations, and their episodes."""
    _, trainer = trainer_of(folder, term, seats, **options)
    lines = []
    trainer._on_iteration = lambda done, fresh: lines.append((done, fresh))
    trainer.train()
    return lines


@pytest.mark.slow
def test_the_reported_loss_includes_imitation(tmp_path):
    corrector = Seat("corrector", says("Up."))
    losses = {}
    for coef in (0.0, 1.0, 2.0):
        [(done, fresh), _] = reported(tmp_path / str(coef), ThoughtTerm(coef=coef), corrector)
        losses[coef] = done.loss
        assert (done.imitated, done.imitated_too_long) == (sum(len(each.turns) for each in fresh), 0)
    [(plain, _), _] = reported(tmp_path / "without")
    assert losses[0.0] == pytest.approx(plain.loss)
    assert (plain.imitated, plain.imitated_too_long) == (None, None)
    assert losses[1.0] - losses[0.0] > 1  # nats a token of a model that knows nothing
    assert losses[2.0] - losses[0.0] == pytest.approx(2 * (losses[1.0] - losses[0.0]))


@pytest.mark.parametrize(("aggregate", "kept"), [("all", 3), ("latest", 1)])
def test_g4_corrections_of_all_iterations_or_of_the_last(aggregate, kept, tmp_path):
    corrector = Seat("corrector", says("Up."))
    term, lessons = ThoughtTerm(aggregate=aggregate), [Lesson("main", 3, env={"size": 6})]
    _, trainer = trainer_of(tmp_path, term, [corrector], lessons=lessons)
    rounds = []
    trainer._on_iteration = lambda _, fresh: rounds.append(corrections_of(fresh, trainer.layout))
    trainer.train()
    assert len(rounds) == 3
    assert trainer.imitation.corrections == [each for fresh in rounds[-kept:] for each in fresh]
    drawn = trainer.imitation._drawn(len(trainer.imitation.corrections), random.Random(0))
    assert (rounds[0][0] in drawn) == (aggregate == "all")


def test_corrections_that_are_too_long_are_left_out_and_counted(tmp_path):
    corrector = Seat("corrector", says("Number 1, target 2. " * 20))
    for done, _ in reported(tmp_path, ThoughtTerm(), corrector):
        assert done.imitated == 0
        assert done.imitated_too_long > 0
        assert math.isfinite(done.loss)


def test_texts_that_the_limit_cut_off_are_counted(tmp_path):
    end = tokenizer().eos_token_id
    [(short, fresh), _] = reported(tmp_path)
    ids = [turn.decision.choice.written.ids for each in fresh for turn in each.turns]
    assert short.thought_truncated == sum(text[-1] != end for text in ids) / len(ids) > 0.5
    assert all(len(text) == 8 for text in ids if text[-1] != end)


def test_a_useless_corrector_is_counted(endpoint, tmp_path):
    """G6: bounded attempts, counted, no NaN."""
    endpoint.reply = lambda _: "no idea"
    corrector = RemoteCorrector(ChatClient(endpoint.at(max_attempts=2, max_rejected=1000), skip_failures=True))
    seat = Seat("corrector", Informed(corrector))
    [(plain, _), _] = reported(tmp_path / "without")
    [(done, fresh), (other, _)] = reported(tmp_path / "garbage", ThoughtTerm(), seat)
    assert (done.corrector_invalid, other.corrector_invalid, plain.corrector_invalid) == (1, 1, None)
    assert (done.thought_corrected, done.imitated, done.loss) == (0, 0, pytest.approx(plain.loss))
    asked = sum(bool(turn.decision.choice.written.text.split()) for each in fresh for turn in each.turns)
    assert 0 < corrector.misses[1] == corrector.misses[0]
    assert corrector.misses[0] >= asked
    assert len(endpoint.requests) <= 2 * corrector.misses[0]


def test_a_policy_that_writes_nothing_cannot_imitate_thoughts():
    model = language_model("gpt2")
    add_choice_head(model)
    with pytest.raises(InvalidInput, match=r"terms\.sft_thought .* writes no thoughts"):
        Imitation(ThoughtTerm(), LMPolicy(model, encoder()), PromptFormat())


def paid(*env):
    """Return an episode of three steps with these rewards, valued at 0.25 each; the second lacks the format."""
    (turn,) = episode().turns
    turn = replace(turn, decision=replace(turn.decision, value=0.25))
    rewards = [{"env": each, "format": form} for each, form in zip(env, (1.0, 0.0, 1.0), strict=True)]
    return replace(episode(), turns=tuple(replace(turn, rewards=each) for each in rewards))


@pytest.mark.parametrize(
    ("apart", "advantage", "advantages", "returns"),
    [
        (False, NoBaseline(normalize=False), [6.5, 3.0, 6.0], [6.5, 3.0, 6.0]),
        (True, NoBaseline(normalize=False), [5.25, 0.5, 6.0], [5.25, 0.5, 6.0]),
        (True, value_head(normalize=False), [5.0, 0.25, 5.75], [5.25, 0.5, 6.0]),
    ],
)
def test_the_format_reward_is_credited_as_configured(apart, advantage, advantages, returns):
    options = {"rewards": {"env": 1.0, "format": 5.0}, "format_into_return": apart, "gamma": 0.5}
    samples = step_samples([paid(0.0, 0.0, 1.0)], PromptFormat(), RLFTSettings(advantage=advantage, **options))
    assert [sample.advantage for sample in samples] == pytest.approx(advantages)
    assert [sample.target for sample in samples] == pytest.approx(returns)


@pytest.mark.parametrize("estimator", [BatchMean, StepGroup])
def test_the_format_reward_of_a_step_counts_once(estimator):
    options = {"rewards": {"env": 1.0, "format": 2.0}, "format_into_return": True, "episodes_per_task": 2}
    settings = RLFTSettings(advantage=estimator(normalize=False), **options)
    found = [sample.advantage for sample in step_samples([paid(0.0, 0.0, 0.0)], PromptFormat(), settings)]
    assert found == pytest.approx([2 / 3, -4 / 3, 2 / 3])


def test_an_illegal_text_is_paid_its_penalty():
    (turn,) = episode().turns
    values = [{"env": 1.0, "format": 1.0}, {"env": 0.5, "format": 0.0}]
    both = replace(episode(), turns=tuple(replace(turn, rewards=each) for each in values))
    assert weighted_rewards(both, {"env": 1.0, "illegal": -1.0}) == [1.0, -0.5]
    silent = replace(both, turns=(replace(turn, rewards={"env": 1.0}),))
    assert [scored(each, {"env": 1.0, "illegal": -1.0}) for each in (both, silent)] == [True, False]


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_the_thought_has_its_weight_in_loss_and_ratio_and_all_of_it_in_the_kl(weight, tmp_path):
    _, trainer = trainer_of(tmp_path, thought_lambda=weight)
    layout, policy = layout_of("thought_choice"), trainer.policy
    samples = step_samples(played("thought_choice", says(""), policy), layout, RLFTSettings(advantage=NoBaseline()))
    [part] = policy.divide([each.view for each in samples], [each.decision for each in samples], max_tokens=10_000)
    samples, scores = [samples[index] for index in part.indices], policy.score(part)
    logprobs = (scores.logprobs + weight * scores.thought_logprobs).tolist()
    expected = -sum(each.advantage * logprob for each, logprob in zip(samples, logprobs, strict=True))
    loss = trainer.minibatch_loss(samples, scores)
    assert (loss.total.item(), loss.kl.item()) == pytest.approx((expected, 0), abs=1e-4)
    assert max(trainer._measures.gaps) < 1e-4
    likelier = replace(scores, thought_logprobs=scores.thought_logprobs + 1)  # each thought, by a factor of e
    expected = len(samples) * (math.e - 2)
    assert trainer.minibatch_loss(samples, likelier).kl.item() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("mode", ["enumerated", *MODES])
def test_before_an_update_every_ratio_is_one(mode):
    model, env, layout = (
        language_model("gpt2", max_position_embeddings=256),
        make_env("gym_cards:ez_points"),
        layout_of(mode),
    )
    add_choice_head(model)
    options = {"max_new_tokens": 8, "temperature": 0.7}
    lm, reader = LanguageModel(model, tokenizer()), encoder(256)
    policy = LMPolicy(model, reader) if mode == "enumerated" else writing_policy(mode, lm, reader, **options)
    episodes = [Episode(task, seed) for seed, task in enumerate(env.tasks("train")[:3])]
    samples = step_samples(rollout([env], episodes, policy=policy, seats=(), layout=layout), layout, RLFTSettings())
    views, decisions = [each.view for each in samples], [each.decision for each in samples]
    assert len({view.prompt.text for view in views}) == len(views) > 3

    def ratios(views):
        found = torch.zeros(len(views))
        for part in policy.divide(views, decisions, max_tokens=2000):
            scores = policy.score(part)
            found[list(part.indices)] = (scores.logprobs + 0.5 * scores.thought_logprobs).detach()
        return (found - torch.tensor([each.joint_logprob(0.5) for each in decisions])).exp()

    assert (ratios(views) - 1).abs().max() < 1e-4
    first = [replace(view, prompt=replace(views[0].prompt, menu=view.prompt.menu)) for view in views]
    assert (ratios(first) - 1).abs().max() > 0.1


def test_the_kl_term_compares_labels_after_the_thought_that_was_written():
    model = language_model("gpt2")
    policy = policy_of("thought_choice", model)
    episodes = played("thought_choice", ExpertCorrector(), policy)
    samples = step_samples(episodes, layout_of("thought_choice"), RLFTSettings())
    collector = Collector("number_line", policy, model, [], layout_of("thought_choice"), 1)
    for sample in collector.with_reference(samples, copy_weights(model), max_tokens=2048):
        assert sample.reference == pytest.approx(
            [math.log(each) for each in sample.decision.choice.probabilities], abs=1e-4
        )
