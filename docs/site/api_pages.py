"""The API reference: which modules stand on which page; what is said about them are their docstrings."""

from __future__ import annotations

API = {
    "core": ("Episodes and environments", ["reflectrl.core"]),
    "players": (
        "Players and prompts",
        [
            "reflectrl.prompts",
            "reflectrl.prompts.views",
            "reflectrl.prompts.players",
            "reflectrl.endpoint.endpoint",
        ],
    ),
    "seats": (
        "Seats",
        [
            "reflectrl.seats.table",
            "reflectrl.seats.base",
            "reflectrl.seats.own",
            "reflectrl.seats.others",
            "reflectrl.seats.planner",
            "reflectrl.seats.memory",
            "reflectrl.seats.reflector",
            "reflectrl.seats.corrector",
            "reflectrl.seats.rater",
        ],
    ),
    "rollout": (
        "Rollouts and records",
        ["reflectrl.rollout", "reflectrl.rollout.record", "reflectrl.rollout.results"],
    ),
    "memory": (
        "Memory",
        [
            "reflectrl.seats.experience",
            "reflectrl.seats.embedders",
            "reflectrl.seats.neural",
            "reflectrl.seats.retriever",
        ],
    ),
    "raters": (
        "Raters",
        ["reflectrl.prompts.rating", "reflectrl.rollout.agreement"],
    ),
    "data": (
        "Recipes and data",
        [
            "reflectrl.config",
            "reflectrl.config.training",
            "reflectrl.config.advantage",
            "reflectrl.data_gen.generate",
            "reflectrl.data_gen.rows",
        ],
    ),
    "models": ("Models", ["reflectrl.lm.load", "reflectrl.lm.policy", "reflectrl.lm.writer"]),
    "training": (
        "Training",
        [
            "reflectrl.training.config",
            "reflectrl.training.rlft",
            "reflectrl.training.validation",
            "reflectrl.training.objective",
            "reflectrl.training.sft",
        ],
    ),
    "pipeline": (
        "Pipeline",
        [
            "reflectrl.pipeline.run",
            "reflectrl.rollout.loop",
            "reflectrl.pipeline",
            "reflectrl.pipeline.agent",
            "reflectrl.report",
        ],
    ),
    "sharing": (
        "Sharing and serving",
        ["reflectrl.share.export", "reflectrl.share.server", "reflectrl.share.wire", "reflectrl.cli.envs"],
    ),
}
"""Page to its title and modules."""


def api_page(name: str) -> str:
    """The Markdown of a page; mkdocstrings fills it."""
    title, modules = API[name]
    return "\n\n".join([f"# {title}", *(f"## `{module}`\n\n::: {module}" for module in modules)]) + "\n"
