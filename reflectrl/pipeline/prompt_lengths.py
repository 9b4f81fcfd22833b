"""A check, before a stage starts, that the prompts of a recipe fit its models."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reflectrl.config.environment import RecipeEnvs
from reflectrl.core import InvalidInput, Trajectory, Utterance, WorkFailed
from reflectrl.core.run_files import POLICY_SFT, TEACHER
from reflectrl.core.seeds import derive_seed
from reflectrl.data_gen.rows import Row
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.plain_text import PlainText
from reflectrl.pipeline.team import Team
from reflectrl.prompts import History, Prompt, PromptFormat
from reflectrl.prompts.format import ActionMode
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.record import read_longest
from reflectrl.rollout.turn import policy_views, states_of
from reflectrl.seats.memory import MemoryPlayerSection
from reflectrl.seats.others import RandomPolicy
from reflectrl.seats.table import Seat, view

TASKS = 4
"""Number of tasks that are played at random, one episode each, for each of the environment's option sets."""
MAX_PROMPTS = 16
"""Maximum number of prompts that are tokenized: those with the most characters."""

_log = logging.getLogger(__name__)


def _check(
    player: str,
    lm: LanguageModel,
    limit: tuple[str, int],
    tokens: Mapping[str, int],
    prompts: Sequence[Prompt],
    shown: str,
    recent: History,
) -> None:
    """Check the longest of the ``prompts`` that ``player`` reads, which are without the words of others.

    ``limit`` is the recipe key of the maximum length of its model, and its value; ``tokens`` are the numbers of tokens
    that each player writes: ``player`` after its prompt, others in it; ``shown`` says how to show less.
    """
    plain = PlainText(lm.tokenizer, lm.pictures)

    def count(prompt: Prompt) -> int:
        return len(plain.prompt(prompt))

    def longest_of(several: Iterable[Prompt]) -> list[Prompt]:
        return sorted(several, key=lambda prompt: -len(prompt.text))[:MAX_PROMPTS]

    longest = longest_of(replace(prompt, history=()) for prompt in prompts)
    key, max_length = limit
    writing = [f"lower players.{name}.max_new_tokens" for name, count in tokens.items() if count]
    cure = f"{', '.join([f'raise {key}', *writing])}, or {shown}"
    left = max_length - tokens.get(player, 0)
    for prompt in longest:
        least = min(count(prompt.shortest), count(prompt))
        if least > left:
            raise InvalidInput(
                f"the {player}'s prompt of a state has {least} tokens without anything that may be cut, but "
                f"{key}={max_length} leaves it {left}; {cure}."
            )
    added = sum(tokens.values())
    most = max(map(count, longest), default=0) + added
    if most > max_length:
        _log.warning(
            f"the {player}'s longest prompt that was found takes {most} tokens without history, {added} of them "
            f"for what players write, but {key}={max_length}: longer ones will be cut. To "
            f"show all, {cure}."
        )
    elif (
        recent.show == "transitions" and (whole := max(map(count, longest_of(prompts)), default=0) + added) > max_length
    ):
        _log.warning(
            f"the {player}'s longest prompt that was found takes {whole} tokens with its history, {added} of them for "
            f"what players write, but {key}={max_length}: of the {recent.steps} past states that prompt.history shows, "
            f"the oldest will be left out. To show all, {cure}, e.g. a short form of past states "
            "(Observation.short); or lower prompt.history.steps."
        )


def check_prompt_lengths(
    run_players: Team,
    models: Mapping[str, LanguageModel],
    split: str,
    options: Sequence[Mapping[str, Any]],
    memory: MemoryPlayerSection | None = None,
) -> None:
    """Warn of prompts that will be truncated, and refuse those that cannot be.

    The states are those of the teacher's longest episodes, and of episodes of ``split`` that are played to their ends
    at random, in an environment for each of ``options``, which override the recipe's. ``memory`` replaces the recipe's.

    Raises:
        InvalidInput: a prompt that cannot be made to fit.
    """
    reflector = run_players.recipe.players.reflector
    run, layout = run_players.run, run_players.layout
    taught = read_longest(run.verified(TEACHER, "gen-data"), MAX_PROMPTS) if (run / TEACHER).is_file() else []
    said = {} if reflector.player == "none" else {"reflector": Utterance("")}  # no reflection is written yet
    played = [
        replace(trajectory, turns=tuple(replace(turn, said=said) for turn in trajectory.turns))
        for trajectory in (*taught, *_at_random(run_players, split, options))
    ]
    recalling = [each for each in run_players.playing(None, POLICY_SFT, memory) if each.role == "memory"]
    for seat in recalling:
        played = [_recalling(trajectory, seat, layout) for trajectory in played]
    prompts = {
        "policy": [each.prompt for trajectory in played for each in policy_views(trajectory, layout)],
        "reflector": [
            view("reflector", layout, state).prompt for trajectory in played for state in states_of(trajectory)
        ],
    }
    speaks = 0 if reflector.player in ("none", "expert") else reflector.max_new_tokens
    thinks = 0 if layout.action_mode == "enumerated" else run_players.recipe.players.policy.max_new_tokens
    for player, lm in models.items():
        tokens = {"reflector": speaks} if player == "reflector" else {"reflector": speaks, "policy": thinks}
        own = player == "reflector" and run_players.recipe.reflector_model is not None
        limit = f"{'reflector_model' if own else 'model'}.max_length", run_players.section(player).max_length
        shown = "have the environment" + (" or the memory (its max_chars)" if recalling else "") + " show less"
        _check(player, lm, limit, tokens, prompts[player], shown, layout.recent)


def warn_of_cut_words(lm: LanguageModel, rows: Sequence[Row], limits: Mapping[str, int], mode: ActionMode) -> None:
    """Warn if players are trained on texts that are longer than those they may write at play.

    ``limits`` are the numbers of tokens that each player may write; one that answers with a label alone writes nothing.
    """
    plain = PlainText(lm.tokenizer)
    for player, limit in limits.items():
        if player == "policy" and mode == "enumerated":
            continue
        thinks = player == "policy" and mode == "thought_choice"  # and then answers with a label, which is never cut
        texts = Counter(row.thought if thinks else row.written(mode) for row in rows if row.player == player)
        lengths = {text: len(plain.answer(text)) for text in texts}
        if cut := sum(count for text, count in texts.items() if lengths[text] > limit):
            _log.warning(
                f"{cut / texts.total():.0%} of the texts that the {player} is trained to write have more than "
                f"players.{player}.max_new_tokens={limit} tokens and will be cut at play; to play whole ones, set it "
                f"to {max(lengths.values())}."
            )


def _recalling(trajectory: Trajectory, memory: Seat, layout: PromptFormat) -> Trajectory:
    views = [view(memory.role, layout, state) for state in states_of(trajectory)]
    pairs = zip(trajectory.turns, memory.player.say(views, [0.0] * len(views)), strict=True)
    turns = (replace(turn, said={**turn.said, memory.role: words}) for turn, words in pairs)
    return replace(trajectory, turns=tuple(turns))


def _at_random(run_players: Team, split: str, options: Sequence[Mapping[str, Any]]) -> Iterator[Trajectory]:
    distinct = [each for number, each in enumerate(options) if each not in options[:number]]
    with RecipeEnvs(run_players.recipe, run_players.run.path, on_failure="drop") as envs:
        for each in distinct:
            (env,) = envs.make(each, 1)
            tasks = env.split_tasks(split)
            chosen = tasks[:: max(1, len(tasks) // TASKS)][:TASKS]
            episodes = [
                Episode(task, derive_seed(run_players.recipe.seed, "prompt lengths", task.id)) for task in chosen
            ]
            with contextlib.suppress(WorkFailed):  # reported when it happens in the stage itself
                yield from rollout([env], episodes, policy=RandomPolicy(), seats=(), layout=run_players.layout)
            env.close()
