"""The eval stage: every policy of the recipe on the same fixed episodes, and its trajectories for the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.config.environment import RecipeEnvs
from reflectrl.core import Trajectory
from reflectrl.core.jsonl import append_jsonl, mend_tail
from reflectrl.evaluation import evaluate, fixed_episodes
from reflectrl.pipeline.cast import Cast
from reflectrl.pipeline.console import Advance
from reflectrl.pipeline.folder import RunFolder
from reflectrl.players import ExpertReflector, Policy, Reflector, ScriptedReflector, ShuffledReflector
from reflectrl.players.account import Account, Usage
from reflectrl.rollout import Episode
from reflectrl.rollout.record import Header, read_trajectories, write_trajectories
from reflectrl.rollout.results import EvalRow, read_results, summarise, write_results

_FOLDERS = {"base": "base", "sft": "policy-sft", "rlft": "policy"}


class _Judge:
    """Plays the episodes, keeps the rows and the trajectories; rows that an earlier process finished are not played."""

    def __init__(self, recipe: Recipe, run: RunFolder, account: Account, envs: RecipeEnvs, advance: Advance) -> None:
        self.recipe = recipe
        self.run = run
        self.cast = Cast(recipe, run, account)
        self.rows: list[EvalRow] = []
        self._unfinished = run.unfinished("eval")
        self._before = {(row.policy, row.reflections, row.mode): row for row in _finished(self._unfinished)}
        self._advance = advance
        section = recipe.eval
        self._env = env = self.cast.env(section.env)
        self._episodes = {
            mode: fixed_episodes(env, section.split, episodes=count, max_tasks=section.max_tasks, seed=recipe.seed)
            for mode, count in (("sampled", section.episodes), ("greedy", None))
        }
        most = max(len(episodes) for episodes in self._episodes.values())
        self._envs = envs.make(section.env, min(section.batch_size, most))

    def play(
        self, name: str, reflections: str, mode: str, policy: Policy, reflector: Reflector | None
    ) -> list[Trajectory]:
        """One row of the table."""
        path = self.run / "trajectories" / f"eval-{name}-{reflections}-{mode}.jsonl"
        before = self._before.get((name, reflections, mode))
        if before is not None:
            self.rows.append(before)
            return read_trajectories(path)[1]
        episodes: Sequence[Episode] = self._episodes[mode]
        label = f"{name} {mode}" if reflections in ("none", self.recipe.players.reflector) else f"{name} {reflections}"
        finished = 0

        def count(_: Trajectory) -> None:
            nonlocal finished
            finished += 1
            self._advance(finished, len(episodes), label)

        section = self.recipe.eval
        trajectories = evaluate(
            self._envs,
            episodes,
            policy=policy,
            reflector=reflector,
            layout=self.cast.layout,
            on_episode=count,
        )
        header = Header(self.recipe.env.name, {**self.recipe.env.options, **section.env}, self.cast.layout)
        write_trajectories(path, header, trajectories)
        row = summarise(name, reflections, mode, section.split, trajectories)
        self.rows.append(replace(row, benchmark=self._env.benchmark(row.split, row.tasks)))
        append_jsonl(self._unfinished, self.rows[-1:])
        return trajectories

    def model_rows(self, name: str) -> None:
        """A local policy: sampled, greedy if wanted, and the controls for the RLFT policy."""
        lm, player = self.cast.lm_policy(_FOLDERS[name])
        reflector, who = self.cast.reflector(lm), self.recipe.players.reflector
        sampled = self.play(name, who, "sampled", player(False), reflector)
        if self.recipe.eval.greedy:
            self.play(name, who, "greedy", player(True), reflector)
        if name == "rlft":
            for control in self.recipe.eval.controls:
                self.play(name, control, "sampled", player(False), _control(control, sampled))


def _finished(unfinished: Path) -> list[EvalRow]:
    if not unfinished.exists():
        return []
    mend_tail(unfinished)
    return read_results(unfinished)


def _control(kind: str, sampled: Sequence[Trajectory]) -> Reflector:
    if kind == "blank":
        return ScriptedReflector(lambda _: "")
    if kind == "expert":
        return ExpertReflector()
    return ShuffledReflector([turn.reflection or "" for episode in sampled for turn in episode.turns])


def judge(recipe: Recipe, run: RunFolder, account: Account, advance: Advance) -> Usage:
    """Write ``eval.jsonl`` and the trajectories of every row.

    Returns:
        What the calls to chat endpoints came to in this process.

    """
    with RecipeEnvs(recipe, run.path, on_failure="replay") as envs:
        work = _Judge(recipe, run, account, envs, advance)
        for name in recipe.eval.policies:
            if name in _FOLDERS:
                work.model_rows(name)
            else:
                work.play(name, "none", "sampled", work.cast.plain_policy(name), None)
    write_results(run / "eval.jsonl", work.rows)
    run.unfinished("eval").unlink(missing_ok=True)
    best = max(work.rows, key=lambda r: r.metrics.success if r.policy != "expert" else -1.0)
    where = f"; {best.benchmark}, split {best.split}" if best.benchmark else ""
    success = f"{best.metrics.success:.0%} of {best.metrics.episodes} episodes"
    advance(1, 1, f"best {best.policy} ({best.mode}) {success}{where}")
    return work.cast.usage
