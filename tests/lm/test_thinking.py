from __future__ import annotations

from collections import Counter

import pytest
import torch
from records import shown
from tiny import (
    ACTIONS,
    GENERATION,
    asking_for,
    draws,
    encoder,
    gpt2,
    history,
    language_model,
    policy_prompt,
    prefix_cache,
    shaken,
    tokenizer,
)
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE, Unigram, WordLevel
from transformers import PreTrainedTokenizerFast

from reflectrl.core import Observation, Written
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.sequences import make_tree
from reflectrl.lm.thinking import TextPolicy, token_at, writing_policy
from reflectrl.prompts import Menu, PromptFormat
from reflectrl.prompts.chats import answer_text, index_of, read_answer
from reflectrl.prompts.format import AFTER_THOUGHT, THOUGHTS, WRITTEN_ACTIONS, History
from reflectrl.seats.others import RandomPolicy
from reflectrl.seats.table import POLICY

MODES = ("thought_choice", "json", "text", "thought_text")
PROMPTS = [policy_prompt(number, actions=2 + number % 3, past=number % 3) for number in range(6)]


def policy_of(mode, model, *, temperature=0.2, max_new_tokens=9, **options):
    lm = LanguageModel(model, tokenizer())
    return writing_policy(mode, lm, encoder(), max_new_tokens=max_new_tokens, temperature=temperature, **options)


def model_of(architecture="gpt2"):
    model = language_model(architecture)
    add_choice_head(model, value_head=True)
    return shaken(model, "value_head.weight", spread=0.1)


def scored(policy, prompts, decisions):
    """Return the (N, 3) scores of action, thought and value, in the order of the decisions."""
    found = torch.zeros(len(prompts), 3)
    for part in policy.divide(shown(prompts), decisions, max_tokens=200):
        scores = policy.score(part)
        found[list(part.indices)] = torch.stack([scores.logprobs, scores.thought_logprobs, scores.values], 1)
    return found.detach()


def played(decisions):
    return torch.tensor([(each.logprob, each.choice.written.thought_logprob, each.value) for each in decisions])


# ---- the same probability at play and in an update -------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("architecture", "held"), [("gpt2", True), ("gpt2", False), ("gemma2", True), ("cohere", True)]
)
def test_samples_are_scored_after_their_own_prompt(mode, architecture, held):
    policy = policy_of(mode, model_of(architecture), prefix_cache=prefix_cache() if held else None)
    decisions = policy.act(shown(PROMPTS), draws(6))
    assert torch.allclose(scored(policy, PROMPTS, decisions), played(decisions), atol=1e-4)
    others = [policy_prompt(number + 1, actions=2 + number % 3) for number in range(6)]
    whole = played(decisions)[:, :2].sum(1)  # of thought and action
    assert not torch.allclose(scored(policy, others, decisions)[:, :2].sum(1), whole, atol=1e-2)
    hotter = policy_of(mode, policy._model, temperature=1.0)
    assert not torch.allclose(scored(hotter, PROMPTS, decisions)[:, :2].sum(1), whole, atol=1e-2)


@pytest.mark.parametrize("mode", MODES)
def test_steps_of_an_episode_are_read_once_in_an_update(mode):
    layout = PromptFormat(action_mode=mode, history=History(12, "transitions"))
    seen = [Observation(f"Number {number}, target 9.", ACTIONS[:2]) for number in range(12)]
    past = history(12)
    prompts = [
        layout.prompt(POLICY, seen[at], past[:at], {}, layout.menu_of(seen[at]), visited=seen[:at]) for at in range(12)
    ]
    model = model_of()
    once, each = (policy_of(mode, model, prefix_cache=cache) for cache in (prefix_cache(), None))
    decisions = once.act(shown(prompts), draws(12))
    read = {}
    for policy in (once, each):
        model.zero_grad()
        [part] = policy.divide(shown(prompts), decisions, max_tokens=9999)
        scores = policy.score(part)
        found = torch.stack([scores.logprobs, scores.thought_logprobs, scores.values, scores.entropies], 1)
        found.sum().backward()
        gradient = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
        read[part.tree] = found[torch.tensor(part.indices).argsort()].detach(), gradient
        if part.tree:
            tokens = len(make_tree(part.rows).tokens)
            assert tokens < 0.6 * sum(map(len, part.rows))
    assert torch.allclose(read[True][0], read[False][0], atol=1e-5)
    assert torch.allclose(read[True][0][:, :3], played(decisions), atol=1e-4), "the ratio is 1 before an update"
    assert torch.allclose(read[True][1], read[False][1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("setting", GENERATION)
def test_generation_settings_change_no_sample(setting):
    expected = policy_of("thought_choice", model_of(), temperature=1.0).act(shown(PROMPTS), draws(6))
    for cache in (None, prefix_cache()):
        model = asking_for(model_of(), GENERATION[setting])
        policy = policy_of("thought_choice", model, temperature=1.0, prefix_cache=cache)
        decisions = policy.act(shown(PROMPTS), draws(6))
        assert torch.allclose(scored(policy, PROMPTS, decisions), played(decisions), atol=1e-4)
        assert [each.choice.written.ids for each in decisions] == [each.choice.written.ids for each in expected]
        assert vars(model.generation_config).items() >= GENERATION[setting].items()  # still the model's own


def test_lambda_weighs_the_thought_and_at_one_every_token_counts_alike():
    model = model_of()
    policy = policy_of("json", model, temperature=1.0)
    menu = PROMPTS[0].menu
    text = f" {answer_text('json', 'a b', menu.actions[1])}"
    ids = (*encoder().continuation(text), tokenizer().eos_token_id)
    start = token_at(tokenizer(), ids, text.index('"action"'))
    prompt = encoder().tokens(PROMPTS[0])
    with torch.no_grad():
        rows = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
    each = [rows[len(prompt) - 1 + at, token].item() for at, token in enumerate(ids)]
    [decision] = [policy._decided(shown(PROMPTS)[0], Written(text, ids, tuple(each), len(ids)), 0.0)]
    assert (decision.action, decision.choice.written.action_start) == (menu.actions[1], start)
    assert decision.joint_logprob(1.0) == pytest.approx(sum(each), abs=1e-5)
    assert decision.joint_logprob(0.0) == pytest.approx(sum(each[start:]), abs=1e-5)
    assert decision.joint_logprob(0.5) == pytest.approx(sum(each[start:]) + sum(each[:start]) / 2, abs=1e-5)
    [[action, thought, _]] = scored(policy, PROMPTS[:1], [decision]).tolist()
    assert (action, thought) == pytest.approx((sum(each[start:]), sum(each[:start])), abs=1e-4)


def answered(policy, prompt, thought):
    """Return the decision of a policy that writes a given thought and the second action."""
    text = f" {answer_text(policy._mode, thought, prompt.menu.actions[1])}"
    ids = (*encoder().continuation(text), tokenizer().eos_token_id)
    return policy._decided(shown([prompt])[0], Written(text, ids, (0.0,) * len(ids), len(ids)), 0.0)


def test_the_entropy_of_a_json_answer_is_that_of_its_action():
    model = model_of()
    policy = policy_of("json", model, temperature=0.7)
    decision = answered(policy, PROMPTS[0], "a b")
    written, prompt = decision.choice.written, encoder().tokens(PROMPTS[0])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *written.ids]])).logits[0, len(prompt) - 1 : -1]
    entropies = torch.distributions.Categorical(logits=logits / 0.7).entropy().tolist()
    [part] = policy.divide(shown(PROMPTS[:1]), [decision], max_tokens=200)
    assert 0 < written.action_start < len(written.ids)
    assert policy.score(part).entropies.item() == pytest.approx(sum(entropies[written.action_start :]), abs=1e-4)


@pytest.mark.parametrize("mode", THOUGHTS)
def test_without_lambda_no_gradient_reaches_what_the_thought_itself_was_drawn_from(mode):
    model = model_of()
    policy = policy_of(mode, model)
    labelled = mode == "thought_choice"
    decisions = policy.act(shown(PROMPTS[:1]), [0.3]) if labelled else [answered(policy, PROMPTS[0], "a b")]
    seen, start = [], decisions[0].choice.written.action_start

    def note(_module, _inputs, logits):
        logits.retain_grad()
        seen.append(logits)

    hook = model.lm_head.register_forward_hook(note)
    [part] = policy.divide(shown(PROMPTS[:1]), decisions, max_tokens=200)
    scores = policy.score(part)
    (scores.logprobs + 0.0 * scores.thought_logprobs).sum().backward(retain_graph=True)
    label, *rows = seen[0].grad[0].abs().amax(-1).tolist()
    assert max(rows[:start]) == 0
    assert min([label] if labelled else rows[start:]) > 0
    read = model.get_input_embeddings().weight.grad[decisions[0].choice.written.ids[0]]
    assert read.abs().max() > 0  # through attention only
    scores.thought_logprobs.sum().backward()
    assert min(seen[0].grad[0, 1 : 1 + start].abs().amax(-1).tolist()) > 0
    hook.remove()


def test_the_label_follows_the_thought_and_the_cue():
    model = gpt2(spread=0.3)
    add_choice_head(model)
    policy = policy_of("thought_choice", model, max_new_tokens=40, temperature=3.0)
    decisions = policy.act(shown(PROMPTS * 8), draws(48))
    end = tokenizer().eos_token_id
    lengths = {each.choice.written.ids[-1] == end: len(each.choice.written.ids) for each in decisions}
    assert set(lengths) == {True, False}  # some end by themselves, others at the limit
    assert lengths[False] == 40
    for prompt, decision in zip(PROMPTS * 8, decisions, strict=True):
        text = [token for token in decision.choice.written.ids if token != end]
        row = [*encoder().tokens(prompt, 40 + len(encoder().continuation(AFTER_THOUGHT))), *text]
        row += encoder().continuation(AFTER_THOUGHT)
        [[part]] = [policy.divide(shown([prompt]), [decision], max_tokens=300)]
        assert part.rows == (tuple(row),)
        assert decision.action in prompt.menu.actions
        assert sum(decision.choice.probabilities) == pytest.approx(1)


@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_is_read_once_for_value_text_and_label(mode):
    model, read = model_of(), []
    policy = policy_of(mode, model, prefix_cache=prefix_cache())
    model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: read.append(inputs[0].numel()))
    [decision] = policy.act(shown(PROMPTS[:1]), [0.3])
    assert len(decision.choice.written.ids) > 1
    assert read[0] == len(encoder().tokens(PROMPTS[0]))
    assert max(read[1:]) < read[0] / 2  # a token, or the cue


def test_greedy_play_repeats_itself_and_needs_no_draws():
    policy = policy_of("thought_choice", model_of()).greedy()
    assert policy.act(shown(PROMPTS), [0.1] * 6) == policy.act(shown(PROMPTS), [0.9] * 6)


# ---- answers in JSON -------------------------------------------------------------------------------------------------

MENU = Menu(("0", "1", "2", "3", "4"), ("go to shelf 1", "go to shelf 10", "+", "take Cup", "5"))


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"action":"+"}', "+"),
        ('{"thoughts": "x", "action": "+"}', "+"),
        ('{"thoughts": "x", "action": "+"} and more', "+"),
        ('{"thoughts": "x, "action": "go to shelf 10"', "go to shelf 10"),
        ('{"action": "I go to shelf 10 now"}', "go to shelf 10"),
        ('{"action": "  TAKE  cup "}', "take Cup"),
        ('{"action": "+", "thoughts": "again", "action": "go to shelf 1"}', "go to shelf 1"),
        ('{"thoughts": "say \\"action\\": \\"+\\"", "action": "take cup"}', "take Cup"),
        ('{"action": "go to shelf 1 or go to shelf 10"}', None),
        ('{"action": "go to shelf 11"}', None),
        ('{"action": "15"}', None),
        ('{"action": "I write 5."}', "5"),
        ('{"action": "5+"}', None),
        ('{"action": "+5"}', None),
        ('{"action": "++"}', "+"),
        ('{"action": 3}', None),
        ('{"thoughts": "+"}', None),
        ("", None),
    ],
)
def test_an_answer_names_one_legal_action_or_none(text, action):
    answer = read_answer(text, "json")
    named = index_of(answer.action, MENU, "json")
    assert (None if named is None else MENU.actions[named]) == action
    assert text[answer.action_start :].startswith('"action"') or answer.action_start == len(text)


@pytest.mark.parametrize(
    ("mode", "text", "thought", "action"),
    [
        ("text", " go to shelf 1", "", "go to shelf 1"),
        ("text", "\n  Go to   shelf 1\nand more", "", "Go to shelf 1"),
        ("text", "<think>hm\n</think>\n take cup ", "hm", "take cup"),  # as chat models do
        ("text", "<think>go on", "go on", ""),
        ("text", " \x00go\x07 up\x1b", "", "go up"),  # byte-level tokens may be control characters
        ("text", "", "", ""),
        ("thought_text", " <think>a </think> b</think> take cup", "a </think> b", "take cup"),
        ("thought_text", "take cup", "take cup", ""),
    ],
)
def test_the_action_is_a_line_after_the_thought(mode, text, thought, action):
    answer = read_answer(text, mode)
    assert (answer.thought.strip(), answer.action) == (thought, action)
    assert text[answer.action_start :].lstrip(" \n\x00").startswith(action[:2])


@pytest.mark.parametrize("mode", WRITTEN_ACTIONS)
def test_a_text_of_any_mode_is_read_back(mode):
    answer = read_answer(f" {answer_text(mode, 'so  what', 'take cup')}", mode)
    assert (answer.thought, answer.action) == ("" if mode == "text" else "so what", "take cup")


def test_a_written_action_has_to_be_one_of_the_menu():
    assert index_of("TAKE  cup", MENU, "text") == 3
    assert index_of("please take cup", MENU, "text") is None
    assert index_of("please take cup", MENU, "json") == 3


def test_an_escape_that_is_no_character_is_replaced():
    answer = read_answer('{"thoughts": "\\ud800 up", "action": "+"}', "json")
    assert (answer.thought, answer.action) == ("? up", "+")


def test_what_is_written_is_read_back():
    answer = read_answer(answer_text("json", 'to "the"\nright', "take Cup"), "json")
    assert (answer.thought, answer.action) == ('to "the" right', "take Cup")


def test_the_token_with_the_first_character_of_the_action_belongs_to_it():
    class Letters:  # a tokenizer whose tokens are given pieces of text
        def decode(self, ids, **_):
            return "".join(PIECES[number] for number in ids)

    PIECES = ('{"th', 'oughts": "x', '", "act', 'ion": "', '+"}')
    text = "".join(PIECES)
    assert token_at(Letters(), (0, 1, 2, 3, 4), text.index('"action"')) == 2
    assert token_at(Letters(), (0, 1), text.index('"action"')) == 2  # it was not written
    text = '{"thoughts": "é€", "action": "+"}'  # letters of several tokens
    ids, start = tokenizer()(text)["input_ids"], text.index('"action"')
    at = token_at(tokenizer(), tuple(ids), start)
    assert len(tokenizer().decode(ids[:at])) <= start < len(tokenizer().decode(ids[: at + 1]))


@pytest.mark.parametrize("kind", ["bytes", "pieces", "words"])
def test_the_action_is_found_in_the_tokens_of_any_tokenizer(kind):
    text = '{"thoughts": "not "action": "+" but", "action": "go to shelf 10"}'
    tokenize, decoder, trainer = {
        "bytes": (pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel(), trainers.BpeTrainer),
        "pieces": (pre_tokenizers.Metaspace(prepend_scheme="never"), decoders.Metaspace(), trainers.UnigramTrainer),
        "words": (pre_tokenizers.Split(Regex(r"\w+|\W"), "isolated"), decoders.Fuse(), trainers.WordLevelTrainer),
    }[kind]
    model = {"bytes": BPE(), "pieces": Unigram(), "words": WordLevel(unk_token="?")}[kind]
    built = Tokenizer(model)
    built.pre_tokenizer, built.decoder = tokenize, decoder
    built.train_from_iterator([text] * 3, trainer(special_tokens=["?"], show_progress=False))
    fast = PreTrainedTokenizerFast(tokenizer_object=built)
    ids, start = fast(text)["input_ids"], read_answer(text, "json").action_start
    at = token_at(fast, tuple(ids), start)
    assert text[start:] == '"action": "go to shelf 10"}'  # the last one
    assert len(fast.decode(ids[:at])) <= start < len(fast.decode(ids[: at + 1]))
    assert token_at(fast, tuple(ids), len(text)) == len(ids)  # there is none


def test_where_no_action_is_named_a_random_one_is_played_with_the_probability_of_the_text():
    policy = policy_of("json", model_of(), max_new_tokens=1, prefix_cache=prefix_cache())
    prompt = policy_prompt(0, actions=3)
    decisions = policy.act(shown([prompt] * 3000), draws(3000, seed=3))
    assert not any(each.choice.written.legal for each in decisions)
    counts = Counter(each.action for each in decisions)
    assert set(counts) == set(prompt.menu.actions)
    assert all(abs(count - 1000) <= 30 for count in counts.values())  # a standard deviation is 26
    assert all(each.logprob == 0 and each.choice.written.thought_logprob < 0 for each in decisions)
    again = policy.act(shown([prompt] * 100), draws(100, seed=3))
    assert [each.action for each in again] == [each.action for each in decisions[:100]]
    assert [each.choice.written.ids for each in again] == [each.choice.written.ids for each in decisions[:100]]
    assert isinstance(policy, TextPolicy)


def test_the_fallback_action_has_a_draw_of_its_own():
    policy = policy_of("json", model_of(), max_new_tokens=1, prefix_cache=prefix_cache())
    views, given = shown([policy_prompt(0, actions=3)] * 300), draws(300)
    pairs = zip(policy.act(views, given), RandomPolicy().act(views, given), strict=True)
    assert sum(own.action == other.action for own, other in pairs) / 300 == pytest.approx(1 / 3, abs=0.1)
