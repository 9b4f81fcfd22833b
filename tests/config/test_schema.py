"""The schema is frozen and documented, and rejects combinations that cannot work."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from reflectrl.config import Recipe
from reflectrl.config.schema import PlayersSection
from reflectrl.core.settings import descriptions, sections_of, settings_fields


def sections(model: type = Recipe) -> set[type]:
    inner = {section for field in settings_fields(model).values() for section in sections_of(field.annotation)}
    return {model}.union(*map(sections, inner))


def recipe(**values: Any) -> Recipe:
    return Recipe.model_validate({"name": "x", "env": {"name": "number_line"}, **values})


@pytest.mark.parametrize("section", sorted(sections(), key=lambda section: section.__name__))
def test_every_section_documents_its_fields_and_refuses_unknown_keys(section: type) -> None:
    assert {name for name, words in descriptions(section).items() if words} == set(settings_fields(section))
    config = getattr(section, "model_config", None) or section.__pydantic_config__  # type: ignore[attr-defined]
    assert config["extra"] == ("allow" if section is PlayersSection else "forbid")


def test_a_recipe_needs_a_name_and_an_environment_only() -> None:
    assert recipe().rlft is not None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"quantization": "8bit"}}, "lora must be set"),
        ({"model": {"builtin": {"width": 65}}}, "does not divide width=65"),
        ({"model": {"lora": {"layers": 20}}}, "layers=20 names no layers; expected the first and the last, e.g. 20-29"),
        ({"rlft": {"advantage": {"kind": "step_group"}}}, "advantage.kind=step_group .* episodes_per_task=1"),
        ({"rlft": {"rewards": {"rater": 1.0}}}, "rater"),
        ({"rlft": {"episodes": 10, "episodes_per_task": 4}}, "must be a multiple"),
        (
            {"rlft": {"replay": {"size": 5, "episodes": 1}, "advantage": {"kind": "leave_one_out"}}},
            "replay was given with advantage.kind=leave_one_out",
        ),
        ({"rlft": {"lessons": []}}, "at least 1 item"),
        ({"eval": {"controls": ["blank", "blank"]}}, "controls has 'blank' more than once"),
        (
            {
                "players": {"policy": {"server": {}}, "reflector": {"player": "none"}},
                "model": {"images": True, "prefix_reuse": False},
                "prompt": {"labels": "added"},
                "eval": {"controls": []},
            },
            "server needs another prompt.action_mode .*; model.lora, .*; prompt.labels=.*; model.images=false; its",
        ),
        ({"rlft": None}, "has no rlft section"),
        ({"rlft": {"thought_lambda": 0.2}}, "thought_lambda=0.2 .* there are no thoughts"),
        ({"players": {"reflector": {"trained": True}}}, "needs model.lora, .*; a temperature above 0"),
        ({"players": {"policy": {"max_new_tokens": 9}}}, "it writes nothing"),
        ({"prompt": {"action_mode": "json"}, "rlft": {"terms": {"kl": {}}}}, "a written action is not drawn from"),
        (
            {"prompt": {"action_mode": "text"}, "rlft": {"terms": {"entropy": {"kind": "target", "target": 0.3}}}},
            "unit=uniform .* set it to nats",
        ),
        (
            {"rlft": {"advantage": {"kind": "group"}, "episodes_per_task": 4, "gamma": 0.9}},
            "gamma=0.9 .* advantage.kind=group",
        ),
        ({"rlft": {"rewards": {"format": 1.0}}}, "rlft.rewards names format"),
        (
            {"prompt": {"action_mode": "thought_choice"}, "rlft": {"rewards": {"illegal": -1.0}}},
            "rlft.rewards names illegal, but the prompt.s action_mode is thought_choice",
        ),
        (
            {"prompt": {"action_mode": "thought_choice"}, "rlft": {"fallback_credit": "mask"}},
            "fallback_credit=mask .* action_mode=thought_choice each answer names a legal action",
        ),
        ({"rlft": {"terms": {"sft_thought": {}}}}, "go together"),
        (
            {"players": {"corrector": {}}, "rlft": {"terms": {"sft_thought": {}}}},
            "rlft.terms.sft_thought .* no thoughts to correct",
        ),
        ({"players": {"corrector": {"tool": True}}}, "player=expert knows the solution"),
        ({"players": {"corrector": {"on_failure": "raise"}}}, "on_failure=raise is about remote"),
        ({"players": {"corrector": {"questions": ["Why?"]}}}, "questions are answered by remote"),
        ({"players": {"corrector": {"player": "remote", "questions": [" "]}}}, "questions has an empty one"),
        ({"players": {"corrector": {"player": "remote", "default": "x"}}}, "default and on_failure: default"),
        ({"players": {"corrector": {"model": {"name": "builtin/nano"}}}}, "is not trained"),
        ({"model": {"name": "builtin/small"}}, "the only built-in one is builtin/nano"),
        ({"players": {"memory": {"embedder": "self"}}}, "builtin/nano is made from the SFT rows"),
        (
            {"eval": {"memory": {"embedder": "self"}}, "model": {"images": True, "prefix_reuse": False}},
            "model.images has it read pictures",
        ),
        ({"players": {"memory": {"grows": True, "key": "picture"}}}, "keeps the words of episodes alone"),
        ({"eval": {"memory": {"grows": True}}}, "grows needs players.memory, not eval.memory"),
        (
            {
                "players": {"memory": {"grows": True}, "rater": {}},
                "rlft": {"rewards": {"rater": 1.0}, "validation": None, "task_priority": 0},
            },
            "grows needs no players.rater",
        ),
        ({"sft": {"enabled": False}}, "sft.enabled is false"),
        (
            {"players": {"reflector": {"player": "none"}}, "eval": {"controls": ["blank"]}},
            "players.reflector.player is none",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**values)
