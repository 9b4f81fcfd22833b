"""``Run``: the Python interface to one experiment in a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reflectrl.config import Recipe, check_recipe, load_recipe, load_saved_recipe
from reflectrl.core import InvalidInput, run_files
from reflectrl.pipeline import run_stages

if TYPE_CHECKING:  # torch takes seconds to import
    from pandas import DataFrame

    from reflectrl.pipeline.agent import Agent
    from reflectrl.pipeline.console import Reporter
    from reflectrl.report.notebook import Comparison, Results
    from reflectrl.rollout.iteration import Iteration
    from reflectrl.training.learner import OnIteration


def _plain(value: object) -> object:
    """Return a dataclass as a dictionary, and any other value that JSON has no form for as text."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


class Run:
    """One experiment: a recipe and the folder in which its stages leave their results.

    Each stage needs the ones before it. A finished stage is skipped and its results are read, a killed stage resumes
    from its last checkpoint, and a stage whose inputs changed is refused. ``reflectrl`` on the command line works in
    the same folders.

    Args:
        path: the run folder, e.g. ``runs/taxi``; created when the first stage starts.
        recipe: name of a shipped recipe, path of a YAML file, a mapping with the keys of one, or a ``Recipe``; the
            recipe that is saved in the folder if absent.
        overrides: changes to the recipe by dotted keys, ``{"seed": 1, "rlft.gamma": 0.9}``.
        arm: one of the variants that a recipe file lists as ``arms``; absent: the recipe itself.
        reporter: reports progress; by default, progress bars and lines in the terminal.

    Raises:
        InvalidInput: the recipe cannot be read, has mistakes (all are listed), or sets options that its environment
            does not accept.
    """

    def __init__(
        self,
        path: str | Path,
        recipe: str | Path | Mapping[str, object] | Recipe | None = None,
        overrides: Mapping[str, object] | None = None,
        *,
        arm: str | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self.path = Path(path)
        if overrides is not None and not isinstance(overrides, Mapping):
            raise InvalidInput(f"overrides={overrides!r} was given; expected a mapping such as {{'rlft.gamma': 0.9}}.")
        given = load_saved_recipe(self.path / run_files.RECIPE) if recipe is None else recipe
        changes = [
            f"{key}={json.dumps(value, default=_plain, ensure_ascii=False)}" for key, value in (overrides or {}).items()
        ]
        self.recipe = load_recipe(given, changes, arm=arm)
        self._reporter = reporter
        check_recipe(self.recipe)

    def run(
        self,
        stages: Sequence[str] = run_files.STAGES,
        *,
        players: Sequence[Literal["reflector", "policy"]] | None = None,
        max_cost: float | None = None,
        dry_run: bool = False,
        batch: Literal["submit", "collect"] | None = None,
        on_iteration: OnIteration | None = None,
    ) -> None:
        """Run ``stages`` in order.

        Args:
            stages: some of ``gen-data``, ``sft``, ``rlft`` and ``eval``.
            players: players that ``sft`` trains; both if absent.
            max_cost: budget for chat endpoints in this folder, in USD; the recipe must state their prices.
            dry_run: ``gen-data`` only reports the expected calls and their cost.
            batch: ``gen-data`` uses OpenAI's Batch API: submit the calls, or collect the replies.
            on_iteration: called in ``rlft`` with the record and the fresh episodes of each iteration. An error of it,
                such as ``optuna.TrialPruned``, is raised after a checkpoint, from which the same call continues.

        Raises:
            InvalidInput: an earlier stage is not done, or the folder was created from other inputs or is in use.
            WorkFailed: a stage failed while it was running; the same call resumes from the last checkpoint.
        """
        from reflectrl.data_gen.generate import Spending

        spending = Spending(max_cost, dry_run, batch)
        self.recipe = run_stages(
            self.recipe,
            self.path,
            stages,
            sft_players=players,
            spending=spending,
            reporter=self._reporter,
            on_iteration=on_iteration,
        )

    def gen_data(self, *, max_cost: float | None = None) -> dict[str, Path]:
        """Run stage 1a: collect the teacher's episodes; return the files of SFT rows by kind of row."""
        self.run(("gen-data",), max_cost=max_cost)
        names = ("reflector", "policy", "policy-no-reflection")
        return {name: self.path / run_files.sft_rows_file(name) for name in names}

    def sft(self) -> dict[str, Path]:
        """Run stage 1b: fine-tune both players; return their folders by name (one for a single player)."""
        self.run(("sft",))
        folders = {"reflector": self.path / run_files.REFLECTOR, "policy": self.path / run_files.POLICY_SFT}
        return {name: folder for name, folder in folders.items() if folder.is_dir()}

    def rlft(self, *, max_cost: float | None = None, on_iteration: OnIteration | None = None) -> list[Iteration]:
        """Run stage 2: train the policy by online RL; return the metrics of every iteration.

        ``on_iteration`` is that of ``run``.
        """
        self.run(("rlft",), max_cost=max_cost, on_iteration=on_iteration)
        return self._iterations()

    def _iterations(self) -> list[Iteration]:
        from reflectrl.core.jsonl import decode, read_jsonl
        from reflectrl.rollout.iteration import Iteration

        path = self.path / run_files.METRICS
        lines = read_jsonl(path, skip_unfinished=True) if path.is_file() else ()
        return [decode(Iteration, value, where) for where, value in lines]

    def metrics(self) -> DataFrame:
        """Return the metrics of RLFT so far, a row per iteration; columns are named as in trackers."""
        from pandas import DataFrame

        from reflectrl.core.metric import tracked

        rows = [{"iteration": each.iteration, "lesson": each.lesson, **tracked(each)} for each in self._iterations()]
        return DataFrame(rows, columns=None if rows else ["iteration", "lesson"]).set_index("iteration")

    def evaluate(self, *, max_cost: float | None = None) -> Results:
        """Play the evaluation's tasks with every policy of the recipe; return the rows of the results table."""
        from reflectrl.report.notebook import Results
        from reflectrl.rollout.results import read_results

        self.run(("eval",), max_cost=max_cost)
        return Results(read_results(self.path / run_files.RESULTS))

    def _repr_html_(self) -> str:
        from reflectrl.report.notebook import run_html

        return run_html(self.path, self.recipe.name)

    def report(self, out: Path | None = None) -> Path:
        """Print the results and write the HTML report, by default ``report.html`` in the folder; return its path."""
        from reflectrl.report import report

        return report([self.path], out)

    def agent(self, policy: Literal["policy", "policy-sft"] | None = None, *, greedy: bool | None = None) -> Agent:
        """Load the players that the run has trained, by default with the policy of the last finished training stage.

        If ``greedy`` is absent, the policy chooses or draws its actions, by what did better in validation.
        """
        from reflectrl.pipeline.agent import load_agent

        return load_agent(self.path, policy=policy, greedy=greedy)


def compare(
    runs: Sequence[Run | str | Path],
    *,
    by: str = "recipe",
    policy: str = "rlft",
    split: str = "test",
    mode: Literal["sampled", "greedy"] = "sampled",
    reflections: str | None = None,
) -> Comparison:
    """Compare groups of evaluated runs over their seeds, such as two arms of a recipe.

    Args:
        runs: the runs, or their folders.
        by: what makes a group: ``recipe`` (all settings but the seed), or a recipe key such as ``rlft.gamma``.
        policy: policy of the evaluation.
        split: split of the evaluation.
        mode: how the policy played.
        reflections: a control such as ``blank``, or another reflector; absent: the recipe's own.

    Raises:
        InvalidInput: no run has such a row, or no recipe has the key ``by``.
    """
    from reflectrl.report.compare import Rows
    from reflectrl.report.compare import compare as summarise
    from reflectrl.report.notebook import Comparison
    from reflectrl.report.runs import read_runs

    folders = [each.path if isinstance(each, Run) else Path(each) for each in runs]
    return Comparison(*summarise(read_runs(folders), Rows(policy, split, mode, reflections), by))
