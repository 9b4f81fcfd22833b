from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint, counted_usage

from reflectrl.config import Recipe, load_recipe
from reflectrl.core import InvalidInput
from reflectrl.data_gen import generate
from reflectrl.data_gen.generate import Spending

REFLECTION = "The goal is still some way off, so what matters next is to get nearer to it. " * 3
"""A reflection of 47 words."""


def wise(chat: Chat) -> str:
    if "Now choose" not in chat[-1]["content"]:
        return REFLECTION
    number, target = re.findall(r"Number (\d+), target (\d+)", chat[1]["content"])[0]
    wanted = "add one" if int(number) < int(target) else "subtract one"
    return next(line.split(".")[0] for line in chat[-1]["content"].splitlines() if line.endswith(wanted))


@pytest.mark.slow
@pytest.mark.parametrize(("env", "trajectory"), [("number_line", "teacher"), ("dangerous_taxi", "oracle")])
def test_the_estimate_of_a_dry_run_is_near_the_truth(
    endpoint: ScriptedEndpoint, tmp_path: Path, env: str, trajectory: str
) -> None:
    endpoint.reply, endpoint.usage = wise, counted_usage
    there = {"base_url": endpoint.url, "temperature": 0.7, "price": {"prompt": 2.5, "completion": 10.0}}
    data = {"teacher": "openai", "endpoint": there, "samples": 60, "concurrency": 4, "trajectory": trajectory}
    recipe = Recipe.model_validate({"name": "test", "env": {"name": env}, "data": data})
    lines: list[str] = []
    assert generate(recipe, tmp_path, spending=Spending(dry_run=True), tell=lines.append) is None
    assert endpoint.requests == [path for path in tmp_path.rglob("*") if path.is_file()] == []
    pattern = r"about ([\d,]+) calls to model 'gpt-4o' at http.*?([\d,]+) tokens sent and ([\d,]+) .*0\.\d\d dollars"
    estimated = [int(number.replace(",", "")) for number in re.findall(pattern, lines[0])[0]]
    usage = generate(recipe, tmp_path).usage
    for guess, fact in zip(estimated, (usage.calls, usage.prompt_tokens, usage.completion_tokens), strict=True):
        assert 1 / 1.5 < guess / fact < 1.5


def test_a_dry_run_needs_no_key(tmp_path: Path) -> None:
    recipe, lines = load_recipe("number_line/nano", ["data.teacher=openai"]), list[str]()
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY"):
        generate(recipe, tmp_path)
    assert generate(recipe, tmp_path, spending=Spending(dry_run=True), tell=lines.append) is None
    assert "1,800 calls to model 'gpt-4o'" in lines[0]
