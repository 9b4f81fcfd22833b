"""The eval stage: every policy of the recipe on the same fixed episodes, and its trajectories for the report.

In a launch of several processes each row of the table is played by one of them, as a single process would play it, so
that all files have the same bytes: which episodes share a batch may change the last bits of a probability.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from reflectrl.config import Recipe
from reflectrl.config.environment import RecipeEnvs
from reflectrl.core import InvalidInput, ReflectRLError, Trajectory
from reflectrl.core.check import spread
from reflectrl.core.jsonl import append_jsonl, drop_unfinished_line, write_jsonl
from reflectrl.core.run_files import (
    BASE,
    POLICIES,
    POLICY,
    RESULTS,
    TRIALS,
    unfinished_file,
    unfinished_files,
)
from reflectrl.core.seeds import derive_seed
from reflectrl.endpoint.account import Account, Usage
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.writer import LMReflector
from reflectrl.pipeline.console import Advance, labelled
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.launch import is_main_process, process_count, process_rank, wait_for_all
from reflectrl.pipeline.preflight import asks_endpoints
from reflectrl.pipeline.prompt_lengths import check_prompt_lengths
from reflectrl.pipeline.team import Team
from reflectrl.prompts.players import Player, Policy
from reflectrl.report.judged import judged_steps, shares, taught_prompts
from reflectrl.rollout import Episode
from reflectrl.rollout.loop import fixed_episodes, play_all
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
from reflectrl.seats.memory import MemoryPlayerSection
from reflectrl.seats.reflector import ExpertReflector, ScriptedReflector, ShuffledReflector
from reflectrl.seats.table import Seat, reflecting

_FOLDERS = {"zero_shot": BASE, "base": BASE, **{stage: folder for folder, stage in POLICIES.items()}}
"""Folders of the local policies, by their names in a recipe."""
_OBSERVED = ("benchmark", "chosen", "like_training", "cut_prompts", "audit")
"""Fields of a row that do not follow from its episodes."""
AUDITED = 16
"""Number of a trained policy's episodes in which its reflector is audited: the expert answers at each step."""


class _Row(NamedTuple):
    """What a row of the table is about."""

    policy: str
    reflections: str
    mode: str
    split: str


_Cast: TypeAlias = Callable[[], tuple[Policy, Sequence[Seat]]]
"""Loads the players of a row: only a process that plays it does."""


class _Evaluation:
    """Plays the episodes and records rows and trajectories; rows that an earlier process finished are not repeated."""

    def __init__(
        self, recipe: Recipe, run: RunFolder, account: Account, envs: RecipeEnvs, advance: Advance, processes: int
    ) -> None:
        self.recipe = recipe
        self.run = run
        self.run_players = Team(recipe, run, account)
        self.rows: list[EvalRow] = []
        self.trial_rows: list[TrialRow] = []
        self._unfinished = run / unfinished_file("eval", process_rank())
        self._processes = processes
        self._given: list[int] = []  # number of episodes that each process was given
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
        self._before: Mapping[_Row, EvalRow] = {}
        most = max(len(episodes) for episodes in self._episodes.values())
        self._envs = envs.make(section.env, min(section.batch_size, most))

    def read_finished(self) -> None:
        """Read the rows that are played already, by whichever process."""
        finished = [row for path in unfinished_files(self.run.path, "eval") for row in read_results(path)]
        self._before = {_Row(row.policy, row.reflections, row.mode, row.split): row for row in finished}

    def walk(self) -> None:
        """Play the rows of this process that are not played yet, and list all rows whose results it has."""
        self.rows, self.trial_rows = [], []
        self._given = [0] * self._processes
        for name in self.recipe.eval.policies:
            if name in _FOLDERS:
                self.model_rows(name)
            else:
                self.plain_rows(name)

    def _is_mine(self, *rows: _Row) -> bool:
        """Give rows that belong together to the process with the fewest episodes; return whether that is this one.

        Episodes without a local model take no time; what is played already is read by all.
        """
        left = [row for row in rows if row not in self._before]
        rank = self._given.index(min(self._given))
        self._given[rank] += sum(len(self._episodes_of(row)) for row in left if row.policy in _FOLDERS)
        return not left or rank == process_rank()

    def _episodes_of(self, row: _Row) -> Sequence[Episode]:
        """Return the episodes of a row; trials have seeds of their own."""
        number = re.search(r"\d+$", row.mode)
        if number is None:
            return self._episodes[row.split, row.mode]
        section, seed = self.recipe.eval, derive_seed(self.recipe.seed, "trial", int(number[0]))
        return fixed_episodes(
            self._env, row.split, episodes=None, max_tasks=section.max_tasks, seed=seed, prefixes=section.tasks
        )

    def empty_groups(self) -> list[str]:
        """Groups of tasks of which no task is played."""
        played = {episode.task.id for episodes in self._episodes.values() for episode in episodes}
        return [group for group in self.recipe.eval.groups if not any(task.startswith(group) for task in played)]

    def play(self, row: _Row, policy: Callable[[], Policy], reflector: Callable[[], Player | None]) -> list[Trajectory]:
        """Play and record one row of the table, and those of its groups of tasks; return its episodes.

        Trained and remote policies read the words of the recipe's planner and memory.
        """
        section = self.recipe.eval

        def cast() -> tuple[Policy, Sequence[Seat]]:
            actor, spoken = policy(), reflector()
            if row.policy in (*POLICIES.values(), "remote"):
                return actor, self.run_players.playing(spoken, _FOLDERS.get(row.policy, POLICY), section.memory)
            return actor, reflecting(spoken)

        whole, trajectories = self._play(row, cast)
        self.rows.append(whole)
        for group in section.groups:
            if any(trajectory.task.id.startswith(group) for trajectory in trajectories):
                part = summarise(*row, trajectories, group)
                self.rows.append(replace(part, benchmark=whole.benchmark, chosen=whole.chosen))
        return trajectories

    def _play(self, asked: _Row, cast: _Cast) -> tuple[EvalRow, list[Trajectory]]:
        """Play and record the episodes of a row, or read what an earlier process recorded of them."""
        section, splits = self.recipe.eval, self.recipe.eval.splits
        name, reflections, mode, split = asked
        episodes, row = self._episodes_of(asked), self._before.get(asked)
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
        policy, seats = cast()
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

    def trials(
        self, name: str, reflections: str, policy: Callable[[], Policy], reflector: Callable[[], Player | None]
    ) -> None:
        """Play the trials of a policy with a memory and, if wanted, without one; record rows of each and its groups."""
        section, settings = self.recipe.eval.trials, self.recipe.eval.memory or self.recipe.players.memory
        if section is None or name not in section.policies:
            return
        kinds = [memory for memory, there in ((True, settings is not None), (False, section.control)) if there]
        for split in self.recipe.eval.splits:
            for memory in kinds:
                modes = (f"{'trial' if memory else 'alone'}{number}" for number in range(1, section.count + 1))
                rows = [_Row(name, reflections, mode, split) for mode in modes]
                if not self._is_mine(*rows):
                    continue
                played: list[list[Trajectory]] = []
                for number, row in enumerate(rows, start=1):
                    past = self._past(played) if memory else ()
                    first = section.begin_with == "examples" and number == 1
                    shown = settings.examples if settings is not None and first else settings

                    def cast(
                        shown: MemoryPlayerSection | None = shown, past: Sequence[Experience] = past
                    ) -> tuple[Policy, Sequence[Seat]]:
                        return policy(), self.run_players.remembering(shown, past, reflector())

                    played.append(self._play(row, cast)[1])
                    ids = [trajectory.task.id for trajectory in played[-1]]
                    self.trial_rows += (
                        trial_row(name, reflections, split, played, memory=memory, remembered=len(past), group=group)
                        for group in ("", *self.recipe.eval.groups)
                        if any(each.startswith(group) for each in ids)
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

        @functools.cache
        def loaded() -> tuple[LanguageModel, Callable[[bool], Policy]]:
            lm, player = self.run_players.lm_policy(folder)
            self._check_prompt_lengths(lm)
            return lm, player

        def sampling() -> Policy:
            return loaded()[1](False)

        who, section = self.recipe.players.reflector.player, self.recipe.eval
        reflectors: dict[str, Callable[[], Player | None]] = {
            who: lambda: self.run_players.reflector(loaded()[0], folder)
        }
        if name == "zero_shot":
            reflectors = {"none": lambda: None}
        if name == "rlft":
            reflectors |= self._reflectors
        for reflections, load in reflectors.items():
            reflector = functools.cache(load)
            for split in section.splits:
                row = _Row(name, reflections, "sampled", split)
                controls = []
                if name == "rlft" and reflections == who:  # the run's own reflector is no control
                    controls = [row._replace(reflections=each) for each in section.controls if each != who]
                shuffled = [each for each in controls if each.reflections == "shuffled"]  # its words are those of row
                if mine := self._is_mine(row, *shuffled):
                    sampled = self.play(row, sampling, reflector)
                greedy = row._replace(mode="greedy")
                if section.greedy and self._is_mine(greedy):
                    self.play(greedy, lambda: loaded()[1](True), reflector)
                for control in controls:
                    if mine if control in shuffled else self._is_mine(control):
                        words = sampled if control in shuffled else []
                        self.play(control, sampling, functools.partial(_control, control.reflections, words))
            if reflections == who:
                self.trials(name, who, sampling, reflector)

    def plain_rows(self, name: str) -> None:
        """Play a policy without a local model, sampled; a remote one reads what other chat models or the expert say."""
        policy, kind = self.run_players.plain_policy(name), self.recipe.players.reflector.player
        reflector = (
            self.run_players.reflector(None) if name == "remote" and kind in ("remote", "server", "expert") else None
        )
        reflections = "none" if reflector is None else kind
        for split in self.recipe.eval.splits:
            row = _Row(name, reflections, "sampled", split)
            if self._is_mine(row):
                self.play(row, lambda: policy, lambda: reflector)
        self.trials(name, reflections, lambda: policy, lambda: reflector)


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
        # one journal has all replies: none is paid twice where the next start has another number of processes
        processes = 1 if asks_endpoints(recipe, run, "eval") else process_count()
        if process_rank() >= processes:
            return Usage()
        meet = wait_for_all if processes > 1 else lambda: None
        evaluation = _Evaluation(recipe, run, account, envs, advance, processes)
        for group in evaluation.empty_groups():
            report(labelled("eval", f"no task that is played has an id that starts with {group!r} (eval.groups)"))
        for path in unfinished_files(run.path, "eval") if is_main_process() else ():
            drop_unfinished_line(path)
        meet()
        evaluation.read_finished()
        meet()
        evaluation.walk()
        meet()
        if not is_main_process():
            return Usage()
        if processes > 1:
            evaluation.read_finished()
            evaluation.walk()  # which now reads the rows of the others
    if evaluation.trial_rows:
        write_jsonl(run / TRIALS, evaluation.trial_rows)
    else:
        (run / TRIALS).unlink(missing_ok=True)
    write_results(run / RESULTS, evaluation.rows)
    for path in unfinished_files(run.path, "eval"):
        path.unlink()
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
