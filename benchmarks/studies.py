"""The arms of ``benchmarks/siblings.py``: recipes that follow RL4VLM, GTR, RAP and V-TIFA, or train SmolLM2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arms import NATIVE, Arm


@dataclass(frozen=True)
class Study:
    """Recipes that are compared in one table."""

    title: str
    arms: tuple[Arm, ...]
    """The compared arms; the first is the baseline."""


def _thoughts(game: str, *further: Arm) -> tuple[Arm, ...]:
    return (
        Arm("nothought", "no thought", f"gym_cards/nano_{game}_nothought"),
        Arm("rl4vlm", "RL4VLM, lambda 0.5", f"gym_cards/nano_{game}_rl4vlm"),
        Arm("gtr", "GTR", f"gym_cards/nano_{game}_gtr"),
        Arm("reflecting", "Reflect-RL", f"gym_cards/nano_{game}_reflect_rl"),
        *further,
    )


def _lambdas(game: str) -> tuple[Arm, ...]:
    weights = {"lambda_0": "0", "lambda_02": "0.2", "lambda_1": "1"}
    return tuple(Arm(name, f"RL4VLM, lambda {each}", f"gym_cards/nano_{game}_{name}") for name, each in weights.items())


def _remembering(embedder: str) -> Arm:
    changed = () if embedder == "hashing" else (f"eval.memory.embedder={embedder}",)
    return Arm(embedder, f"embedder `{embedder}`", "rap/nano_trials", changed)


def _pretrained(game: str, seeds: str, *, paper: bool = True) -> tuple[Arm, ...]:
    """Return the arms of a game, three seeds each: runs of pretrained models take longer than those of tiny ones."""
    recipe, silent = f"smollm2/{game}", ("players.reflector.player=none", "eval.controls=[]")
    controls = ("eval.controls=[blank,shuffled]",)
    arms = (
        Arm("silent", "without reflection", recipe, silent, seeds, (NATIVE,)),
        Arm("reflecting", "**Reflect-RL**", recipe, controls, seeds, (NATIVE,)),
        Arm("paper", "the paper's objective", f"{recipe}_paper_objective", controls, seeds, (NATIVE,)),
    )
    return arms if paper else arms[:2]


STUDIES: Mapping[str, Study] = {
    "pretrained_number_line": Study("SmolLM2-135M on the number line", _pretrained("number_line", "80-82")),
    # settings of the taxi and of ALFWorld were changed after seeds 80-82 had been tested
    "pretrained_taxi": Study("SmolLM2-135M picks up a passenger", _pretrained("taxi_pickup", "90-92")),
    "pretrained_explore": Study("SmolLM2-135M finds the file that answers", _pretrained("auto_explore", "80-82")),
    "pretrained_alfworld": Study(
        "SmolLM2-135M puts a tomato in the microwave", _pretrained("alfworld_tomato", "90-92")
    ),
    "thoughts_number_line": Study(
        "NumberLine in words",
        _thoughts(
            "number_line",
            *_lambdas("number_line"),
            Arm("latest", "GTR, only the newest corrections", "gym_cards/nano_number_line_gtr_latest"),
            Arm("choice", "a thought, then a label (`thought_choice`)", "gym_cards/nano_number_line_thought_choice"),
        ),
    ),
    "thoughts_ez_points": Study("EZPoints in words", _thoughts("ez_points", *_lambdas("ez_points"))),
    "thoughts_points24": Study("Points24 in words", _thoughts("points24")),
    "thoughts_blackjack": Study("Blackjack in words", _thoughts("blackjack")),
    "thoughts_credit": Study(
        "Credit for texts that name no legal action",
        (
            Arm("text", "the random action's advantage", "gym_cards/nano_number_line_rl4vlm"),
            Arm("mask", "none", "gym_cards/nano_number_line_mask"),
        ),
    ),
    "thoughts_pictures": Study(
        "NumberLine in pictures",
        (
            Arm("nothought", "no thought", "gym_cards/nano_number_line_image_nothought"),
            Arm("rl4vlm", "RL4VLM, lambda 0.5", "gym_cards/nano_number_line_image_rl4vlm"),
            Arm("gtr", "GTR", "gym_cards/nano_number_line_image_gtr"),
        ),
    ),
    "thoughts_cotraining": Study(
        "A reflector that is trained too, in AutoExplore",
        (
            Arm(
                "frozen",
                "reflector frozen",
                "auto_explore/nano_cotrained",
                ("players.reflector.trained=false", "players.reflector.temperature=0", "rlft.thought_lambda=0.5"),
            ),
            Arm("trained", "reflector trained", "auto_explore/nano_cotrained"),
            Arm("choice", "reflector and thoughts trained", "auto_explore/nano_cotrained_thought_choice"),
        ),
    ),
    "memory_alfworld": Study(
        "A memory in ALFWorld's tomato task",
        (
            Arm("no_memory", "no memory", "rap/alfworld_nano_no_memory"),
            Arm("action", "action key", "rap/alfworld_nano_action_key"),
            Arm("observation", "observation key", "rap/alfworld_nano"),
            Arm("no_key", "no key", "rap/alfworld_nano_no_key"),
        ),
    ),
    "memory_robots": Study(
        "A memory for a robot arm",
        (
            Arm("no_memory", "no memory", "rap/robots_nano_no_memory"),
            Arm("memory", "memory", "rap/robots_nano"),
        ),
    ),
    "memory_line": Study(
        "Trials on the number line",
        (
            *map(_remembering, ("hashing", "minilm", "self")),
            Arm("taught", "trained with it, too", "rap/nano_trials_taught"),
        ),
    ),
    "raters_line": Study(
        "Ratings on the number line",
        (
            Arm("true", "true rewards", "vtifa/nano_true_reward"),
            Arm("rated", "ratings, nine of ten right", "vtifa/nano"),
            Arm("learned", "ratings of a small model that was trained on such", "vtifa/nano_learned"),
            Arm("uninformative", "ratings, half of them right", "vtifa/nano_uninformative"),
        ),
    ),
    "raters_endpoint": Study(
        "Ratings of a scripted chat model on the number line",
        (
            Arm("actions", "shown states and actions", "vtifa/nano_endpoint"),
            Arm("no_actions", "shown no actions", "vtifa/nano_no_actions"),
        ),
    ),
}
"""Studies by the names of their tables, which begin with the kind of their additional columns."""
GPU_STUDIES: Mapping[str, Study] = {
    "pretrained_families": Study(
        "SmolLM2-135M and ALFWorld's six task families", _pretrained("alfworld_families", "80-82", paper=False)
    ),
    "pretrained_explorer": Study(
        "SmolLM2-135M searches packages that it has never seen", _pretrained("explorer", "80-82", paper=False)
    ),
}
"""Studies that only ``gpu.py`` trains."""
