"""The chat endpoints of a recipe: each role's is counted, priced and named by its own key."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.config.spending import open_account
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import write_jsonl
from reflectrl.endpoint.account import Tokens
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal, PaidReply
from reflectrl.report.runs import read_runs

WISER = "eval.reflectors=[{name: wiser-2, endpoint: {model: gpt-4o}}]"
ROLES = [
    ("writer", "dataset.endpoint", "auto_explore/nano"),
    ("teacher", "data.endpoint", "number_line/nano"),
    ("reflector", "players.reflector.endpoint", "number_line/nano"),
    ("policy-1", "players.policy.endpoint", "number_line/nano"),
    ("corrector", "players.corrector.endpoint", "gym_cards/nano_number_line_gtr_remote"),
    ("planner", "players.planner.endpoint", "rap/nano_planner_endpoint"),
    ("rater", "players.rater.endpoint", "vtifa/nano_endpoint"),
    ("eval-wiser-2", "eval.reflectors.0.endpoint", "number_line/nano"),
]
"""Folder of calls, key of the endpoint, and a recipe that has it, for each role."""


@pytest.mark.parametrize(("folder", "key", "name"), ROLES)
def test_the_calls_of_each_role_are_counted(folder: str, key: str, name: str, tmp_path: Path) -> None:
    given = [f"{key}.model=asked", f"{key}.base_url=null", f"{key}.price={{prompt: 2.5, completion: 10}}"]
    recipe = load_recipe(name, [*([WISER] if folder.startswith("eval") else []), *given])
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    write_jsonl(tmp_path / "calls" / folder / "replies.jsonl", [PaidReply("a", "Go.", Tokens(1000, 100), batch=False)])
    [run] = read_runs([tmp_path])
    assert [(calls.role, calls.model, calls.dollars) for calls in run.calls] == [(folder, "asked", 0.0035)]
    account = open_account(recipe, tmp_path, 1.0, processes=2)
    assert account.spent == 0.0035
    with pytest.raises(InvalidInput, match=rf" {key}\.price="):
        ChatClient(Endpoint(), Journal(tmp_path / "calls" / folder), account)


@pytest.mark.parametrize(("folder", "key", "name"), ROLES)
def test_the_price_of_each_role_is_that_of_one_model(folder: str, key: str, name: str) -> None:
    listed = "{model: gpt-4o, price: {prompt: 2.5, completion: 10}}"
    priced = [WISER.replace("{model: gpt-4o}", listed)] if folder.startswith("eval") else [f"{key}={listed}"]
    before = load_recipe(name, priced)
    with pytest.raises(InvalidInput, match=rf"  {key}\.price: .*'gpt-4o'"):
        load_recipe(before, [f"{key}.model=gpt-4o-mini"])
    assert "price: null" in dump_recipe(load_recipe(before, [f"{key}.model=gpt-4o-mini", f"{key}.price=null"]))


def test_a_list_that_replaces_another_inherits_no_price(tmp_path: Path) -> None:
    priced = WISER.replace("{model: gpt-4o}", "{model: gpt-4o, price: {prompt: 2.5, completion: 10}}")
    (tmp_path / "base.yaml").write_text(dump_recipe(load_recipe("number_line/nano", [priced])))
    child = tmp_path / "child.yaml"
    child.write_text("extends: ./base.yaml\neval: {reflectors: [{name: other, endpoint: {model: gpt-4o-mini}}]}\n")
    assert load_recipe(child).eval.reflectors[0].endpoint == Endpoint("gpt-4o-mini")


def test_the_spending_of_a_folder_is_read(tmp_path: Path) -> None:
    replies = tmp_path / "calls" / "reflector" / "replies.jsonl"
    write_jsonl(replies, [PaidReply("a", "Go.", Tokens(1000, 100), batch=False)])
    with replies.open("a") as file:  # another process of the same run is writing
        file.write('{"asked": "b", "te')
    before = replies.read_bytes()
    recipe = load_recipe("number_line/nano", ["players.reflector.endpoint.price={prompt: 2.5, completion: 10}"])
    assert open_account(recipe, tmp_path).spent == 0.0035
    assert replies.read_bytes() == before


def test_a_budget_needs_known_spending(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "calls" / "eval-big" / "replies.jsonl", [PaidReply("a", "Go.", Tokens(9, 1), batch=False)])
    recipe = load_recipe("number_line/nano")
    assert open_account(recipe, tmp_path).spent == 0
    with pytest.raises(InvalidInput, match=r"calls/eval-big holds 1 paid calls of a role that the recipe has no"):
        open_account(recipe, tmp_path, 5.0)
