from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt
from run_folders import iteration

from reflectrl.config import load_recipe
from reflectrl.config.agent_file import AgentFile, exported_recipe, read_agent_file, write_agent_file
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import decode
from reflectrl.core.origin import FORMAT
from reflectrl.core.run_files import AGENT
from reflectrl.prompts import PromptFormat
from reflectrl.report.card import Base, Card, markdown, model_card
from reflectrl.report.runs import RunData
from reflectrl.rollout.iteration import EpisodeMetrics, Iteration
from reflectrl.rollout.results import EvalRow

HOSTILE = (
    "<script>alert(1)</script> ![x](https://evil.example/x.png) [y](javascript:z) | a | b | `code` **bold** "
    "\x1b[31m $x$ &lt; @team\n\n# Heading\n---\n```\nfence\n"
)
AGENT_FILE = AgentFile("number_line", {"size": 8}, PromptFormat(), 2)


def row(policy: str = "rlft", **changes: Any) -> EvalRow:
    metrics = EpisodeMetrics(
        episodes=40,
        success=0.5,
        success_low=0.35,
        success_high=0.65,
        episode_return=0.25,
        length=4.5,
        illegal=0.0,
        entropy=0.1,
    )
    values = {"reflections": "local", "mode": "greedy", "split": "test", "tasks": 40, "benchmark": "", **changes}
    return EvalRow(policy, metrics=metrics, **values)


def card(*overrides: str, rows: tuple[EvalRow, ...] = (row(),), **changes: Any) -> Card:
    points = tuple(decode(Iteration, iteration(number), "a line") for number in range(7))
    run = RunData("run", Path("run"), "", rows, points, ())
    values = {"agent": AGENT_FILE, "policy": "policy", "adapter": False, "base": None, **changes}
    return Card(run, load_recipe("number_line/nano", overrides), **values)


def metadata(text: str) -> dict[str, Any]:
    _, head, _ = text.split("---\n", 2)
    return yaml.safe_load(head)


def shown(text: str) -> tuple[list[str], str]:
    """Return the tags and the text of the page that a card is rendered to."""
    page = MarkdownIt("commonmark").enable("table").enable("strikethrough").render(text.split("---\n", 2)[2])
    return re.findall(r"<(\w+)", page), unescape(re.sub("<[^>]*>", "", page))


def test_a_card_has_metadata_sections_and_intervals():
    text = model_card(card())
    [index] = metadata(text)["model-index"]
    [result] = index["results"]
    assert (index["name"], result["dataset"]["split"]) == ("number_line-nano", "test")
    assert [metric["value"] for metric in result["metrics"]] == [0.5]
    assert metadata(model_card(card(rows=()))) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reflectrl", "reinforcement-learning", "agents", "number_line"],
    }
    based = metadata(model_card(card(adapter=True, base=Base("owner/tiny", None, "mit"), license="mit")))
    assert based["library_name"] == "peft"
    assert (based["base_model"], based["base_model_relation"], based["license"]) == ("owner/tiny", "adapter", "mit")
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles[:5] == ["What it is", "How to use it", "Evaluation", "Training data", "Recipe"]
    assert titles[5:] == ["Curriculum", "Limits", "Citation"]
    _, body = shown(text)
    for fact in ("50% [35, 65]", "Played on 40 tasks of the split test", "2402.12621"):
        assert fact in body
    assert "| main | unchanged | 30 | 7 |" in text.split("## Curriculum")[1]


def test_a_card_says_what_is_not_known_or_not_done():
    text = model_card(card(policy="policy-sft", rows=(), notes=["it was made in a hurry"]))
    for words in (
        "Not evaluated yet",
        "Training: supervised fine-tuning, no reinforcement learning",
        "Its reinforcement learning was not done",
        "- it was made in a hurry",
        "No licence is stated",
    ):
        assert words in text
    only = model_card(card("rlft=null", "eval.policies=[sft]", policy="policy-sft"))
    assert "was not done" not in only
    assert "## Curriculum" not in only
    assert "subfolder `reflector`" in text
    assert "subfolder" not in model_card(card("players.reflector.player=remote"))
    assert "Reflections are a model's words" in text
    assert "Reflections are a model's words" not in model_card(card("players.reflector.player=none"))
    assert "reflectrl play --run FOLDER" in text
    asked = model_card(card("dataset={repositories: [builtin:nano]}"))
    assert "reflectrl serve FOLDER\n```" in asked


def test_hostile_texts_are_shown_and_do_nothing():
    plain, _ = shown(model_card(card("description=fine", rows=(row(benchmark="fine", split="fine"),), notes=["fine"])))
    given = card(rows=(row(benchmark=HOSTILE, split=HOSTILE, reflections=HOSTILE),))
    lessons = [replace(given.recipe.rlft.lessons[0], name=HOSTILE, env={HOSTILE: HOSTILE})]
    recipe = given.recipe.model_copy(
        update={
            "name": HOSTILE,
            "description": HOSTILE,
            "model": given.recipe.model.model_copy(update={"name": HOSTILE}),
            "rlft": replace(given.recipe.rlft, lessons=lessons),
        }
    )
    agent = AgentFile(HOSTILE, {HOSTILE: HOSTILE}, PromptFormat(), 2)
    text = model_card(Card(given.run, recipe, agent, "policy", False, None, [HOSTILE]))
    tags, body = shown(text)
    assert tags == plain
    assert body.count("<script>alert(1)</script> ![x](https://evil.example/x.png)") >= 8
    assert "\x1b" not in text
    assert metadata(text)["tags"][-1].startswith("<script>")


def test_a_huge_text_is_cut_and_escaped_text_is_one_line():
    text = model_card(card(f"description={'long ' * 10_000}"))
    assert len(text) < 10_000
    assert "more characters" in text
    assert markdown("a | b\n# c") == "a \\| b \\# c"


# ---- the file that identifies an exported agent ----------------------------------------------------------------------


def test_an_agent_file_round_trips(tmp_path):
    assert read_agent_file(tmp_path) is None
    options, path = {"page": 20, "deep": {"a": [1, None]}}, tmp_path / AGENT
    agent = AgentFile("textworld:a.z8", options, PromptFormat("Go.", history=3, labels="letters"), 2)
    write_agent_file(tmp_path, agent)
    assert read_agent_file(tmp_path) == agent
    whole = path.read_text()
    for old, new, fact in (
        (f'"format": {FORMAT}', '"format": 9', "format 9"),
        ("reflectrl-agent", "other", "'other'"),
        ('"max_actions": 2', '"max_actions": -1', "max_actions"),
        ('"env"', '"game"', "'env'|'game'"),
        ("{", "", AGENT),
        ("{", "[]\n{", AGENT),
    ):
        path.write_text(whole.replace(old, new, 1))
        with pytest.raises(InvalidInput, match=fact):
            read_agent_file(tmp_path)


def test_merged_weights_are_loaded_without_adapters_and_adapters_with_them(tmp_path):
    recipe = load_recipe("number_line/nano", ["model.lora={r: 4}", "model.quantization=4bit"])
    with pytest.raises(InvalidInput, match="has no policy beside its agent.json .* export its run again"):
        exported_recipe(recipe, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    write_agent_file(tmp_path, AGENT_FILE)
    (tmp_path / "reflector").mkdir()
    (tmp_path / "reflector" / "adapter_config.json").write_text("{}")
    loaded = exported_recipe(recipe, tmp_path)
    assert (loaded.model.lora, loaded.model.quantization) == (None, "none")
    assert loaded.reflector_model == recipe.model
