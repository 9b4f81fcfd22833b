"""The sft stage: the base of both players, then each player from this base."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.config.schema import MIN_SFT_STEPS, SFTPlayerSection
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import write_jsonl
from reflectrl.core.metric import tracked
from reflectrl.core.run_files import (
    FAILURES,
    POLICY_SFT,
    REFLECTOR,
    checkpoints_folder,
    sft_rows_file,
    sft_training_file,
)
from reflectrl.core.seeds import derive_seed
from reflectrl.core.stop import gentle_stops, tell_user
from reflectrl.data_gen.rows import Row, read_rows
from reflectrl.lm.load import BUILTIN, LanguageModel, check_labels, new_model, save_model
from reflectrl.pipeline.compute import release_memory
from reflectrl.pipeline.console import Advance
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.launch import is_main_process, main_first, wait_for_all
from reflectrl.pipeline.prompt_lengths import check_prompt_lengths, warn_of_cut_words
from reflectrl.pipeline.team import Team
from reflectrl.pipeline.trackers import tracking
from reflectrl.prompts.format import REFLECTION_CUE
from reflectrl.rollout.iteration import SFTProgress
from reflectrl.seats.reflector import frozen_reflector
from reflectrl.training.checkpoints import checkpoint_step
from reflectrl.training.sft import SFTSummary, train_sft
from reflectrl.training.sft_examples import Player
from reflectrl.training.sharding import whole_weights

SFT_SHARE = 0.6
"""Share of the rest of a budget's time for the stage, which ends earlier where there is nothing more to learn."""
AT_ONCE = 512
"""Number of prompts that a trained reflector answers at once."""


def wanted_players(recipe: Recipe) -> Mapping[Player, str]:
    """Return the players that a recipe fine-tunes and their folders; a single player learns from both kinds of rows."""
    if not recipe.sft.enabled:
        return {}
    if recipe.players.reflector.player == "self":
        return {"both": POLICY_SFT}
    if recipe.players.reflector.fine_tuned:
        return {"reflector": REFLECTOR, "policy": POLICY_SFT}
    return {"policy": POLICY_SFT}


def training_rows(recipe: Recipe, run: RunFolder, player: Player) -> list[Row]:
    """Return the rows that ``player`` is trained on, at most ``max_rows`` of each kind."""
    policy = "policy-no-reflection" if recipe.players.reflector.player == "none" else "policy"
    rows: list[Row] = []
    if player != "policy":
        rows += _first(run, "reflector", recipe.sft.reflector.max_rows)
    if player != "reflector":
        rows += _first(run, policy, recipe.sft.policy.max_rows)
    return rows


def _first(run: RunFolder, name: str, count: int | None) -> list[Row]:
    return read_rows(run.verified(sft_rows_file(name), "gen-data"), count)


def reflected_rows(run: RunFolder, rows: Sequence[Row]) -> list[Row]:
    """Return the reflector's row of the same sample for each of the policy's first ``rows``."""
    return _first(run, "reflector", len(rows))


def shows(row: Row, source: Row) -> bool:
    """Return whether a policy's row shows the reflection that its state was given, not another one or none."""
    return f"{REFLECTION_CUE}{source.completion}\n" in row.prompt.said


def with_own_reflections(recipe: Recipe, run: RunFolder, rows: Sequence[Row], sources: Sequence[Row]) -> list[Row]:
    """Exchange the teacher's words in ``sft.policy.own_reflections`` of the policy's rows for the trained reflector's.

    They are what the policy reads at play, so that it learns how far to trust them; rows whose reflection is missing or
    another's stay as they are.
    """
    rng = random.Random(derive_seed(recipe.seed, "own reflections"))
    cue, chosen, players = REFLECTION_CUE, dict[int, Row](), Team(recipe, run)
    for number, (row, source) in enumerate(zip(rows, sources, strict=True)):
        drawn = rng.random() < recipe.sft.policy.own_reflections
        if drawn and shows(row, source):
            chosen[number] = source
    reflector = frozen_reflector(recipe.players.reflector, players.frozen_model(None, "reflector"))
    numbers = sorted(chosen, key=lambda number: chosen[number].prompt.text)  # neighbours share their beginnings
    found = list(rows)
    for begin in range(0, len(numbers), AT_ONCE):
        some = numbers[begin : begin + AT_ONCE]
        words = reflector.answer([chosen[number].prompt for number in some], [0.0] * len(some))
        for number, own in zip(some, words, strict=True):
            prompt, taught = rows[number].prompt, f"{cue}{chosen[number].completion}\n"
            said = prompt.said.replace(taught, f"{cue}{players.layout.completion(own.text)}\n", 1)
            found[number] = replace(rows[number], prompt=replace(prompt, said=said))
    return found


def check_taught(recipe: Recipe, run: RunFolder, player: Player) -> None:
    """Check that a player whose rows show its own reflector's words has one.

    Raises:
        InvalidInput: the reflector is not trained yet.
    """
    own = recipe.sft.policy.own_reflections if player == "policy" else 0.0
    if own and not (run / REFLECTOR).is_dir():
        raise InvalidInput(
            f"sft.policy.own_reflections={own:g}, but {run / REFLECTOR} is not trained yet; fine-tune the reflector "
            "first, or both players with one command."
        )


def train_player(recipe: Recipe, run: RunFolder, player: Player, advance: Advance, until: float = math.inf) -> None:
    """Train ``player`` from the base model and save it; a player that exists already is not trained again.

    With a budget, it is planned to take ``until`` then, a reading of ``time.monotonic``. Raises as ``check_taught``.
    """
    folder = run / wanted_players(recipe)[player]
    checkpoints = run / checkpoints_folder(f"sft-{player}")
    if not folder.is_dir():
        check_taught(recipe, run, player)
        _train(recipe, run, player, advance, folder, checkpoints, until)
    if is_main_process():
        shutil.rmtree(checkpoints, ignore_errors=True)  # only needed if a process is killed before the player is saved
    wait_for_all()


def _train(
    recipe: Recipe,
    run: RunFolder,
    player: Player,
    advance: Advance,
    folder: Path,
    checkpoints: Path,
    until: float,
) -> None:
    section = recipe.sft.reflector if player == "reflector" else recipe.sft.policy
    seen: dict[str, SFTProgress] = {}

    def checked(checks: Mapping[str, Sequence[SFTProgress]]) -> None:
        for each, records in checks.items():
            if records:  # none yet where training goes on from before the first check
                write_jsonl(run / sft_training_file(each), records)
                seen[each] = records[-1]
                sent.log(seen[each].step, tracked(seen[each], prefix=f"{each}/"))

    def after(step: int, steps: int, loss: float) -> None:
        advance(step, steps, f"loss {loss:.3f}{_accuracies(seen)}")
        sent.log(step, {"loss": loss})
        release_memory()

    first = max(map(checkpoint_step, checkpoints.glob("*/checkpoint-*")), default=0)
    if not is_main_process():
        whole_weights(fine_tune(recipe, run, player, checkpoints)[0].model)
        return
    with tracking(recipe, run.path, f"sft-{player}", first) as sent:
        lm, summary = fine_tune(recipe, run, player, checkpoints, after, checked, until=until)
    save_model(lm, folder, whole_weights(lm.model))
    advance(summary.steps, summary.steps, _note(summary, section))


def fine_tune(
    recipe: Recipe,
    run: RunFolder,
    player: Player,
    checkpoints: Path,
    on_step: Callable[[int, int, float], None] | None = None,
    on_check: Callable[[Mapping[str, Sequence[SFTProgress]]], None] | None = None,
    *,
    check_lengths: bool = True,
    until: float = math.inf,
) -> tuple[LanguageModel, SFTSummary]:
    """Return ``player``'s model, trained from its base with checkpoints in a folder, and what its training was like.

    With a budget, it is planned to take ``until`` then, a reading of ``time.monotonic``.
    """
    rows, unlike_play = training_rows(recipe, run, player), frozenset[int]()
    own = recipe.sft.policy.own_reflections
    if player == "policy" and recipe.players.reflector.player != "none" and (recipe.data.reflection_dropout or own):
        sources = reflected_rows(run, rows)
        unlike_play = frozenset(number for number, source in enumerate(sources) if not shows(rows[number], source))
        if own and (run / REFLECTOR).is_dir():  # there is none where `estimate` times a step
            rows = with_own_reflections(recipe, run, rows, sources)
        release_memory()  # of the reflector, before the policy takes its place
    run_players = Team(recipe, run)
    role = "reflector" if player == "reflector" else "policy"
    with main_first():  # it writes the base
        base = run_players.base(role)
    if recipe.model.name != BUILTIN:  # whose labels are tokens by construction
        check_labels(recipe.model, run_players.labels)  # of the policy too, before the reflector trains for hours
    lm = new_model(base, labels=run_players.labels, seed=derive_seed(recipe.seed, "new", player))
    section = recipe.sft.reflector if player == "reflector" else recipe.sft.policy
    roles = ("reflector", "policy") if player == "both" else (player,)
    played = [lesson.env for lesson in recipe.rlft.lessons] if recipe.rlft is not None else [{}]
    if check_lengths and is_main_process():
        check_prompt_lengths(run_players, dict.fromkeys(roles, lm), "train", played)
    limits = {role: getattr(recipe.players, role).max_new_tokens for role in roles}
    if is_main_process():
        warn_of_cut_words(lm, rows, limits, recipe.prompt.action_mode)

    with gentle_stops(tell_user if is_main_process() else lambda _: None) as stop:
        if recipe.budget is not None:
            stop.deadline, stop.least = recipe.budget.deadline(f"sft.{role}.steps", until), MIN_SFT_STEPS
        summary = train_sft(
            lm,
            rows,
            player=player,
            section=section,
            labels=run_players.labels,
            max_length=base.max_length,
            max_new_tokens=limits,
            drop_long_rows=recipe.sft.drop_long_rows,
            unchecked=unlike_play,
            output_dir=checkpoints,
            seed=derive_seed(recipe.seed, "sft", player),
            action_mode=recipe.prompt.action_mode,
            prefix_reuse=base.prefix_reuse,
            on_step=on_step,
            on_check=on_check,
            stop=stop,
            failures=run / FAILURES,
        )
    return lm, summary


def _accuracies(checks: Mapping[str, SFTProgress]) -> str:
    """Return the held-out accuracy of each player, of one without its name; empty before the first check."""
    named = len(checks) > 1
    shown = (f"{f' of the {player}' if named else ''} {each.accuracy:.0%}" for player, each in checks.items())
    return f"  held-out accuracy{','.join(shown)}" if checks else ""


def _note(summary: SFTSummary, section: SFTPlayerSection) -> str:
    """Return the closing note: what was trained on, why training ended, and which weights were kept."""
    dropped = f", {summary.dropped} too long" if summary.dropped else ""
    trained = f"{summary.rows} rows{dropped}, loss {summary.last_loss:.3f}"
    if not summary.best:
        few = "; too few to hold any out" if section.held_out else ""
        return f"{trained}{few}"
    end = {"bound": "its bound", "minutes": "the end of the budget's minutes", "plateau": "a plateau"}[summary.ended]
    losses = ", ".join(f"{each.held_out_loss:.3f}" for each in summary.best.values())
    [step] = {each.step for each in summary.best.values()}
    return (
        f"{trained}; ended at {end}, step {summary.steps}; kept step {step}: held-out loss {losses}"
        f"{_accuracies(summary.best)} ({summary.held_out} rows)"
    )
