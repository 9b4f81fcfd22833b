"""The shipped recipes: each loads, has its own name and plays its environment; each schema option is used by one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from alfworld_games import FOLDERS, HOUSES, publish
from thinkers import Thinks

from reflectrl.config import Recipe, check_recipe, dump_recipe, load_recipe, recipe_names, recipe_text
from reflectrl.config.advantage import GAE, NoBaseline
from reflectrl.config.training import PPO, Reinforce, Replay, Terms
from reflectrl.core import Trajectory, make_env
from reflectrl.core.settings import section_of, sections_of, settings_fields
from reflectrl.envs.alfworld.games import make_games
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.seats.others import RandomPolicy
from reflectrl.seats.reflector import ScriptedReflector
from reflectrl.seats.table import MOMENTS, Seat

NAMES = recipe_names()


def declaring(model: type, name: str) -> str:
    """Return the section that declares a setting, since the policy's SFT section inherits those of both players."""
    return next(part.__name__ for part in reversed(model.__mro__) if name in vars(part).get("__annotations__", {}))


def fields(model: type = Recipe) -> Iterator[tuple[str, str, Any]]:
    """Yield section, name and field of every option, with each section once."""
    for name, field in settings_fields(model).items():
        yield declaring(model, name), name, field
        for section in sections_of(field.annotation):
            yield from fields(section)


def choices(annotation: Any) -> Iterator[Any]:
    """Yield the values of every ``Literal`` inside a type."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from choices(part)


def written(values: Any, model: type = Recipe) -> Iterator[tuple[str, str, Any]]:
    """Yield section, name and value of every option that a recipe's own text sets."""
    for name, value in values.items():
        if name not in settings_fields(model):
            continue
        yield declaring(model, name), name, value
        for inner in value if isinstance(value, list) else [value]:
            section = section_of(settings_fields(model)[name].annotation, inner)
            if section and isinstance(inner, dict):
                yield from written(inner, section)


def seated(recipe: Recipe) -> tuple[str, ...]:
    """Return the roles of a recipe's frozen players, in their order."""
    players = recipe.players
    there = {
        "planner": players.planner,
        "memory": players.memory or recipe.eval.memory,
        "reflector": players.reflector.player != "none",
        "corrector": players.corrector,
        "rater": players.rater,
    }
    return tuple(role for role in MOMENTS if there[role])


@cache
def two_episodes(name: str, options: str, layout: PromptFormat, roles: tuple[str, ...]) -> list[Trajectory]:
    """Play two episodes with scripted players of these roles in an environment with options as JSON."""
    seats = [Seat(role, ScriptedReflector(lambda _: "Go on.")) for role in roles]
    policy = RandomPolicy() if layout.action_mode == "enumerated" else Thinks('{"thoughts": "Go on."}')
    with closing(make_env(name, **json.loads(options))) as env:  # an open connection to a server draws random numbers
        episodes = [Episode(task, seed) for seed, task in enumerate(env.split_tasks("train")[:2])]
        return rollout([env], episodes, policy=policy, seats=seats, layout=layout)


@pytest.fixture(scope="module")
def published_games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where ALFWorld's published games would be, there are two of our own."""
    root = tmp_path_factory.mktemp("published")
    for game in make_games("all", "train", 2, scenes=HOUSES):
        publish(root / "json_2.1.1" / FOLDERS["train"], game)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALFWORLD_DATA", str(root))
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("published_games")
@pytest.mark.parametrize("name", NAMES)
def test_x1_a_recipe_loads_round_trips_and_plays(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    if recipe.env.name == "verifiers":
        pytest.importorskip("verifiers", reason="needs the extra verifiers")
    check_recipe(recipe)
    with closing(make_env(recipe.env.name, **recipe.env.options)) as env:
        layout, roles = recipe.layout(env.instructions), seated(recipe)
    played = two_episodes(recipe.env.name, json.dumps(recipe.env.options), layout, roles)
    assert [{role for turn in each.turns for role in turn.said} for each in played] == [set(roles)] * 2
    assert {turn.decision.choice.written is None for each in played for turn in each.turns} == {
        recipe.prompt.action_mode == "enumerated"
    }
    (tmp_path / "dumped.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "dumped.yaml") == recipe
    assert recipe.name == name.replace("/", "-")
    assert recipe.description
    head = [line for line in recipe_text(name).splitlines() if line.startswith("# ")]
    assert len(head) >= 2
    assert f"# reflectrl run --recipe {name}" in head
    for section in filter(None, (recipe.model, recipe.reflector_model)):
        takes_masks = section.attn_implementation != "flash_attention_2"
        assert section.prefix_reuse == (takes_masks and not section.images)


def test_every_option_and_every_choice_is_used_by_a_recipe() -> None:
    filled_in = {("BudgetSection", "stated"), ("BudgetSection", "chosen")}  # by the loader and the stages
    stated = [setting for name in NAMES for setting in written(yaml.safe_load(recipe_text(name)))]
    assert sorted({option[:2] for option in fields()} - {setting[:2] for setting in stated} - filled_in) == []
    used = {
        (section, name, str(choice))
        for section, name, value in stated
        for choice in (value if isinstance(value, list) else [value])
    }
    known = {(section, name, str(choice)) for section, name, field in fields() for choice in choices(field.annotation)}
    known -= {(section, name, str(field.default)) for section, name, field in fields()}  # used where nothing is said
    known -= {setting for setting in known if setting[1] == "trackers"}  # a tracker is the user's choice
    assert sorted(known - used) == []


# ---- recipes that claim the paper's objective or settings ------------------------------------------------------------

SIBLINGS = [name for name in NAMES if name.startswith("gym_cards/paper_") or name.startswith("alfworld/paper_rl4vlm")]
SIBLINGS += ["alfworld/paper_gtr"]
"""Recipes with the settings of RL4VLM and GTR."""
OTHERS = ["rap/paper_alfworld", "vtifa/paper"]
PAPERS = [name for name in NAMES if "/paper" in name and name not in (*SIBLINGS, *OTHERS)]
CLAIMING = [*PAPERS, "number_line/nano_reinforce", "dangerous_taxi/nano_paper_objective"]


@pytest.mark.parametrize("name", CLAIMING)
def test_a_recipe_that_claims_the_papers_objective_has_it(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.sft.policy.label_smoothing == 0.0
    if recipe.rlft is None:
        return
    assert (recipe.rlft.update, recipe.rlft.advantage) == (Reinforce(), NoBaseline(normalize=False))
    assert (recipe.rlft.gamma, recipe.rlft.terms, recipe.rlft.rewards) == (1.0, Terms(entropy=None), {"env": 1.0})


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_recipe_has_table_3(name: str) -> None:
    recipe = load_recipe(name)
    assert (recipe.model.name, recipe.model.quantization) == ("openai-community/gpt2-xl", "8bit")
    assert recipe.model.max_length == 1024
    assert recipe.model.lora is not None
    assert (recipe.model.lora.r, recipe.model.lora.alpha) == (64, 16)
    for player in (recipe.sft.reflector, recipe.sft.policy):
        assert player.batch_size == player.micro_batch_size <= 2
        assert (player.lr_scheduler_type, player.warmup) == ("constant_with_warmup", 0.03)
        assert (player.learning_rate, player.max_grad_norm, player.weight_decay) == (2e-4, 0.3, 1e-3)
    if recipe.rlft is None:
        return
    assert (recipe.rlft.learning_rate, recipe.rlft.max_grad_norm, recipe.rlft.weight_decay) == (2e-4, 0.3, 1e-3)
    assert recipe.rlft.learning_rate_end == 1.0
    assert (recipe.rlft.episodes, recipe.rlft.replay) == (4, Replay(size=50, episodes=1))
    assert sum(lesson.iterations for lesson in recipe.rlft.lessons) % 5000 == 0


@pytest.mark.parametrize(
    ("env", "tasks", "episodes", "own"),
    [
        ("dangerous_taxi", None, 100, {"paper_dropoff", "paper_curriculum", "paper_reflectors"}),
        ("auto_explore", 44, 440, {"paper_no_negatives"}),
        ("alfworld", 4, 100, set()),
    ],
)
def test_the_papers_arms_have_recipes_that_evaluate_as_often_as_table_2(
    env: str, tasks: int | None, episodes: int, own: set[str]
) -> None:
    arms = {"paper", "paper_no_reflection", "paper_rlft_only", "paper_sft_only"}
    assert {f"{env}/{arm}" for arm in arms | own} == {name for name in PAPERS if name.startswith(env)}
    for name in (name for name in PAPERS if name.startswith(env)):
        section = load_recipe(name).eval
        assert (section.max_tasks, section.episodes) == (tasks, episodes)


@pytest.mark.parametrize("name", SIBLINGS)
def test_a_recipe_of_thoughts_has_the_settings_of_rl4vlm_and_gtr(name: str) -> None:
    recipe = load_recipe(name)
    lora, rlft, policy, corrector = recipe.model.lora, recipe.rlft, recipe.players.policy, recipe.players.corrector
    assert lora is not None
    assert rlft is not None
    assert isinstance(rlft.update, PPO)
    assert isinstance(rlft.advantage, GAE)
    assert (lora.r, lora.alpha) == (128, 256)
    assert (recipe.prompt.action_mode == "enumerated") == (not name.endswith(("_rl4vlm", "_gtr")))
    if recipe.prompt.action_mode == "json":
        assert (policy.max_new_tokens, policy.temperature) == (256, 0.2)
    assert (rlft.update.epsilon, rlft.update.num_iterations) == (0.1, 4)
    assert (rlft.gamma, rlft.advantage.gae_lambda) == (0.9, 0.95)
    assert (rlft.learning_rate, rlft.max_grad_norm) == (1e-5, 0.01)
    assert rlft.thought_lambda == (0.2 if recipe.env.name == "alfworld" else 0.5)
    if recipe.env.name == "gym_cards":
        assert (recipe.model.name, recipe.model.images) == ("llava-hf/llava-v1.6-mistral-7b-hf", True)
        cosine = math.cos(math.pi * rlft.lessons[0].iterations / 25)
        assert rlft.learning_rate_end == pytest.approx((1 + cosine) / 2, abs=0.005)
        assert (rlft.learning_rate_schedule == "cosine") == (rlft.lessons[0].iterations == 25)
    assert (corrector is not None) == name.endswith("_gtr")
    if corrector is not None:
        assert (corrector.endpoint.model, corrector.endpoint.temperature) == ("gpt-4o", 0.4)
        assert corrector.tool == (recipe.env.options.get("game") == "points24")
        asked = {"points24": 4, "ez_points": 3, "blackjack": 2}.get(recipe.env.options.get("game", ""))
        assert len(corrector.questions) == (asked or (3 if recipe.env.name == "alfworld" else 2))
        assert rlft.rewards["format"] == 5.0


@pytest.mark.parametrize("name", [*SIBLINGS, *OTHERS])
def test_a_recipe_that_was_never_run_says_so_and_what_it_needs(name: str) -> None:
    head = recipe_text(name).partition("# reflectrl run")[0]
    assert re.search("[Nn]ot (trained|run)( # )? ?here", head.replace("\n", " "))
    assert "GPU" in head
