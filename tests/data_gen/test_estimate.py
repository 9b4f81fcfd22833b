from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint, counted_usage

from reflectrl.config import Recipe
from reflectrl.data_gen import generate
from reflectrl.data_gen.estimate import Estimate, estimate_files
from reflectrl.data_gen.generate import Spending
from reflectrl.endpoint.account import Price, Tokens
from reflectrl.endpoint.endpoint import Endpoint

REFLECTION = "The goal is still some way off, so what matters next is to get nearer to it. " * 3
"""47 words."""


def recipe(endpoint: ScriptedEndpoint, env: str, temperature: float = 0.0, **data: object) -> Recipe:
    there = {"base_url": endpoint.url, "temperature": temperature, "price": {"prompt": 2.5, "completion": 10.0}}
    fields = {"teacher": "openai", "endpoint": there, "samples": 60, "concurrency": 4, **data}
    return Recipe.model_validate({"name": "test", "env": {"name": env}, "data": fields})


def wise(chat: Chat) -> str:
    if "Now choose" not in chat[-1]["content"]:
        return REFLECTION
    number, target = re.findall(r"Number (\d+), target (\d+)", chat[1]["content"])[0]
    wanted = "add one" if int(number) < int(target) else "subtract one"
    return next(line.split(".")[0] for line in chat[-1]["content"].splitlines() if line.endswith(wanted))


@pytest.mark.parametrize(
    ("env", "trajectory"), [("number_line", "teacher"), ("number_line", "oracle"), ("dangerous_taxi", "oracle")]
)
def test_the_estimate_is_near_what_the_server_counts(
    endpoint: ScriptedEndpoint, tmp_path: Path, env: str, trajectory: str
) -> None:
    endpoint.reply, endpoint.usage = wise, counted_usage
    told: list[str] = []
    asked = recipe(endpoint, env, temperature=0.7, trajectory=trajectory)  # no two calls are the same
    summary = generate(asked, tmp_path, tell=told.append)
    assert summary is not None
    calls, sent, answered = (
        int(number.replace(",", ""))
        for number in re.findall(r"about ([\d,]+) calls.*?([\d,]+) tokens sent and ([\d,]+)", told[0])[0]
    )
    usage = summary.usage
    for guess, fact in ((calls, usage.calls), (sent, usage.prompt_tokens), (answered, usage.completion_tokens)):
        assert 1 / 1.5 < guess / fact < 1.5


def test_a_dry_run_says_what_it_may_cost_and_asks_nothing(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    told: list[str] = []
    spending = Spending(dry_run=True)
    assert generate(recipe(endpoint, "number_line"), tmp_path, spending=spending, tell=told.append) is None
    assert re.fullmatch(
        r"estimate: about [89]\d calls to model 'gpt-4o' at http.* tokens .*: about 0\.\d\d dollars", told[0]
    )
    assert endpoint.requests == []
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_files_are_counted_by_their_text_and_by_the_longest_reply() -> None:
    chats = [[{"role": "user", "content": "x" * 400}], [{"role": "user", "content": "x" * 40}]]
    assert estimate_files(chats, 300) == Estimate(2, Tokens(110, 600))
    assert estimate_files([], 300) == Estimate(0, Tokens())


@pytest.mark.parametrize(
    ("price", "kept", "end"),
    [
        (Price(2.5, 10), 0, "answered: about 3.50 dollars"),
        (None, 0, "answered: the endpoint's price is not set"),
        (None, 7, "price is not set; 7 replies are there already and cost nothing"),
    ],
)
def test_the_sentence_names_the_money_if_it_can(price: Any, kept: int, end: str) -> None:
    sentence = Estimate(1000, Tokens(1_000_000, 100_000)).sentence(Endpoint(price=price), kept)
    assert sentence.startswith(
        "estimate: about 1,000 calls to model 'gpt-4o' at https://api.openai.com/v1, 1,000,000 t"
    )
    assert sentence.endswith(end)
