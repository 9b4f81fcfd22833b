from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from reflectrl.core import Hints, InvalidInput, Observation, Utterance
from reflectrl.players import ExpertPolicy, ExpertReflector, RandomPolicy, ReadsHints, ScriptedReflector
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import State, menu_view, view

LAYOUT = PromptFormat(labels="letters", shuffle=True)
HERE = Observation("A hall.", ("go", "wait", "sing", "leave"))


def to_act(seed=0, hints=None):
    menu = LAYOUT.menu(HERE, random.Random(seed))
    return menu_view("policy", LAYOUT, State(HERE, hints=hints), menu, hints=hints is not None)


def to_reflect(hints=None):
    return view("reflector", LAYOUT, State(HERE, hints=hints), hints=hints is not None)


# ---- the random policy -----------------------------------------------------------------------------------------------


def test_the_random_policy_inverts_the_uniform_distribution_at_its_draws():
    prompt = to_act()
    decisions = RandomPolicy().act([prompt] * 4, [0.0, 0.25, 0.6, 0.999999])
    assert [d.choice.index for d in decisions] == [0, 1, 2, 3]
    assert [d.action for d in decisions] == list(prompt.menu.actions)


def test_the_random_policy_reports_the_uniform_distribution():
    (decision,) = RandomPolicy().act([to_act()], [0.3])
    assert decision.choice.probabilities == (0.25,) * 4
    assert decision.logprob == pytest.approx(math.log(0.25))
    assert decision.entropy == pytest.approx(math.log(4))


def test_the_random_policy_is_uniform():
    rng = random.Random(0)
    decisions = RandomPolicy().act([to_act()] * 4000, [rng.random() for _ in range(4000)])
    assert all(abs(count - 1000) < 120 for count in Counter(d.action for d in decisions).values())


# ---- the scripted reflector ------------------------------------------------------------------------------------------


def test_a_scripted_reflector_says_its_words_about_each_prompt():
    said = ScriptedReflector(lambda text: text.splitlines()[-2].upper()).say([to_reflect()] * 2, [0.1, 0.2])
    assert said == [Utterance("A HALL.")] * 2


# ---- the expert ------------------------------------------------------------------------------------------------------


def test_the_expert_finds_its_action_wherever_the_menu_shows_it():
    prompts = [to_act(seed, Hints("sing")) for seed in range(10)]
    decisions = ExpertPolicy().act(prompts, [0.5] * 10)
    assert {d.action for d in decisions} == {"sing"}
    assert len({d.choice.index for d in decisions}) > 1
    for prompt, decision in zip(prompts, decisions, strict=True):
        assert prompt.menu.actions[decision.choice.index] == "sing"
        assert (decision.logprob, decision.entropy) == (0.0, 0.0)
        assert [i for i, p in enumerate(decision.choice.probabilities) if p == 1.0] == [decision.choice.index]
        assert sum(decision.choice.probabilities) == 1.0


def test_the_expert_says_the_environments_reflection():
    prompts = [to_reflect(Hints("go", "Good.")), to_reflect(Hints("go", ""))]
    assert ExpertReflector().say(prompts, [0.0, 0.0]) == [Utterance("Good."), Utterance("")]


def test_only_the_expert_asks_for_hints():
    wants = [issubclass(kind, ReadsHints) for kind in (ExpertPolicy, ExpertReflector, RandomPolicy, ScriptedReflector)]
    assert wants == [True, True, False, False]


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: ExpertPolicy().act([to_act(hints=Hints())], [0.0]), "has none; write its expert"),
        (lambda: ExpertReflector().say([to_reflect(Hints())], [0.0]), "without expert"),
        (
            lambda: ExpertPolicy().act([to_act()], [0.0]),
            "without hints; play it through reflectrl.rollout",
        ),
        (lambda: ExpertReflector().say([to_reflect()], [0.0]), "without hints"),
    ],
)
def test_an_expert_without_knowledge_says_so(ask, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        ask()
