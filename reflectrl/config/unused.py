"""Settings of a recipe that another of its settings makes useless, which ``load_recipe`` refuses."""

from __future__ import annotations

from collections.abc import Iterator

from reflectrl.config.schema import Recipe
from reflectrl.core.run_files import DATASET
from reflectrl.prompts.format import WRITTEN_ACTIONS
from reflectrl.seats.base import unused_by_server


def _unused_by_players(recipe: Recipe) -> Iterator[str]:
    for kind, section in recipe.players.frozen:
        yield from section.unused(f"players.{kind.role.name}")
    if recipe.eval.memory is not None:
        yield from recipe.eval.memory.unused("eval.memory")
    if recipe.players.policy.server is not None:
        yield from unused_by_server(recipe.players.policy.server, "players.policy.server")
    trials, remembers = recipe.eval.trials, recipe.players.memory or recipe.eval.memory
    if trials is not None and remembers is None and trials.begin_with != "nothing":
        yield "eval.trials.begin_with: it is what a memory begins with, but the recipe has none; add eval.memory."


def unused_settings(recipe: Recipe) -> Iterator[str]:
    """Yield one line for each setting that has no effect: the key, why, and what to change."""
    yield from _unused_by_players(recipe)
    env, reflector, rlft = recipe.env, recipe.players.reflector, recipe.rlft
    recent = recipe.prompt.history
    if not recent.steps and (recent.show != "actions" or recent.reward):
        yield "prompt.history: it says how past steps are shown, but steps is 0; raise it, or set history to 0."
    if not env.workers and env.max_memory_mb is not None:
        yield "env.max_memory_mb: it limits worker processes, but env.workers is 0; set env.workers, or remove it."
    if recipe.dataset is not None and DATASET in env.options:
        yield f"env.options.{DATASET}: the tasks are those that the section {DATASET} makes; remove one of the two."
    if recipe.reflector_model is not None and not reflector.fine_tuned:
        yield (
            "reflector_model: it is the model of a fine-tuned reflector, but players.reflector.player is "
            f"{reflector.player}; set reflector_model to null."
        )
    for role in ("reflector", "policy"):
        section = getattr(recipe.sft, role)
        if given := [name for name in ("check_every", "patience") if getattr(section, name) and not section.held_out]:
            yield (
                f"sft.{role}.{given[0]}: it is about checks on held-out rows, but sft.{role}.held_out is 0; raise it, "
                "or remove this."
            )
    for number, stage in enumerate(rlft.stages if rlft is not None else ()):
        if stage.success_threshold is not None and stage.iterations < stage.window:
            yield (
                f"rlft.stages.{number}.success_threshold: it is compared with the mean of rlft.stages.{number}.window="
                f"{stage.window} iterations, but the stage has {stage.iterations}; lower the window, or remove it."
            )
        if stage.success_threshold is None and stage.window != type(stage).window:
            yield (
                f"rlft.stages.{number}.window: it is that of success_threshold, which the stage lacks; set it, or "
                "remove it."
            )
        if stage.replay_threshold is not None and rlft is not None and rlft.replay is None:
            yield (
                f"rlft.stages.{number}.replay_threshold: no episodes are replayed; set rlft.replay, e.g. "
                "{size: 256, episodes: 16}, or remove it."
            )
    if rlft is not None and rlft.value is not None and rlft.value.clip and rlft.updates_per_iteration == 1:
        yield (
            "rlft.advantage.value.clip: it limits how far later updates of an iteration move the values, but there is "
            "one; raise num_minibatches or num_iterations of rlft.update, with kind ppo, or remove it."
        )
    if rlft is not None and not any(rlft.rewards.values()):
        yield "rlft.rewards: all weights are 0, so no step is better than another; give env or rater a weight."
    if rlft is not None and rlft.learning_rate_schedule != "linear" and rlft.learning_rate_end == 1:
        yield (
            "rlft.learning_rate_schedule: it is the way to rlft.learning_rate_end, but at 1 the learning rate stays "
            "the same; set rlft.learning_rate_end below 1, or remove the schedule."
        )
    if recipe.sft.policy.label_smoothing and recipe.prompt.action_mode in WRITTEN_ACTIONS:
        yield (
            "sft.policy.label_smoothing: it is spread over the labels of menus, but with prompt.action_mode="
            f"{recipe.prompt.action_mode} the policy answers with none; set it to 0."
        )
    if recipe.sft.policy.own_reflections and not reflector.fine_tuned:
        yield (
            "sft.policy.own_reflections: the policy's rows show words of the reflector that was fine-tuned before, but "
            f"players.reflector.player={reflector.player} has none; set it to 0, or the player to local."
        )
    if "" in recipe.eval.groups:
        yield "eval.groups: every task's id begins with '', so its row would repeat that of all tasks; remove it."
    if recipe.eval.controls and "rlft" not in recipe.eval.policies:
        yield (
            "eval.controls: they replace the reflections of the policy rlft, which eval.policies leaves out; add it, "
            "or set eval.controls to []."
        )
