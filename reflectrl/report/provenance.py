"""Origin of a trained agent, in Markdown: its data, its recipe and its curriculum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from reflectrl.config import Recipe
from reflectrl.config.schema import ModelSection
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.report.markdown import markdown, table
from reflectrl.report.runs import Run


def data_lines(recipe: Recipe) -> Iterator[str]:
    """Lines on the training data."""
    data, dataset = recipe.data, recipe.dataset
    if recipe.sft.enabled:
        teacher = "the environment's expert" if data.teacher == "expert" else _endpoint(data.endpoint)
        yield (
            f"{data.samples} steps of episodes with reflections by {teacher}; with probability {data.negatives:g} a "
            "step follows a mistake, which the reflection must find."
        )
        if data.demonstrations:
            yield "Demonstrations by people come first."
    if recipe.rlft:
        yield "Reinforcement learning uses the episodes that the policy plays itself, on training tasks only."
    if dataset:
        wrote = "taken from its files" if dataset.writer == "extractive" else f"by {_endpoint(dataset.endpoint)}"
        yield f"\nThe tasks are questions, {wrote}, about {markdown(', '.join(dataset.repositories))}."


def recipe_lines(recipe: Recipe) -> Iterator[str]:
    """Table of the main settings."""
    sft, rlft, local = recipe.sft, recipe.rlft, recipe.players.reflector.player == "local"
    facts = {
        "seed": str(recipe.seed),
        "policy": _player(recipe.model),
        "reflector": _player(recipe.reflector_model or recipe.model) if local else "",
        "prompts": f"{recipe.prompt.history} past actions, labels: {recipe.prompt.labels}",
        "sft": f"{sft.policy.steps} steps, learning rate {sft.policy.learning_rate:g}" if sft.enabled else "none",
        "rlft": f"{rlft.episodes} episodes an update, learning rate {rlft.learning_rate:g}" if rlft else "none",
    }
    yield from table(("part", "setting"), [pair for pair in facts.items() if pair[1]], words=2)
    yield "\nThe whole recipe is in `recipe.yaml`; `reflectrl run --recipe recipe.yaml` trains such an agent again."


def curriculum_lines(recipe: Recipe, run: Run) -> Iterator[str]:
    """The stages of reinforcement learning, with what was done of them."""
    if recipe.rlft is None:
        return
    done = Counter(point.stage for point in run.points)
    rows = []
    for stage in recipe.rlft.stages:
        options = ", ".join(f"{key}={value}" for key, value in stage.env.items())
        rows.append((stage.name, options or "unchanged", str(stage.iterations), str(done[stage.name])))
    yield from table(("stage", "environment", "updates at most", "updates done"), rows, words=2)


def _endpoint(endpoint: Endpoint) -> str:
    return f"{markdown(endpoint.model)} behind a chat endpoint"


def _player(section: ModelSection) -> str:
    adapter = f", LoRA of rank {section.lora.r}" if section.lora else ""
    quantised = "" if section.quantization == "none" else f", base in {section.quantization}"
    return f"{section.name}{adapter}{quantised}, {section.dtype}, {section.max_length} tokens"
