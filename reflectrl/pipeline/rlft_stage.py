"""The rlft stage: the trainer, its checkpoints, and its records in the run folder."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from statistics import fmean

import torch

from reflectrl.config import Recipe
from reflectrl.config.environment import RecipeEnvs
from reflectrl.config.schema import MIN_ITERATIONS
from reflectrl.config.training import Lesson, RLFTSection, RLFTSettings
from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.files import read_bytes, write_bytes
from reflectrl.core.jsonl import append_jsonl, read_jsonl, write_jsonl
from reflectrl.core.metric import tracked
from reflectrl.core.profile import active_profile
from reflectrl.core.run_files import (
    BASE,
    FAILURES,
    METRICS,
    POLICY,
    POLICY_SFT,
    RATINGS,
    REFLECTOR,
    REFLECTOR_RLFT,
    THROUGHPUT,
    advantages_file,
    checkpoints_folder,
    training_episodes_file,
)
from reflectrl.core.stop import gentle_stops, tell_user
from reflectrl.endpoint.account import Account, Usage
from reflectrl.lm.load import LanguageModel, save_model
from reflectrl.lm.reflecting import add_reflector, take_reflector
from reflectrl.pipeline.compute import release_memory
from reflectrl.pipeline.console import Advance
from reflectrl.pipeline.folder import CallbackFailed, RunFolder
from reflectrl.pipeline.launch import is_main_process, main_first
from reflectrl.pipeline.prompt_lengths import check_prompt_lengths
from reflectrl.pipeline.team import Team
from reflectrl.pipeline.trackers import Tracking, tracking
from reflectrl.prompts.players import CachedPlayer, Player
from reflectrl.rollout.agreement import check_failures, ratings_of
from reflectrl.rollout.iteration import Ends, Iteration, Throughput
from reflectrl.rollout.record import Header, write_trajectories
from reflectrl.rollout.results import write_validated
from reflectrl.training.checkpoints import checkpoint_iteration, last_checkpoint
from reflectrl.training.config import ReflectRLConfig
from reflectrl.training.learner import OnIteration, Unrecorded
from reflectrl.training.rlft import ReflectRLTrainer
from reflectrl.training.sharding import whole_weights


def rewind(run: Path, iterations: int, files: Sequence[str]) -> None:
    """Discard what was recorded after the checkpoint of ``iterations`` iterations, from which training continues.

    Each of the ``files`` has a line for each iteration.

    Raises:
        InvalidInput: a file lacks the line of an iteration that is kept.
    """
    for path in (run / name for name in files):
        if not iterations and not path.exists():
            continue
        lines = islice(read_jsonl(path, skip_unfinished=True), iterations)
        found = [value.get("iteration") if isinstance(value, dict) else None for _, value in lines]
        if found != [*range(iterations)]:
            raise InvalidInput(
                f"{path} does not hold a line for each of the {iterations} iterations that rlft has done: it was "
                "changed while no stage was at work. Put back the file that was there, or delete the run folder to "
                "start over."
            )
        content = read_bytes(path, "a file of JSON lines").split(b"\n")  # splitlines splits at other characters too
        write_bytes(path, b"".join(line + b"\n" for line in content[:iterations]))


def training_config(recipe: Recipe, section: RLFTSection, output_dir: str) -> ReflectRLConfig:
    """Return the trainer's arguments as the recipe states them."""
    players = recipe.players
    return ReflectRLConfig(
        **{each.name: getattr(section, each.name) for each in fields(RLFTSettings)},
        output_dir=output_dir,
        max_length=recipe.model.max_length,
        max_completion_length=players.policy.max_new_tokens,
        temperature=players.policy.temperature,
        max_reflection_length=players.reflector.max_new_tokens,
        reflection_temperature=players.reflector.temperature,
        prefix_reuse=recipe.model.prefix_reuse,
        seed=recipe.seed,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )


def trainer_class(name: str | None) -> type[ReflectRLTrainer]:
    """Return the class that ``rlft.trainer`` names, ``ReflectRLTrainer`` if it names none.

    Raises:
        InvalidInput: it cannot be imported, or is not derived from ``ReflectRLTrainer``.
    """
    if name is None:
        return ReflectRLTrainer
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(
            f"rlft.trainer is {name!r}, which cannot be imported ({error}); expected module:Class of an installed "
            "package, or of a file whose folder is in PYTHONPATH."
        ) from error
    if not (isinstance(found, type) and issubclass(found, ReflectRLTrainer)):
        raise InvalidInput(
            f"rlft.trainer is {name!r}, which is not a subclass of reflectrl.ReflectRLTrainer; derive it."
        )
    return found


WINDOW_ITERATIONS = 10
"""Number of a lesson's last iterations whose mean the console shows; a single iteration is noisy."""

_ENDED: Mapping[Ends | None, str] = {
    None: "",
    "iterations": "",
    "minutes": "  ended: the budget's minutes were over",
    "success_threshold": "  ended: success_threshold was reached",
    "patience": "  ended: validation rises no more (patience)",
    "expert": "  ended: validation is at the expert's level",
}


class _Records:
    """Appends the measurements of each iteration to the run folder, and reports them to console and tracker."""

    def __init__(
        self,
        run_players: Team,
        section: RLFTSection,
        reflector: Player | None,
        envs: RecipeEnvs,
        advance: Advance,
        tracking: Tracking,
    ) -> None:
        env = run_players.recipe.env
        self._header = Header(env.name, dict(env.options), run_players.layout)
        self._keep, self._save_every = section.record_episodes, section.save_every
        self._total = sum(lesson.iterations for lesson in section.lessons)
        self._rater = run_players.recipe.players.rater
        self._run = run_players.run
        self._reflector = reflector
        self._envs = envs
        self._failures = self._recycled = 0
        self._advance = advance
        self._tracking = tracking
        self._lesson = self._validated = self._goal = ""
        self._recent: deque[Iteration] = deque(maxlen=WINDOW_ITERATIONS)
        self._clock = time.monotonic()

    def add(
        self,
        done: Iteration,
        episodes: Sequence[Trajectory],
        advantages: Sequence[Sequence[float]],
        prompt_reuse: float,
    ) -> None:
        """Record an iteration with its episodes, their advantages, and the reused share of prompt tokens."""
        release_memory()
        seconds, self._clock = time.monotonic() - self._clock, time.monotonic()
        run = self._run.path
        append_jsonl(run / METRICS, [done])
        steps = sum(len(episode.turns) for episode in episodes)
        hit_rate = self._reflector.hit_rate if isinstance(self._reflector, CachedPlayer) else 0.0
        throughput = Throughput(
            iteration=done.iteration,
            seconds=round(seconds, 4),
            steps_per_second=round(steps / seconds, 1),
            reflection_hit_rate=round(hit_rate, 4),
            prompt_reuse=round(prompt_reuse, 4),
            env_failures=self._envs.failures - self._failures,
            env_recycled=self._envs.recycled - self._recycled,
        )
        self._failures, self._recycled = self._envs.failures, self._envs.recycled
        append_jsonl(run / THROUGHPUT, [throughput])
        if self._rater is not None:
            ratings = ratings_of(done.iteration, len(self._rater.labels) - 1, episodes)
            append_jsonl(run / RATINGS, [ratings])
            check_failures(ratings, self._rater.max_failure_rate)
        if self._keep:
            write_trajectories(run / training_episodes_file(done.iteration), self._header, episodes[: self._keep])
            write_jsonl(run / advantages_file(done.iteration), advantages[: self._keep])
        measured = {**tracked(done), **tracked(throughput)}
        self._tracking.log(done.iteration, measured | {f"rollout/{name}": won for name, won in done.by_group.items()})
        if done.iteration % self._save_every == 0:
            self._tracking.show(done.iteration, done.lesson, episodes[: self._keep])
        self._advance(done.iteration + 1, self._total, self._note(done, throughput.steps_per_second))

    def _note(self, done: Iteration, pace: float) -> str:
        """Return the console's note; its means cover the iterations of this lesson in this process."""
        if done.lesson != self._lesson:
            self._lesson = done.lesson
            self._recent.clear()
            self._validated = self._goal = ""
        self._recent.append(done)
        if done.validation_start is not None:
            expert = "" if done.validation_expert is None else f", expert {done.validation_expert:.0%}"
            sharper = f", logits x {done.sharpened:g}" if done.sharpened not in (None, 1.0) else ""
            self._goal = f" (start {done.validation_start:.0%}{sharper}{expert})"
            self._validated = f"  validation{self._goal}"
        if done.validation_success is not None:
            self._validated = f"  validation {done.validation_success:.0%}{self._goal}"
        success, episode_return, entropy = (
            fmean(getattr(each, name) for each in self._recent) for name in ("success", "episode_return", "entropy")
        )
        return (
            f"{done.lesson}  mean of {len(self._recent)}: success {success:.0%}  return {episode_return:+.2f}  "
            f"entropy {entropy:.2f}{self._validated}  {pace:.0f} steps/s{_ENDED[done.ended]}"
        )


def starting_players(run_players: Team) -> tuple[LanguageModel, Player | None]:
    """Return the policy with which RLFT begins, and the frozen reflector; none if the policy's model holds it."""
    recipe = run_players.recipe
    lm = run_players.load(POLICY_SFT if recipe.sft.enabled else BASE, trainable=True)
    if not recipe.players.reflector.trained:
        return lm, run_players.reflector(lm)
    add_reflector(lm, run_players.run.verified(REFLECTOR, "sft"))
    return lm, None


def _has_tasks(run_players: Team, lesson: Lesson, split: str) -> bool:
    env = run_players.new_env(lesson.env)
    try:
        return bool(env.any_tasks(split))
    except InvalidInput:  # its data is not here, which the trainer reports
        return False
    finally:
        env.close()


def train_policy(
    recipe: Recipe,
    section: RLFTSection,
    run: RunFolder,
    account: Account,
    advance: Advance,
    on_iteration: OnIteration | None = None,
    until: float = math.inf,
) -> Usage:
    """Train the policy from ``policy-sft`` (or the base) or its last checkpoint, and return the calls to endpoints.

    With a budget, it is planned to take ``until`` then, a reading of ``time.monotonic``.
    """
    if (profile := active_profile()) is not None:
        profile.iterations.clear()  # of those that a budget has timed
        if torch.cuda.is_available():
            profile.synchronize = torch.cuda.synchronize
    run_players = Team(recipe, run, account)
    with main_first():  # it writes the base, where there is no sft
        lm, reflector = starting_players(run_players)
    trained = recipe.players.reflector.trained
    if is_main_process():
        for split in ("train", *(["validation"] if section.validation else [])):
            played = [lesson.env for lesson in section.lessons if _has_tasks(run_players, lesson, split)]
            check_prompt_lengths(run_players, run_players.readers(lm), split, played)
    tell = tell_user if is_main_process() else lambda _: None
    checkpoint = last_checkpoint(run / checkpoints_folder("rlft"))
    first = 0 if checkpoint is None else checkpoint_iteration(checkpoint)
    with (
        RecipeEnvs(recipe, run.path) as envs,
        gentle_stops(tell) as stop,
        tracking(recipe, run.path, "rlft", first) as sent,
    ):
        if recipe.budget is not None:
            stop.deadline, stop.least = recipe.budget.deadline("rlft.lessons.0.iterations", until), MIN_ITERATIONS
        records = _Records(run_players, section, reflector, envs, advance, sent)

        def record(done: Iteration, fresh: Sequence[Trajectory]) -> None:
            try:
                records.add(done, fresh, trainer.advantages, trainer.policy.reused)
            except Exception as error:
                raise Unrecorded(error) from error
            if on_iteration is not None:
                try:
                    on_iteration(done, fresh)
                except Exception as error:
                    raise CallbackFailed(error) from error

        trainer = trainer_class(section.trainer)(
            lm.model,
            training_config(recipe, section, str(run / checkpoints_folder("rlft"))),
            lm.tokenizer,
            env=envs,
            seats=run_players.training_seats(reflector, from_start=checkpoint is None),
            layout=run_players.layout,
            labels=run_players.labels,
            server=run_players.policy_server(lm),
            on_iteration=record,
            stop=stop,
            failures=run / FAILURES,
        )
        if is_main_process():
            rewind(run.path, first, (METRICS, THROUGHPUT, *([RATINGS] if recipe.players.rater is not None else [])))
        trainer.train(checkpoint)
    weights = whole_weights(lm.model)
    if is_main_process():
        if trained:
            take_reflector(lm, run / REFLECTOR_RLFT)
        save_model(lm, run / POLICY, weights)
        if trainer.validated is not None:
            write_validated(run / POLICY, trainer.validated)
    return run_players.usage
