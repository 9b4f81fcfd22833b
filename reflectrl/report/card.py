"""``model_card`` and ``dataset_card``: the README.md of what is exported, for readers who know nothing else about it.

Texts of recipes and environments may hold anything, so all of them are escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from string import Template
from typing import Any

import yaml
from huggingface_hub import EvalResult
from huggingface_hub.repocard_data import eval_results_to_model_index

from reflectrl.config import Recipe
from reflectrl.config.agent_file import AgentFile
from reflectrl.core.registry import env_package
from reflectrl.core.run_files import POLICIES
from reflectrl.core.text import counted, visible
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.lm.section import ModelSection, package_of
from reflectrl.prompts.format import ActionMode
from reflectrl.report.markup import asset, excerpt
from reflectrl.report.runs import RunData
from reflectrl.report.tables import FIRST_NUMBER, cells, columns, table_rows, warnings_on
from reflectrl.rollout.results import Validated, way_to_play

_MAX_CHARACTERS = 2000
"""Maximum number of characters shown of a text."""
_SPECIAL = str.maketrans(
    {**{char: f"\\{char}" for char in "\\`*_[]|~#$!"}, "<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;"}
)
_REFLECTORS = {
    "local": "a local model, in the subfolder `reflector`",
    "remote": "a model behind a chat endpoint, which is not part of this folder",
    "expert": "the environment's own expert, which is not part of this folder",
    "self": "the policy itself",
}
_UNSHOWN = "It is shown no reflections."


@dataclass(frozen=True)
class Base:
    """The model on the hub that a player was trained from."""

    name: str
    revision: str | None
    """Commit of the model; ``None`` if it is unknown."""
    license: str | None


@dataclass(frozen=True)
class Card:
    """Contents of a model card."""

    run: RunData
    recipe: Recipe
    agent: AgentFile
    policy: str
    """Exported folder of the run: ``policy``, or ``policy-sft``."""
    adapter: bool
    """True if the policy is an adapter."""
    base: Base | None
    """Base model; ``None`` for a base that is not on the hub."""
    notes: Sequence[str] = ()
    """Further sentences for the description."""
    reflector_adapter: bool = False
    """True if the reflector is an adapter."""
    validated: Validated | None = None
    """How the policy did in validation; ``None`` if unknown."""
    license: str | None = None
    """The hub's identifier of the licence; ``None`` if unknown."""
    datasets: Sequence[str] = ()
    """Datasets of the hub on which the players were trained."""


def model_card(card: Card) -> str:
    """Return the card as Markdown, with the metadata that the hub reads."""
    parts = {
        "what": _what(card),
        "evaluation": _evaluation(card.run),
        "data": _data(card.recipe),
        "recipe": _settings(card.recipe),
        "curriculum": _curriculum(card.recipe, card.run),
        "limits": (f"- {line}" for line in _limits(card)),
    }
    packaged = card.adapter and package_of(card.recipe.model.name) is not None
    example = _EXAMPLE if card.recipe.prompt.action_mode == "enumerated" else _WRITES
    return Template(asset("card.md.tmpl")).substitute(
        {name: "\n".join(lines) for name, lines in parts.items()},
        metadata=yaml.safe_dump(_metadata(card), sort_keys=False),
        name=markdown(card.recipe.name),
        actions=', ("one action", "another action")' if card.agent.max_actions else "",
        example=example.format(peft=" and peft" if card.adapter else "", folder=" FOLDER" if packaged else ""),
        play="" if card.recipe.dataset else "reflectrl play --run FOLDER\n",  # questions need files, not exported
    )


@dataclass(frozen=True)
class RowsFile:
    """A file of SFT rows in a dataset."""

    kind: str
    """Its name, without ``.jsonl``."""
    rows: int
    tasks: int
    """Number of different tasks."""
    negative: int
    """Number of rows that show a deliberate mistake and its correction."""


def dataset_card(recipe: Recipe, files: Sequence[RowsFile], columns: str) -> str:
    """Return the card of a dataset of SFT rows, with the metadata that the hub and ``load_dataset`` read.

    Args:
        recipe: the recipe of the run.
        files: the files of the dataset.
        columns: what a row holds, in Markdown.

    """
    rows = max(each.rows for each in files)
    metadata = {
        "pretty_name": f"{recipe.name}, rows for supervised fine-tuning",
        "task_categories": ["text-generation"],
        "tags": ["reflectrl", "agents", "reinforcement-learning", visible(recipe.env.name).partition(":")[0]],
        "size_categories": [next(name for most, name in _SIZES if rows < most)],
        "configs": [{"config_name": each.kind, "data_files": f"{each.kind}.jsonl"} for each in files],
    }
    parts = {
        "env": markdown(recipe.env.name),
        "answers": _ANSWERS[recipe.prompt.action_mode],
        "columns": columns,
        "counts": "\n".join(
            _table(
                ("file", "rows", "tasks", "after a mistake"),
                [(each.kind, *map(str, (each.rows, each.tasks, each.negative))) for each in files],
                words=1,
            )
        ),
        "data": "\n".join([*_taught(recipe), *_asked(recipe)]),
    }
    return Template(asset("dataset.md.tmpl")).substitute(
        parts, metadata=yaml.safe_dump(metadata, sort_keys=False), name=markdown(recipe.name)
    )


_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (inf, "n>1M"))
"""Names of the hub for numbers of rows, each with the number that is too large for it."""


_EXAMPLE = """\
`example.py` beside this file plays one step of a real episode with plain transformers{peft}, without reflectrl:

```
python example.py{folder}
```

The policy answers with one token, the label of an action: of the logits after the prompt, only those of the menu's
labels count. With reflectrl, which also writes the prompts and asks the reflector:"""
_WRITES = """\
The policy writes more than a label, so there is no example with transformers alone. With reflectrl, which
writes the prompts, asks the reflector and reads the answers:"""


_ANSWERS: Mapping[ActionMode, str] = {
    "enumerated": "answers with the label of one",
    "thought_choice": "writes a thought, and then the label of one",
    "json": "writes a thought and an action as a JSON object",
    "text": "writes an action",
    "thought_text": "writes a thought, and then an action",
}


def _metadata(card: Card) -> dict[str, Any]:
    base, env = card.base, visible(card.agent.env)
    known = {
        "library_name": "peft" if card.adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reflectrl", "reinforcement-learning", "agents", env.partition(":")[0]],
        "base_model": base and base.name,
        "base_model_relation": base and ("adapter" if card.adapter else "finetune"),
        "license": card.license,
        "datasets": list(card.datasets),
        "model-index": _results(card),
    }
    return {key: value for key, value in known.items() if value}


def _results(card: Card) -> list[dict[str, Any]]:
    """Return the success of the exported policy, by split, in the form that the hub shows; empty if not evaluated."""
    rows = [row for row in card.run.own_rows if row.policy == POLICIES[card.policy]]
    env = visible(card.agent.env)
    results = [
        EvalResult(
            task_type="reinforcement-learning",
            task_name="acting in a text environment",
            dataset_type=env,
            dataset_name=env,
            dataset_split=visible(row.split),
            metric_type="success_rate",
            metric_value=row.metrics.success,
            metric_name=f"success with {row.mode} actions; reflections: {visible(row.reflections)}",
            metric_args={
                "interval_95": [row.metrics.success_low, row.metrics.success_high],
                "episodes": row.metrics.episodes,
                "tasks": row.tasks,
                "training_seeds": [card.recipe.seed],
            },
        )
        for row in rows
    ]
    return eval_results_to_model_index(visible(card.recipe.name), results) if results else []


def _what(card: Card) -> Iterator[str]:
    recipe = card.recipe
    writer = _REFLECTORS.get(recipe.players.reflector.player)
    shown = f"Before it chooses, a reflection on the state is written by {writer}." if writer else _UNSHOWN
    if recipe.description:  # after our own words, it cannot begin a list, a heading or a rule
        yield f"In the words of its recipe: {markdown(recipe.description)}\n"
    yield (
        f"A small language model that acts in the environment {markdown(card.agent.env)}: it reads a state"
        f"{' and the menu of its legal actions,' if card.agent.max_actions else ''} and "
        f"{_ANSWERS[recipe.prompt.action_mode]}. {shown} Trained with reflectrl by the method of Reflect-RL."
    )
    yield ""
    yield f"- Policy, with its tokenizer: {_loaded(recipe.model, adapter=card.adapter)}"
    if recipe.players.reflector.player == "local":
        section = recipe.reflector_model or recipe.model
        yield f"- Reflector: {_loaded(section, adapter=card.reflector_adapter, subfolder='reflector')}"
    revision = f", revision {card.base.revision}" if card.base and card.base.revision else ""
    yield f"- Base model: {markdown(recipe.model.name + revision)}{'' if card.base else _elsewhere(card)}"
    if origin := card.run.origin:
        versions = {"reflectrl": origin.reflectrl, **origin.versions}
        yield f"- Made with {markdown(', '.join(f'{name} {number}' for name, number in versions.items()))}"
    supervised = "supervised fine-tuning" if recipe.sft.enabled else "no supervised fine-tuning"
    yield f"- Training: {supervised}, {'then' if card.policy == 'policy' else 'no'} reinforcement learning"
    if card.validated is not None:
        how = way_to_play(greedy=card.validated.plays_greedily, validated=card.validated)
        yield f"- Played with {how}, unless asked otherwise"
    for note in card.notes:
        yield f"- {markdown(note)}"


def _loaded(section: ModelSection, *, adapter: bool, subfolder: str = "") -> str:
    """Describe what a player's files are and how they are loaded without reflectrl."""
    if not adapter:
        inside = f', subfolder="{subfolder}"' if subfolder else ""
        return f'full weights for `AutoModelForCausalLM.from_pretrained("FOLDER"{inside})`'
    if package_of(section.name) is not None:
        return "a LoRA adapter for `PeftModel.from_pretrained`, on the base whose folder `reflectrl models get` prints"
    folder = f"FOLDER/{subfolder}" if subfolder else "FOLDER"  # peft would look for the base in a subfolder, too
    return f'a LoRA adapter for `AutoPeftModelForCausalLM.from_pretrained("{folder}")`'


def _elsewhere(card: Card) -> str:
    """Describe where to find a base that is not on the hub."""
    if package_of(card.recipe.model.name) is None:
        return ", which is on no hub"
    how = ": `python example.py FOLDER`, with the folder that `reflectrl models get` prints for it"
    return f", in a Python package{how if card.adapter and card.recipe.prompt.action_mode == 'enumerated' else ''}"


def _evaluation(run: RunData) -> Iterator[str]:
    if not run.rows:
        yield "Not evaluated yet: nothing is known of how well it acts. (`reflectrl eval`, then export again.)"
        return
    heads = columns(run.rows)
    rows = [cells(*pair, heads)[1:] for pair in table_rows([run])]
    yield from _table(heads[1:], rows, words=heads.index(FIRST_NUMBER) - 1)
    yield ""
    splits = " and ".join(
        dict.fromkeys(f"{counted(row.tasks, 'task')} of the split {row.split}" for row in run.rows if not row.group)
    )
    yield (
        f"Played on {markdown(splits)}. The interval is a 95 % Wilson interval over tasks. Policies: sft is "
        "after supervised fine-tuning, rlft after reinforcement learning, base and zero_shot are before any training."
    )
    for benchmark in dict.fromkeys(row.benchmark for row in run.rows if row.benchmark):
        yield f"\nThe tasks are {markdown(benchmark)}."
    for warning in warnings_on(run.rows):
        yield f"\n{markdown(warning)}"


def _data(recipe: Recipe) -> Iterator[str]:
    if recipe.sft.enabled:
        yield from _taught(recipe)
    if recipe.rlft:
        yield "Reinforcement learning uses the episodes that the policy plays itself, on training tasks only."
    yield from _asked(recipe)


def _taught(recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    teacher = "the environment's expert" if data.teacher == "expert" else _endpoint(data.endpoint)
    reflected = "" if recipe.players.reflector.player == "none" else f" with reflections by {teacher}"
    yield f"{data.samples} steps of episodes{reflected}."
    if data.negatives:
        yield (
            f"After a step, with probability {data.negatives:g}, a mistake is tried, which the next step has to "
            "correct."
        )
    if data.demonstrations:
        yield "Demonstrations come first."


def _asked(recipe: Recipe) -> Iterator[str]:
    if dataset := recipe.dataset:
        wrote = "taken from its files" if dataset.writer != "openai" else f"by {_endpoint(dataset.endpoint)}"
        yield f"\nThe tasks are questions, {wrote}, about {markdown(', '.join(dataset.repositories))}."


def _settings(recipe: Recipe) -> Iterator[str]:
    sft, rlft, local = recipe.sft, recipe.rlft, recipe.players.reflector.player == "local"
    recent = recipe.prompt.history
    facts = {
        "seed": str(recipe.seed),
        "policy": _player(recipe.model),
        "reflector": _player(recipe.reflector_model or recipe.model) if local else "",
        "prompts": (
            f"{recent.steps} past {recent.show}{' with rewards' * recent.reward}, labels: {recipe.prompt.labels}, "
            f"menu: {recipe.prompt.menu}"
        ),
        "sft": f"up to {sft.policy.steps} steps, learning rate {sft.policy.learning_rate:g}" if sft.enabled else "none",
        "rlft": f"{rlft.episodes} episodes an update, learning rate {rlft.learning_rate:g}" if rlft else "none",
    }
    yield from _table(("part", "setting"), [pair for pair in facts.items() if pair[1]], words=2)
    yield "\nThe whole recipe is in `recipe.yaml`; `reflectrl run --recipe recipe.yaml` trains such an agent again."


def _curriculum(recipe: Recipe, run: RunData) -> Iterator[str]:
    if recipe.rlft is None:
        return
    done = Counter(point.lesson for point in run.points)
    rows = []
    for lesson in recipe.rlft.lessons:
        options = ", ".join(f"{key}={value}" for key, value in lesson.env.items())
        rows.append((lesson.name, options or "unchanged", str(lesson.iterations), str(done[lesson.name])))
    yield "\n## Curriculum\n"
    yield from _table(("lesson", "environment", "updates at most", "updates done"), rows, words=2)
    yield ""


def _endpoint(endpoint: Endpoint) -> str:
    return f"{markdown(endpoint.model)} behind a chat endpoint"


def _player(section: ModelSection) -> str:
    adapter = f", LoRA of rank {section.lora.r}" if section.lora else ""
    quantised = "" if section.quantization == "none" else f", base in {section.quantization}"
    return f"{section.name}{adapter}{quantised}, {section.dtype}, {section.max_length} tokens"


def _limits(card: Card) -> Iterator[str]:
    options = ", ".join(f"{key}={value}" for key, value in card.agent.options.items())
    yield (
        f"It knows one environment, {markdown(card.agent.env)}{f' with {markdown(options)}' if options else ''}, and "
        "its texts in exactly this form; elsewhere its actions mean nothing."
    )
    if package := env_package(card.agent.env):
        yield f"The environment is part of the package {markdown(package)}, which has to be installed."
    longest = (
        f"Menus have at most {card.agent.max_actions} actions, prompts" if card.agent.max_actions else "Prompts have"
    )
    yield f"{longest} at most {card.recipe.model.max_length} tokens."
    if card.agent.max_actions:
        yield "It always chooses one of the actions that it is shown, however bad all of them are."
    if card.recipe.players.reflector.player not in ("none", "expert"):
        yield "Reflections are a model's words: they may be wrong, and do not explain what the policy does."
    if card.policy != "policy" and card.recipe.rlft:
        yield "Its reinforcement learning was not done when it was exported."
    if card.license is None:
        yield "No licence is stated here; ask the publisher."


def markdown(text: str) -> str:
    """Return a text as one line of Markdown that shows it literally."""
    return excerpt(" ".join(visible(text).split()), _MAX_CHARACTERS).translate(_SPECIAL)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: int) -> Iterator[str]:
    """Yield the lines of a table; the first ``words`` columns hold words, the others numbers."""
    yield f"| {' | '.join(columns)} |"
    yield f"| {' | '.join('---' if number < words else '---:' for number in range(len(columns)))} |"
    for row in rows:
        yield f"| {' | '.join(map(markdown, row))} |"
