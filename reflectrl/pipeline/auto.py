"""Settings that a recipe with a ``budget`` leaves open, chosen from measurements on this machine.

What gen-data reads and the shapes of models are chosen from a survey of the environment and of demonstrations; the
bounds of SFT and RLFT from the seconds that a step or an iteration takes with the real models, when their stage begins.
Each choice is written with its reason into the run folder's ``recipe.yaml``, from which a run that continues takes it
again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from reflectrl.config import Recipe, load_recipe, load_saved_recipe
from reflectrl.config.advantage import EpisodeGroup
from reflectrl.config.schema import MIN_ITERATIONS, MIN_SFT_STEPS
from reflectrl.config.training import KL_OF_ENTROPY, PPO, suited
from reflectrl.core.addresses import set_at, value_at
from reflectrl.core.run_files import RECIPE
from reflectrl.data_gen.demonstrations import read_demonstrations
from reflectrl.lm.load import BUILTIN
from reflectrl.pipeline.estimate import seconds_per_iteration, seconds_per_step
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.survey import Survey, survey
from reflectrl.pipeline.team import Team
from reflectrl.prompts.format import THOUGHTS, WRITTEN_ACTIONS
from reflectrl.training.sft_examples import Player
from reflectrl.training.validation import iterations_between

PATIENCE = 20
"""Least number of validations without a new best after which RLFT ends. With 8, it ended on the suite's coin_collector
after 2.5 of 6.4 minutes, and on its tic_tac_toe after 17 s of 7 minutes."""
SURVEY_SHARE, DATA_SHARE = 0.02, 0.1
"""Shares of the time for each kind of episodes in the survey; and, of what is left, for gen-data."""
MAX_SAMPLES, MAX_SFT_STEPS, MAX_ITERATIONS = 40_000, 8000, 4000
MIN_SAMPLES = 500
"""Bounds of what fits into the time. With 400 iterations at most, in which learning rate and entropy fall, triage_free
of the suite ended at 73 % in validation after 2 of 15 minutes; with 2,000, at 97 %, also after 2."""
WRITING = 3e-4
"""Seconds for a sample's rows, besides its step: 40,000 samples of the suite's note_search take 23 s of a processor,
half of them for the steps."""
MAX_CHARACTERS = 40_000_000
"""Size of all prompts at most; SFT can read about as much in a quarter of an hour."""
NOISE = 0.5
"""Probability of a random action in gen-data. Of the states on the expert's way in the test tasks of the suite's
sokoban, 71 % were among 12,000 samples with noise 0.2, and 89 % among 40,000 with 0.5; SFT reached 40 and 89 %."""
CUT_SHORT = 0.5
"""Length of random episodes, as a fraction of the expert's, below which noise would hide how these go on: at the end of
the suite's card_count, which few episodes with noise 0.5 reach, a reflector was right in 9 % of the states."""
MAKING_SHARE = 0.02
"""Share of the time in which the environments that play side by side should be made, each time that they are."""
SIDE_BY_SIDE = 8
"""Least number of environments that play side by side, so that their prompts are read together."""
EVALUATION = 12
"""Length of the evaluation, in iterations of RLFT."""
VALIDATION = 1.25
"""Factor by which validations lengthen RLFT."""
EAGER = 128
"""Length of prompts, in tokens, up to which eager attention is as fast as sdpa for the builtin model; at 312, a step of
fine-tuning takes 488 in place of 271 ms."""
VOCABULARY = 1000
"""Size of the builtin model's vocabulary at most."""
PRIVILEGED = 0.1
"""Maximum ``Ambiguity.privileged`` at which an expert teaches a reflector: beyond it, reflections would claim to know
what no player can."""
MEMORY = 0.02
"""Fraction of states that need a memory from which prompts show past states, however ``observable`` is declared: a
dialogue by telephone that says it is not was learned to 89 % in ten minutes with the last action alone, and to 0 % with
past states, whose prompts take four times as long to learn."""
UNTAUGHT_MEMORY = 0.2
"""Fraction as ``MEMORY`` where no expert tells: chance in the environment that was not recognised counts in it, too."""
REMEMBERED, UNTAUGHT_REMEMBERED = 2000, 500
"""Maximum length of the past states in a prompt, in characters; and where no expert teaches, so that learning takes
many episodes. Of the new mazes of one environment, 52 % were solved after 8 minutes with 15 past states, and 75 % with
4."""
LETTERS = 52
"""Maximum number of labels that are letters."""
KNOWN, FORESEEN = 200, 0.99
"""Maximum number of actions that have labels of their own, and the fraction of the actions in the menus of every second
episode that the other episodes must have shown. In the suite's coin_collector (with 3,000 houses), where menus list the
ways out of a room, success of SFT and RLFT rose from 48 and 48 to 61 and 81 %."""
SHARPEN = (1.0, 2.0)
"""Factors of the logits that are tried before RLFT. Where SFT solved 62 % of sampled and 81 % of greedy episodes of an
environment that nobody tuned, validation success was 61 % with 1 and 69 % with 2; 40 iterations later, 80 and 89 %. A
policy that writes the codes of a Mastermind won 61 and 83 %; 150 iterations later, 66 and 89 %."""
ILLEGAL_WEIGHT = -0.1
"""Weight of the penalty for a text that names no action of the menu. Such texts became rarer in the suite's number_hunt
(14 to 3 % of the steps in 110 iterations of RLFT); in its wordle, without the penalty, commoner (13 to 25 % in 20),
both without an entropy bonus."""
NOVELTY_WEIGHT = 0.1
"""Weight of the reward for new states where nobody teaches, as a fraction of the largest return seen. Where rewards are
dense, it is left out: in an environment that waters fields, the mean return, 0.60 by chance, was 0.72 after 40
iterations without it, and 0.66 after 90 with it."""
REPLAYED = 0.25
"""Number of successful episodes that are replayed in an iteration per new episode, without a teacher. On the suite's
number_hunt, success in validation after 300 iterations was 73 % with them and 56 % without; with as many as new ones,
it rose as fast, but an iteration took twice as long."""
ROOM = 1.2
"""Factor by which prompts and reflections may be longer than the longest that were seen."""
BATCH_TOKENS = 4096
"""Tokens of the rows of an optimizer step of fine-tuning at most, if these are 8 rows or more. A policy of the suite's
catalogue, whose prompts have 376 tokens, imitates 61 % after 160 s of a processor with 8 rows, and 42 % with 32."""
ROWS_TOGETHER = 4
"""Factor of the rows of an optimizer step where all of an episode are read together. A reflector that has to remember
what was said many steps ago writes 42 % of its texts right after 60 s of a processor with 32 rows, which are drawn one
by one then, and 75 % after 30 s with 128."""
WARMUP = 100
"""Steps in which the learning rate of fine-tuning rises."""
_SFT_ENDS = {"check_every": 100, "patience": 8}
"""Fine-tuning ends once held-out rows hardly improve."""
TRUSTING = 1.0
"""Fraction of the policy's rows that show its own reflector's words. On sokoban of the suite, with a reflector that is
right in half of new states, success after fine-tuning was 16 % in place of 9."""
_SFT = {"learning_rate": 1e-3, "max_grad_norm": 1.0, "weight_decay": 1.0}
"""Fine-tuning of a model with random weights; pretrained ones keep the defaults of the section. Weight decay of 1 in
place of 0.001 brought the held-out loss of the reflectors of the suite's tic_tac_toe and sokoban from 0.31 and 0.31 to
0.19 and 0.28 nats in 2,400 steps, and 3 brought the first to 0.34."""


@dataclass(frozen=True)
class Chosen:
    """A setting that was chosen."""

    key: str
    value: Any
    reason: str


def kept(recipe: Recipe, run: RunFolder) -> Recipe:
    """Return a recipe with the settings that were chosen in the run folder before."""
    if recipe.budget is None or not (run / RECIPE).is_file():
        return recipe
    before = load_saved_recipe(run / RECIPE)
    values, reasons = before.model_dump(), before.budget.chosen if before.budget is not None else {}
    return _with(recipe, [Chosen(key, value_at(values, key), reason) for key, reason in reasons.items()])


def chosen(recipe: Recipe, run: RunFolder, stage: str, tell: Callable[[str], None]) -> Recipe:
    """Return a recipe with the open settings chosen that ``stage``, which has not begun, is the first to read.

    Without a ``budget`` it is returned as it is. ``tell`` gets what is measured, and the time that is left.
    """
    if recipe.budget is None or stage not in ("gen-data", "rlft"):
        return recipe
    minutes = recipe.budget.minutes
    if stage == "gen-data":
        tell("surveying the environment")
        seen = survey(recipe, run.path, SURVEY_SHARE * 60 * minutes)
        recipe = _with(recipe, [*_players(recipe, seen)])
        recipe = _with(recipe, [*_layout(recipe, seen)])
        recipe = _with(recipe, [*_model(recipe, run, seen)])  # rows of a step are chosen by its max_length
        return _with(recipe, [*_data(recipe, seen), *_training(recipe, seen)])
    left = 60 * minutes - run.seconds(until=stage)
    tell(f"{max(left, 0) / 60:.1f} of {minutes:g} minutes are left; measuring the pace")
    return _with(recipe, [*_rlft(recipe, run, left, tell)])


def bounded(recipe: Recipe, run: RunFolder, player: Player, until: float, tell: Callable[[str], None]) -> Recipe:
    """Return a recipe with a bound of ``player``'s fine-tuning, which it reaches at the time ``until``.

    ``until`` is a reading of ``time.monotonic``. A bound that was chosen before or is stated stays.
    """
    budget, keys = recipe.budget, [f"sft.{name}.{key}" for name in _roles(player) for key in ("steps", "warmup")]
    if budget is None or all(key in budget.chosen or budget.states(key) for key in keys):
        return recipe
    seconds = until - time.monotonic()
    whose = "both players" if player == "both" else f"the {player}"
    tell(f"{max(seconds, 0) / 60:.1f} of {budget.minutes:g} minutes are for {whose}; measuring the pace")
    return _with(recipe, [*_sft(recipe, run, player, until, tell)])


def _roles(player: Player) -> tuple[str, ...]:
    return ("reflector", "policy") if player == "both" else (player,)


def _with(recipe: Recipe, choices: Sequence[Chosen]) -> Recipe:
    values = recipe.model_dump()
    for choice in choices:
        if recipe.budget is not None and not recipe.budget.states(choice.key):
            set_at(values, choice.key, choice.value)
            values["budget"]["chosen"][choice.key] = choice.reason
    return load_recipe(values)


def _states(recipe: Recipe, key: str) -> bool:
    return recipe.budget is not None and recipe.budget.states(key)


def _players(recipe: Recipe, seen: Survey) -> Iterator[Chosen]:
    """Choose who teaches and who plays."""
    if recipe.data.teacher == "openai":
        return
    if not seen.taught and recipe.data.demonstrations:
        reason = "the environment has no expert, and demonstrations are given"
        yield Chosen("data.teacher", "random", f"{reason}, to which it adds nothing")
        yield Chosen("eval.policies", ["random", "sft", "rlft"], reason)
        if not all(each.sample.reflection for each in read_demonstrations(recipe)):
            yield Chosen("players.reflector.player", "none", f"{reason}, some without reflections")
    elif not seen.taught:
        reason = "the environment has no expert"
        yield Chosen("data.teacher", "random", f"{reason}, and RLFT alone needs no rows but the tokenizer's")
        yield Chosen("sft.enabled", False, reason)
        yield Chosen("players.reflector.player", "none", f"{reason} to teach reflections")
        yield Chosen("eval.policies", ["random", "rlft"], reason)
    elif seen.unclear is not None and seen.unclear.privileged > PRIVILEGED:
        reason = (
            f"in {seen.unclear.privileged:.0%} of the states met in several tasks the expert knows more than any player"
        )
        yield Chosen("players.reflector.player", "none", f"{reason}, and reflections would claim to know it")
    elif not seen.reflects and not _states(recipe, "players.reflector.player"):
        reason = "the environment writes no reflections but the expert's action, which the policy learns itself"
        yield Chosen("players.reflector.player", "none", reason)
    elif recipe.players.reflector.player != "none":
        yield Chosen("eval.controls", ["blank", "expert"], "shows what the reflections are worth")
        reflector = recipe.players.reflector
        if seen.carries and seen.needs_memory >= MEMORY and reflector.reads_states and not reflector.trained:
            reason = "the expert's reflections keep what later states do not tell"
            yield Chosen("players.reflector.carry", True, reason)


def _layout(recipe: Recipe, seen: Survey) -> Iterator[Chosen]:
    """Choose the layout of the prompts."""
    if not seen.max_actions:
        yield Chosen("prompt.action_mode", "text", "the environment has no menus")
    if recipe.model.name != BUILTIN:
        return
    yield Chosen("prompt.instructions", False, "a model with random weights learns the rules from play")
    known, found = recipe.prompt.known_actions, recurring(seen.menus)
    lettered = _states(recipe, "prompt.labels") and recipe.prompt.labels == "letters"
    too_many = lettered and len(found) + seen.max_actions > LETTERS
    if not too_many and not _states(recipe, "prompt.known_actions"):
        known = found
    if known:
        reason = "menus differ, and a label that always stands for the same action is learned sooner"
        yield Chosen("prompt.known_actions", known, reason)
    count = len(known) + seen.max_actions
    yield Chosen("prompt.labels", "letters" if count <= LETTERS else "added", f"menus need {count} labels")
    carried, share = recipe.players.reflector.carry, seen.needs_memory
    if carried or share < (MEMORY if seen.taught else UNTAUGHT_MEMORY):
        judged = "" if recipe.players.reflector.player == "none" else ", which the reflector judges"
        yield Chosen("prompt.history", {"steps": 1}, f"the last action{judged}")
        return
    length = REMEMBERED if seen.taught else UNTAUGHT_REMEMBERED
    steps = min(seen.horizon, max(2, round(length / seen.characters)))
    reason = f"in {share:.0%} of the states the text does not tell what to do, and the past may"
    if not seen.taught:
        reason = f"where texts are met again, the same action leads to something else in {share:.0%} of the cases"
    yield Chosen("prompt.history", {"steps": steps, "show": "transitions"}, reason)


def recurring(menus: Sequence[Sequence[tuple[str, ...]]]) -> tuple[str, ...]:
    """Return all actions of the episodes' ``menus``; none if menus do not differ, or further episodes have others."""
    actions = tuple(dict.fromkeys(action for episode in menus for menu in episode for action in menu))
    known = {action for episode in menus[::2] for menu in episode for action in menu}
    others = [action in known for episode in menus[1::2] for menu in episode for action in menu]
    differ = len({menu for episode in menus for menu in episode}) > 1
    return actions if differ and len(actions) <= KNOWN and fmean(others or [0.0]) >= FORESEEN else ()


def _model(recipe: Recipe, run: RunFolder, seen: Survey) -> Iterator[Chosen]:
    """Choose tokenizer, shape and context of the builtin model, and the length of reflections."""
    if recipe.model.name != BUILTIN:
        return
    yield Chosen("model.builtin.pieces", "numbers", "phrases and numbers are one token each")
    layout = Team(recipe, run).layout
    long = seen.lengths(layout, recipe.model.builtin.pieces, VOCABULARY)
    least = "at least " * (long.vocabulary >= VOCABULARY)
    yield Chosen(
        "model.builtin.vocabulary", VOCABULARY, f"the texts seen have {least}{long.vocabulary} different tokens"
    )
    key, speaks = "players.reflector.max_new_tokens", recipe.players.reflector.player != "none"
    words = recipe.players.reflector.max_new_tokens if speaks else 0
    if speaks and long.reflection and not _states(recipe, key):
        words = math.ceil(ROOM * long.reflection) + 1
        yield Chosen(key, words, f"the longest reflection seen has {long.reflection} tokens")
    if recipe.prompt.action_mode != "enumerated":
        writes = recipe.players.policy.max_new_tokens
        if long.written:
            writes = math.ceil(ROOM * long.written) + 1
            yield Chosen("players.policy.max_new_tokens", writes, f"the expert would write up to {long.written} tokens")
        words = max(words, writes)
    whole = 16 * math.ceil((ROOM * long.prompt + words) / 16)
    most = "a prompt with all past states may have" if layout.recent.show == "transitions" else "the longest prompt has"
    yield Chosen("model.max_length", whole, f"{most} {long.prompt} tokens")
    if whole <= EAGER:
        yield Chosen("model.attn_implementation", "eager", "the fastest for prompts this short")


def _data(recipe: Recipe, seen: Survey) -> Iterator[Chosen]:
    """Choose the number of samples, and what they show besides the expert's way."""
    if recipe.budget is None or recipe.data.teacher == "openai":
        return
    if not recipe.sft.enabled:
        yield Chosen("data.samples", MIN_SAMPLES, "only the tokenizer reads them")
        return
    seconds, shown = DATA_SHARE * 60 * recipe.budget.minutes, recipe.prompt.history
    states = 1 + (shown.steps if shown.show == "transitions" else 0)
    most = min(seconds / (seen.seconds_per_step + WRITING), MAX_SAMPLES, MAX_CHARACTERS / states / seen.characters)
    reason = f"a step takes {1000 * seen.seconds_per_step:.1f} ms, and a state {seen.characters:.0f} characters"
    yield Chosen("data.samples", round(max(most, MIN_SAMPLES)), reason)
    alone, taught = (fmean([len(each.turns) for each in played] or [0]) for played in (seen.at_random, seen.taught))
    if alone < CUT_SHORT * taught:
        reason = f"random actions end an episode after {alone:.1f} steps, the expert's takes {taught:.1f} or more"
        yield Chosen("data.noise", round(1 / taught, 2), reason)
    else:
        yield Chosen("data.noise", NOISE, "shows states off the expert's way")
    yield Chosen("data.negatives", 0.3, "an expert can say how to go on after a mistake")
    yield Chosen("data.reflection_dropout", 0.2, "the policy also learns to act where reflections are wrong")


def _training(recipe: Recipe, seen: Survey) -> Iterator[Chosen]:
    """Choose how both players are fine-tuned and how the policy learns from play, but not how long; and the test."""
    if recipe.model.name == BUILTIN and not recipe.model.images and recipe.model.builtin.blocks.is_file():
        yield Chosen("model.builtin.pretrained", True, "looking things up in a prompt need not be learned first")
    yield Chosen("eval.max_tasks", recipe.eval.episodes, "greedily, no more tasks are played than with sampled actions")
    if recipe.sft.enabled:
        for player in ("reflector", "policy"):
            for key, count in _SFT_ENDS.items():
                yield Chosen(f"sft.{player}.{key}", count, "ends where held-out rows hardly improve")
    if recipe.model.name == BUILTIN and recipe.sft.enabled:
        rows = min(max(2 ** int(math.log2(BATCH_TOKENS / recipe.model.max_length)), 8), 32)
        reason = f"prompts have up to {recipe.model.max_length} tokens"
        if recipe.prompt.history.show == "transitions":
            rows, reason = ROWS_TOGETHER * rows, "prompts of an episode extend each other, and are read together"
        for player in ("reflector", "policy"):
            for key in ("batch_size", "micro_batch_size"):
                yield Chosen(f"sft.{player}.{key}", rows, reason)
            for key, value in _SFT.items():
                yield Chosen(f"sft.{player}.{key}", value, "suits a model with random weights")
        if recipe.prompt.action_mode not in WRITTEN_ACTIONS:
            yield Chosen("sft.policy.label_smoothing", 0.05, "leaves RLFT something to explore")
        if recipe.players.reflector.fine_tuned:
            yield Chosen(
                "sft.policy.own_reflections", TRUSTING, "the policy learns how far to trust what it reads at play"
            )
    if recipe.budget is not None and seen.seconds_to_make > 0:
        fit = max(SIDE_BY_SIDE, int(MAKING_SHARE * 60 * recipe.budget.minutes / seen.seconds_to_make))
        for section, played in (("eval", recipe.eval.batch_size), ("rlft", recipe.rlft.episodes if recipe.rlft else 0)):
            if fit < played:
                yield Chosen(f"{section}.batch_size", fit, f"making one takes {seen.seconds_to_make:.1f} s")
    if recipe.rlft is None:
        return
    if recipe.model.name == BUILTIN:
        yield Chosen("rlft.learning_rate", 3e-4, "suits a model with random weights")
    rlft = recipe.rlft
    alone = rlft.validation is not None and rlft.terms.kl is None and len(rlft.lessons) == 1
    if recipe.model.name == BUILTIN and recipe.model.lora is None and recipe.sft.enabled and alone:
        yield Chosen("rlft.sharpen", SHARPEN, "a policy that hesitates has few successes to learn from")
    if isinstance(rlft.update, PPO) and recipe.prompt.action_mode not in THOUGHTS:
        yield Chosen("rlft.update.kl_of_entropy", KL_OF_ENTROPY, "keeps RLFT from undoing what is already right")
    for key, (value, reason) in suited(seen.horizon, seen.return_spread).items():
        if key != "gamma" or not isinstance(recipe.rlft.advantage, EpisodeGroup):  # which has no discount
            yield Chosen(f"rlft.{key}", value, reason)
    if recipe.sft.enabled and recipe.prompt.action_mode in WRITTEN_ACTIONS and seen.max_actions:
        reason = "a random action is played for a text that names none, and would be credited to it"
        yield Chosen("rlft.rewards", {"env": 1.0, "illegal": ILLEGAL_WEIGHT}, reason)
    if not recipe.sft.enabled:
        reason = "without a teacher, what to do has to be found"
        if not seen.rewards_are_dense:
            yield Chosen("rlft.rewards", {"env": 1.0, "novelty": NOVELTY_WEIGHT * seen.largest_return}, reason)
        yield Chosen("rlft.terms.entropy.coef", 0.05, reason)
        if not rlft.advantage.compares_episodes:
            replay = {"size": 4 * rlft.episodes, "episodes": math.ceil(REPLAYED * rlft.episodes)}
            yield Chosen("rlft.replay", replay, "successes are rare, and are learned from more than once")


def _warn(recipe: Recipe, tell: Callable[[str], None], needed: float, left: float) -> None:
    """Say how many minutes the least bounds take beyond those that are left, if more than a tenth of the budget."""
    minutes = 0.0 if recipe.budget is None else recipe.budget.minutes
    if (more := (needed - left) / 60) > minutes / 10:
        tell(f"the least that is worth doing takes about {more:.1f} minutes more than are left for it")


def _sft(recipe: Recipe, run: RunFolder, player: Player, until: float, tell: Callable[[str], None]) -> Iterator[Chosen]:
    """Choose the bound of a player's fine-tuning, and what follows from it."""
    steps = recipe.sft.reflector.steps if player == "reflector" else recipe.sft.policy.steps
    if not all(_states(recipe, f"sft.{name}.steps") for name in _roles(player)):
        seconds = seconds_per_step(recipe, run, player)
        left = until - time.monotonic()
        _warn(recipe, tell, MIN_SFT_STEPS * seconds, left)
        fit = left / seconds
        steps = round(min(max(fit, MIN_SFT_STEPS), MAX_SFT_STEPS))
        reason = f"{'the least' if fit < MIN_SFT_STEPS else 'at most'}: a step takes {1000 * seconds:.0f} ms"
        yield from (Chosen(f"sft.{name}.steps", steps, reason) for name in _roles(player))
    for name in _roles(player):
        yield Chosen(f"sft.{name}.warmup", round(min(WARMUP / steps, 0.1), 4), f"about {WARMUP} steps")
    policy = recipe.sft.policy
    if player == "policy" and policy.own_reflections:
        rows = math.ceil(steps * policy.batch_size / (1 - policy.held_out))
        yield Chosen("sft.policy.max_rows", rows, "as many as are read: the reflector answers each before")


def _rlft(recipe: Recipe, run: RunFolder, left: float, tell: Callable[[str], None]) -> Iterator[Chosen]:
    """Choose the bound of RLFT, each lesson of a curriculum with the same number of iterations."""
    if recipe.rlft is None:
        return
    began = time.monotonic()
    seconds, _ = seconds_per_iteration(recipe, run, recipe.rlft.lessons[0])
    passed = time.monotonic() - began
    again = max(passed - 2 * seconds, 0.0)  # RLFT and the evaluation make players and environments, too
    left -= passed + 2 * again
    lessons = len(recipe.rlft.lessons)
    _warn(recipe, tell, (MIN_ITERATIONS * VALIDATION * lessons + EVALUATION) * seconds, left)
    fit = (left / seconds - EVALUATION) / VALIDATION / lessons
    count = round(min(max(fit, MIN_ITERATIONS), MAX_ITERATIONS))
    for number in range(lessons):
        reason = f"{'the least' if fit < MIN_ITERATIONS else 'at most'}: an iteration takes {seconds:.1f} s"
        yield Chosen(f"rlft.lessons.{number}.iterations", count, reason)
    if (validation := recipe.rlft.validation) is not None:
        planned = count / iterations_between(validation, recipe.rlft.episodes)
        reason = "validations are few episodes, and the minutes are there"
        yield Chosen("rlft.validation.patience", max(PATIENCE, math.ceil(planned / 2)), reason)
