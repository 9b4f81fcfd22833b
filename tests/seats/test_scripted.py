from __future__ import annotations

import math

import pytest

from reflectrl.core import Hints, InvalidInput, Observation, Utterance
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import ReadsHints
from reflectrl.prompts.views import State
from reflectrl.seats.others import ExpertPolicy, RandomPolicy
from reflectrl.seats.reflector import ExpertReflector, ScriptedReflector
from reflectrl.seats.table import menu_view, view

LAYOUT = PromptFormat(labels="letters", shuffle=True)
HERE = Observation("A hall.", ("go", "wait", "sing", "leave"))


def to_act(seed=0, hints=None):
    menu = LAYOUT.menu_of(HERE, seed)
    return menu_view("policy", LAYOUT, State(HERE, hints=hints), menu, hints=hints is not None)


def to_reflect(hints=None):
    return view("reflector", LAYOUT, State(HERE, hints=hints), hints=hints is not None)


def test_the_random_policy_is_uniform():
    seen = to_act()
    decisions = RandomPolicy().act([seen] * 4, [0.0, 0.25, 0.6, 0.999999])
    assert [decision.choice.index for decision in decisions] == [0, 1, 2, 3]
    assert [decision.action for decision in decisions] == list(seen.menu.actions)
    assert decisions[0].choice.probabilities == (0.25,) * 4
    assert (decisions[0].logprob, decisions[0].entropy) == pytest.approx((math.log(0.25), math.log(4)))


def test_the_expert_finds_its_action_in_any_menu():
    views = [to_act(seed, Hints("sing")) for seed in range(10)]
    decisions = ExpertPolicy().act(views, [0.5] * 10)
    assert len({decision.choice.index for decision in decisions}) > 1
    for seen, decision in zip(views, decisions, strict=True):
        assert decision.action == seen.menu.actions[decision.choice.index] == "sing"
        assert (decision.logprob, decision.entropy) == (0.0, 0.0)
        assert decision.choice.probabilities == tuple(float(i == decision.choice.index) for i in range(4))
    said = ExpertReflector().say([to_reflect(Hints("go", "Good.")), to_reflect(Hints("go", ""))], [0.0, 0.0])
    assert said == [Utterance("Good."), Utterance("")]


def test_only_the_expert_is_given_hints_and_without_them_it_is_refused():
    wants = [issubclass(kind, ReadsHints) for kind in (ExpertPolicy, ExpertReflector, RandomPolicy, ScriptedReflector)]
    assert wants == [True, True, False, False]
    for hints, fact in ((None, "without hints"), (Hints(), r"expert\(\)")):
        for ask, seen in ((ExpertPolicy().act, to_act(hints=hints)), (ExpertReflector().say, to_reflect(hints))):
            with pytest.raises(InvalidInput, match=fact):
                ask([seen], [0.0])
