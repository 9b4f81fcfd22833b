"""The eval stage: every policy of the recipe on the same fixed episodes, and its trajectories for the report."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from reflectrl.config import Recipe
from reflectrl.config.environment import RecipeEnvs
from reflectrl.core import InvalidInput, ReflectRLError, Trajectory
from reflectrl.core.check import spread
from reflectrl.core.jsonl import append_jsonl, drop_unfinished_line, write_jsonl
from reflectrl.core.run_files import BASE, POLICIES, POLICY, RESULTS, TRIALS, unfinished_file
from reflectrl.core.seeds import derive_seed
from reflectrl.endpoint.account import Account, Usage
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.writer import LMReflector
from reflectrl.pipeline.console import Advance, labelled
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.prompt_lengths import check_prompt_lengths
from reflectrl.pipeline.team import Team
from reflectrl.prompts.players import Player, Policy
from reflectrl.report.judged import judged_steps, shares, taught_prompts
from reflectrl.rollout import Episode
from reflectrl.rollout.fixed import fixed_episodes, play_all
from reflectrl.rollout.protocol import Reset
from reflectrl.rollout.record import Header, read_trajectories, write_trajectories
from reflectrl.rollout.results import (
    EvalRow,
    ReflectorShares,
    TrialRow,
    begin_alike,
    episodes_file,
    read_results,
    summarise,
    trial_row,
    write_results,
)
from reflectrl.rollout.worker import gather, send
from reflectrl.seats.experience import Experience
from reflectrl.seats.reflector import ExpertReflector, ScriptedReflector, ShuffledReflector
from reflectrl.seats.table import Seat, reflecting

_FOLDERS = {"zero_shot": BASE, "base": BASE, **{stage: folder for folder, stage in POLICIES.items()}}
"""Folders of the local policies, by their names in a recipe."""
_OBSERVED = ("benchmark", "chosen", "like_training", "cut_prompts", "audit")
"""Fields of a row that do not follow from its episodes."""
AUDITED = 16
"""Number of a trained policy's episodes in which its reflector is audited: the expert answers at each step."""


class _Evaluation:
    """Plays the episodes and records rows and trajectories; rows that an earlier process finished are not repeated."""

    def __init__(self, recipe: Recipe, run: RunFolder, account: Account, envs: RecipeEnvs, advance: Advance) -> None:
        self.recipe = recipe
        self.run = run
        self.run_players = Team(recipe, run, account)
        self.rows: list[EvalRow] = []
        self.trial_rows: list[TrialRow] = []
        self._unfinished = run / unfinished_file("eval")
        self._advance = advance
        self._checked = False
        section = recipe.eval
        self._env = self.run_players.new_env(section.env)
        self._episodes = {
            (split, mode): fixed_episodes(
                self._env,
                split,
                episodes=count,
                max_tasks=section.max_tasks,
                seed=recipe.seed,
                prefixes=section.tasks,
            )
            for split in section.splits
            for mode, count in (("sampled", section.episodes), ("greedy", None))
        }
        # clients first: nothing is played if a key or a run is missing
        self._reflectors = {each.name: self.run_players.other_reflector(each) for each in section.reflectors}
        drop_unfinished_line(self._unfinished)
        finished = read_results(self._unfinished) if self._unfinished.exists() else []
        self._before = {(row.policy, row.reflections, row.mode, row.split): row for row in finished}
        most = max(len(episodes) for episodes in self._episodes.values())
        self._envs = envs.make(section.env, min(section.batch_size, most))

    def empty_groups(self) -> list[str]:
        """Groups of tasks of which no task is played."""
        played = {episode.task.id for episodes in self._episodes.values() for episode in episodes}
        return [group for group in self.recipe.eval.groups if not any(task.startswith(group) for task in played)]

    def play(
        self, name: str, reflections: str, mode: str, split: str, policy: Policy, reflector: Player | None
    ) -> list[Trajectory]:
        """Play and record one row of the table, and those of its groups of tasks; return its episodes.

        Trained and remote policies read the words of the recipe's planner and memory.
        """
        section = self.recipe.eval
        seats = reflecting(reflector)
        if name in (*POLICIES.values(), "remote"):
            seats = self.run_players.playing(reflector, _FOLDERS.get(name, POLICY), section.memory)
        row, trajectories = self._play(name, reflections, mode, split, self._episodes[split, mode], policy, seats)
        self.rows.append(row)
        for group in section.groups:
            if any(trajectory.task.id.startswith(group) for trajectory in trajectories):
                part = summarise(name, reflections, mode, split, trajectories, group)
                self.rows.append(replace(part, benchmark=row.benchmark, chosen=row.chosen))
        return trajectories

    def _play(
        self,
        name: str,
        reflections: str,
        mode: str,
        split: str,
        episodes: Sequence[Episode],
        policy: Policy,
        seats: Sequence[Seat],
    ) -> tuple[EvalRow, list[Trajectory]]:
        """Play and record episodes, or read what an earlier process recorded of them."""
        section, splits = self.recipe.eval, self.recipe.eval.splits
        row = self._before.get((name, reflections, mode, split))
        if row is not None:
            path = self.run / episodes_file(row, len(splits))
            played = read_trajectories(path)[1]
            said = summarise(name, reflections, mode, split, played)
            given = {name: getattr(row, name) for name in _OBSERVED}
            if replace(said, **given) != row:
                raise InvalidInput(
                    f"{path} does not hold the episodes of its row ({name} {mode}, split {split}): it was cut, emptied "
                    f"or exchanged since; put back the file that was there, or delete {self._unfinished}, and all is "
                    "played again."
                )
            return row, played
        who = [] if reflections in ("none", self.recipe.players.reflector.player) else [reflections]
        label = " ".join([name, *who, mode, *([split] if len(splits) > 1 else [])])
        finished, local = itertools.count(1), policy if isinstance(policy, LMPolicy) else None
        read, cut = local.prompts if local else (0, 0)
        for player in (policy, *(seat.player for seat in seats)):
            if isinstance(player, LMPolicy | LMReflector):
                player.forget()  # like in a process that resumes here: a logit's last bits may decide an action
        trajectories = play_all(
            self._envs,
            episodes,
            policy=policy,
            seats=seats,
            layout=self.run_players.layout,
            on_episode=lambda _: self._advance(next(finished), len(episodes), label),
        )
        row = summarise(name, reflections, mode, split, trajectories)
        row = replace(row, benchmark=self._env.split_benchmark(split, row.tasks), chosen=tuple(section.tasks))
        row = replace(row, like_training=self._alike(trajectories) if split != "train" else 0)
        if local:
            all_read, all_cut = local.prompts
            row = replace(row, cut_prompts=(all_cut - cut) / (all_read - read))
        own = reflections == self.recipe.players.reflector.player
        if own and mode == "sampled" and name in POLICIES.values():
            row = replace(row, audit=self._audit(trajectories[:AUDITED]))
        header = Header(self.recipe.env.name, {**self.recipe.env.options, **section.env}, self.run_players.layout)
        write_trajectories(self.run / episodes_file(row, len(splits)), header, trajectories)
        append_jsonl(self._unfinished, [row])
        return row, trajectories

    def _audit(self, trajectories: Sequence[Trajectory]) -> ReflectorShares | None:
        """Return how often the reflector's words are those of the expert that taught it; ``None`` without one."""
        data = self.recipe.data
        taught = data.teacher == "expert" and not data.demonstrations
        if not taught or self.recipe.players.reflector.player not in ("local", "server", "self"):
            return None
        env, layout = self._envs[0], self.run_players.layout
        with contextlib.suppress(ReflectRLError):  # what only the audit needs is not a reason to stop
            return shares([list(judged_steps(env, layout, each, self._taught)) for each in trajectories])
        return None

    @functools.cached_property
    def _taught(self) -> frozenset[str]:
        """Prompts of the reflector's SFT rows."""
        return taught_prompts(self.recipe, self.run.path)

    def _alike(self, trajectories: Sequence[Trajectory]) -> int:
        """Return the number of tasks of which an episode begins like a training task."""
        begun = (episode for episode in trajectories if episode.turns)
        return len({each.task.id for each in begun if each.turns[0].observation.shown in self._starts})

    @functools.cached_property
    def _starts(self) -> frozenset[tuple[str, ...]]:
        """What a player is shown at the start of training tasks; nothing where one of them cannot be begun."""
        starts: set[tuple[str, ...]] = set()
        try:
            tasks = spread(self._env.any_tasks("train"))
            for first in range(0, len(tasks), len(self._envs)):
                envs = self._envs[: len(tasks) - first]
                begun = send(envs, [Reset(task, 0) for task in tasks[first : first + len(envs)]])
                gather(begun)
                for each in begun:
                    each.result()
                    starts.add(each.env.observation.shown)
        except ReflectRLError:  # no training task is played here, so its faults are not a reason to stop
            return frozenset()
        return frozenset(starts)

    def trials(self, name: str, reflections: str, policy: Policy, reflector: Player | None) -> None:
        """Play the trials of a policy with a memory and, if wanted, without one; record rows of each and its groups."""
        section, settings = self.recipe.eval.trials, self.recipe.eval.memory or self.recipe.players.memory
        if section is None or name not in section.policies:
            return
        kinds = [memory for memory, there in ((True, settings is not None), (False, section.control)) if there]
        for split in self.recipe.eval.splits:
            for memory in kinds:
                played: list[list[Trajectory]] = []
                for number in range(1, section.count + 1):
                    past = self._past(played) if memory else ()
                    first = section.begin_with == "examples" and number == 1
                    shown = settings.examples if settings is not None and first else settings
                    seats = self.run_players.remembering(shown, past, reflector)
                    mode = f"{'trial' if memory else 'alone'}{number}"
                    episodes = self._trial_episodes(split, number)
                    played.append(self._play(name, reflections, mode, split, episodes, policy, seats)[1])
                    ids = [trajectory.task.id for trajectory in played[-1]]
                    self.trial_rows += (
                        trial_row(name, reflections, split, played, memory=memory, remembered=len(past), group=group)
                        for group in ("", *self.recipe.eval.groups)
                        if any(each.startswith(group) for each in ids)
                    )

    def _trial_episodes(self, split: str, number: int) -> list[Episode]:
        """Return one episode for each task of the split, with the seeds of a trial."""
        section, seed = self.recipe.eval, derive_seed(self.recipe.seed, "trial", number)
        return fixed_episodes(
            self._env, split, episodes=None, max_tasks=section.max_tasks, seed=seed, prefixes=section.tasks
        )

    def _past(self, played: Sequence[Sequence[Trajectory]]) -> tuple[Experience, ...]:
        """Return the memory of the next trial: the best episode of each task so far, the shortest first."""
        section = self.recipe.eval.trials
        begin = "nothing" if section is None else section.begin_with
        shown = begin == "teacher" or (begin == "examples" and not played)
        taught = self.run_players.taught if shown else ()
        own = self.run_players.kept(itertools.chain(*played))
        return (*taught, *sorted(own, key=lambda past: len(past.steps)))

    def _check_prompt_lengths(self, lm: LanguageModel) -> None:
        """Check the prompts of the first local policy; those of the others have the same length."""
        if not self._checked:
            for split in self.recipe.eval.splits:
                readers, section = self.run_players.readers(lm), self.recipe.eval
                check_prompt_lengths(self.run_players, readers, split, [section.env], section.memory)
        self._checked = True

    def model_rows(self, name: str) -> None:
        """Play a local policy sampled and, if wanted, greedy; that of RLFT also with controls and other reflectors."""
        folder = _FOLDERS[name]
        lm, player = self.run_players.lm_policy(folder)
        self._check_prompt_lengths(lm)
        who, section = self.recipe.players.reflector.player, self.recipe.eval
        reflectors: dict[str, Callable[[], Player | None]] = {who: lambda: self.run_players.reflector(lm, folder)}
        if name == "zero_shot":
            reflectors = {"none": lambda: None}
        if name == "rlft":
            reflectors |= self._reflectors
        for reflections, load in reflectors.items():
            reflector = load()
            for split in section.splits:
                sampled = self.play(name, reflections, "sampled", split, player(False), reflector)
                if section.greedy:
                    self.play(name, reflections, "greedy", split, player(True), reflector)
                if name == "rlft" and reflections == who:
                    # the run's own reflector has been played above
                    for control in (each for each in section.controls if each != who):
                        self.play(name, control, "sampled", split, player(False), _control(control, sampled))
            if reflections == who:
                self.trials(name, who, player(False), reflector)

    def plain_rows(self, name: str) -> None:
        """Play a policy without a local model, sampled; a remote one reads what other chat models or the expert say."""
        policy, kind = self.run_players.plain_policy(name), self.recipe.players.reflector.player
        reflector = (
            self.run_players.reflector(None) if name == "remote" and kind in ("remote", "server", "expert") else None
        )
        reflections = "none" if reflector is None else kind
        for split in self.recipe.eval.splits:
            self.play(name, reflections, "sampled", split, policy, reflector)
        self.trials(name, reflections, policy, reflector)


def _control(kind: str, sampled: Sequence[Trajectory]) -> Player:
    if kind == "blank":
        return ScriptedReflector(lambda _: "")
    if kind == "expert":
        return ExpertReflector()
    return ShuffledReflector([turn.reflection or "" for episode in sampled for turn in episode.turns])


def run_eval(
    recipe: Recipe, run: RunFolder, account: Account, advance: Advance, report: Callable[[str], None]
) -> Usage:
    """Write ``eval.jsonl`` and the trajectories of every row, and return the calls to chat endpoints.

    ``report`` gets a line for each group without tasks.

    Raises:
        InvalidInput: a split or tasks that the environment does not have, or a reflector that cannot advise here;
            nothing has been played then.

    """
    with RecipeEnvs(recipe, run.path, on_failure="replay") as envs:
        evaluation = _Evaluation(recipe, run, account, envs, advance)
        for group in evaluation.empty_groups():
            report(labelled("eval", f"no task that is played has an id that starts with {group!r} (eval.groups)"))
        for name in recipe.eval.policies:
            if name in _FOLDERS:
                evaluation.model_rows(name)
            else:
                evaluation.plain_rows(name)
    if evaluation.trial_rows:
        write_jsonl(run / TRIALS, evaluation.trial_rows)
    else:
        (run / TRIALS).unlink(missing_ok=True)
    write_results(run / RESULTS, evaluation.rows)
    (run / unfinished_file("eval")).unlink(missing_ok=True)
    advance(1, 1, _successes(evaluation.rows))
    return evaluation.run_players.usage


def _successes(rows: Sequence[EvalRow]) -> str:
    """Return the success rate of each policy in its first row of each split: ``on split test: sft 10%, rlft 40%``."""
    first: dict[str, dict[str, EvalRow]] = {}
    for row in (row for row in rows if not row.group):
        first.setdefault(row.split, {}).setdefault(row.policy, row)
    benchmark = f"{rows[0].benchmark}, " if rows[0].benchmark else ""
    alike = {split: f" ({warning})" for split, warning in begin_alike(rows).items()}
    splits = (
        f"split {split}: {', '.join(f'{name} {row.metrics.success:.0%}' for name, row in policies.items())}"
        f"{alike.get(split, '')}"
        for split, policies in first.items()
    )
    return f"success on {benchmark}{'; '.join(splits)}"
