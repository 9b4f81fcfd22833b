"""``generate``: stage 1a, teacher episodes on training tasks until there are enough samples, then the files."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reflectrl.config import Recipe
from reflectrl.config.environment import RecipeEnvs
from reflectrl.config.spending import open_account
from reflectrl.core import InvalidInput, NatLangEnv, Task, Trajectory
from reflectrl.core.check import spread
from reflectrl.core.registry import env_class
from reflectrl.core.run_files import CALLS, DEMONSTRATIONS, NEGATIVES, TEACHER, sft_rows_file
from reflectrl.core.seeds import derive_seed
from reflectrl.core.stop import run_async
from reflectrl.data_gen.cost import CallEstimate, estimate_teacher_calls
from reflectrl.data_gen.dataset import Progress, build_dataset
from reflectrl.data_gen.demonstrations import (
    Demonstration,
    check_reflections,
    choose_demonstrations,
    other_options,
    read_demonstrations,
)
from reflectrl.data_gen.episodes import (
    ChatTeacher,
    ExpertTeacher,
    OracleTeacher,
    RandomTeacher,
    Teacher,
    Teaching,
    play_teacher_episode,
)
from reflectrl.data_gen.rows import (
    Sample,
    TeacherEpisode,
    policy_row,
    reflector_row,
    with_misread_states,
    with_unreliable_reflections,
    with_wrong_notes,
    words_in_view,
    write_rows,
    write_samples,
)
from reflectrl.endpoint.account import Account, Usage
from reflectrl.endpoint.journal import Journal
from reflectrl.prompts import TeacherPrompts
from reflectrl.rollout.record import Header, write_trajectories
from reflectrl.seats.reflector import ScriptedReflector
from reflectrl.seats.table import Seat, reflecting

if TYPE_CHECKING:  # imported only if a chat model teaches: openai takes a second
    from reflectrl.endpoint.client import ChatClient


STARTS = 2_000
"""Maximum number of training tasks that are begun to compare their first states with those of held-out tasks."""
Seats = Callable[[Sequence[Trajectory]], Sequence[Seat]]
"""Function from the teacher's episodes to the frozen players of the recipe, in the order in which they speak."""


def reflector_alone(taught: Sequence[Trajectory]) -> tuple[Seat, ...]:  # noqa: ARG001 - no player here has a memory
    """Return the seats of a recipe without other frozen players."""
    return reflecting(ScriptedReflector(lambda _: ""))


@dataclass(frozen=True)
class Spending:
    """Limits on a command's calls to chat endpoints; not a part of the recipe, since no result depends on it."""

    max_cost: float | None = None
    """Maximum total cost of the run folder in USD; ``None`` for no limit."""
    dry_run: bool = False
    """True if gen-data only reports the expected calls and their cost."""
    batch: Literal["submit", "collect"] | None = None
    """Use OpenAI's Batch mode, at half the price: ``submit`` the calls, or ``collect`` the replies."""


@dataclass(frozen=True)
class DataSummary:
    """Samples that gen-data collected, and its calls to chat models."""

    samples: int
    demonstrated: int
    """Number of samples from ``data.demonstrations``."""
    negatives: int
    held_out: int
    """Number of samples left out because they show a held-out task's start."""
    indiscreet: int
    """Number of samples left out because their reflection says a secret that their prompt does not show."""
    questions: int
    """Number of dataset questions over all splits; 0 if the environment brings its own tasks."""
    usage: Usage
    """Calls of this process by the writer of questions and the teacher together; none for the expert."""


def generate(
    recipe: Recipe,
    folder: Path,
    progress: Progress | None = None,
    *,
    spending: Spending | None = None,
    tell: Callable[[str], None] = lambda _: None,
    seats: Seats = reflector_alone,
    account: Account | None = None,
) -> DataSummary | None:
    """Collect ``recipe.data.samples`` samples and write ``data/`` and ``sft/`` in ``folder``.

    A recipe with a dataset section first gets its ``dataset/``. Samples of ``data.demonstrations`` come first; the
    teacher adds the missing ones.

    Episodes play training tasks in a seeded order and are independent of each other, so the result does not depend on
    which of them ends first. Replies are stored in ``calls/`` before they are used, so a process that was killed
    repeats no call when it is started again.

    Args:
        recipe: the experiment.
        folder: the run folder.
        progress: called with the number of samples done and wanted.
        spending: limits on the calls to chat endpoints.
        tell: called with a sentence on the calls to make and their estimated cost.
        seats: makes the frozen players whose words the rows show, out of the teacher's episodes.
        account: budget shared with these players; by default, that of ``spending`` for the teacher alone.

    Returns:
        Summary of the collected samples; ``None`` for a dry run.

    Raises:
        InvalidInput: an environment without the expert that the recipe needs, no key, a budget without a price,
            reflections that all say secrets, demonstrations that are missing or cannot be used.
        WorkFailed: the endpoint cannot be used, or the budget is spent; the next call uses all replies that were paid
            for.
    """
    spending = spending or Spending()
    given = read_demonstrations(recipe)
    check_reflections(given, recipe)
    account = account or open_account(recipe, folder, spending.max_cost)
    client: ChatClient | None = None
    if recipe.data.teacher == "openai":
        from reflectrl.endpoint.client import ChatClient

        client = ChatClient(recipe.data.endpoint, Journal(folder / CALLS / "teacher"), account, dry=spending.dry_run)
    usage = build_dataset(recipe, folder, account, progress, tell=tell, dry_run=spending.dry_run)
    if usage is None:
        return None
    if client is not None and spending.batch is None:
        from reflectrl.endpoint.openai_batch import Batches

        Batches(folder / CALLS / "teacher", client).check_collected()
    with (
        RecipeEnvs(recipe, folder, on_failure="replay") as source,  # episodes count in a row, so none may be left out
        ExitStack() as opened,
    ):
        made = source.make({}, 1 if client is None else recipe.data.concurrency)
        envs = [opened.enter_context(closing(env)) for env in made]
        collection = Collection(recipe, envs, client, given, progress, seats)
        for difference in other_options(given, recipe):
            tell(difference)
        if given:
            tell(collection.shown.sentence(collection.missing))
        if client is not None and collection.missing:
            tell(collection.estimate().sentence(client.endpoint, client.journal.replies))
        if spending.dry_run:
            if client is None and not usage.calls:
                planner = recipe.players.planner
                is_asked = planner is not None and planner.player == "remote"
                calls = "calls of the planner are not estimated" if is_asked else "no calls to a chat model, no cost"
                tell(f"the environment's expert teaches: {calls}")
            return None
        if spending.batch is not None:
            tell(_batch(recipe, folder, envs, client, spending.batch, given))
            return None
        run_async(collection.play())
        collection.write(folder)
        questions = sum(len(envs[0].any_tasks(split)) for split in envs[0].splits) if recipe.dataset else 0
    if client is not None:
        usage += client.usage
    return collection.summary(questions, usage)


def _batch(
    recipe: Recipe,
    folder: Path,
    envs: Sequence[NatLangEnv],
    client: ChatClient | None,
    what: str,
    given: Sequence[Demonstration],
) -> str:
    """Submit the calls of Batch mode, or collect their replies; return a sentence that describes the result."""
    if client is None or recipe.data.trajectory != "oracle":
        raise InvalidInput(
            f"Batch mode was asked for with data.teacher={recipe.data.teacher} and data.trajectory="
            f"{recipe.data.trajectory}; expected openai and oracle: a teacher that plays must be answered at once."
        )
    from reflectrl.endpoint.openai_batch import Batches, RecordingClient

    batches = Batches(folder / CALLS / "teacher", client)
    if what == "collect":
        return run_async(batches.collect())
    recording = RecordingClient(client)
    run_async(Collection(recipe, envs, recording, given).play())
    return run_async(batches.submit(recording.calls))


class Collection:
    """Teacher episodes in the order of their numbers, up to the first one with which there are enough samples.

    Each of ``envs`` plays one episode at a time. Samples of demonstrations (``given``) count as well.
    """

    def __init__(
        self,
        recipe: Recipe,
        envs: Sequence[NatLangEnv],
        client: ChatClient | None,
        given: Sequence[Demonstration],
        progress: Progress | None = None,
        seats: Seats = reflector_alone,
    ) -> None:
        self._seats = seats
        self._recipe = recipe
        self._envs = envs
        self._client = client
        self._progress = progress
        env = envs[0]
        self._tasks = list(env.split_tasks("train"))
        random.Random(f"{recipe.seed} order of tasks").shuffle(self._tasks)
        self._prompts = TeacherPrompts(env.instructions, recipe.players.reflector.carry)
        self._teaching = Teaching(
            teacher=self._teacher(),
            layout=recipe.layout(env.instructions),
            seed=recipe.seed,
            noise=recipe.data.noise,
            negatives=0.0 if recipe.data.teacher == "random" else recipe.data.negatives,  # nobody knows a mistake
            held_out=_held_out(recipe, env),
        )
        self.shown = choose_demonstrations(given, env, self._teaching.held_out)
        self._early: dict[int, TeacherEpisode] = {}
        self._episodes: list[TeacherEpisode] = []
        self._taught = 0
        self._yielding = len(self._tasks)
        """Number of episodes after which there has to be a sample."""
        self._rejected = 0
        """Number of calls that were set aside in earlier rounds of tasks."""

    def _teacher(self) -> Teacher:
        if self._client is None:
            return RandomTeacher(self._recipe.seed) if self._recipe.data.teacher == "random" else ExpertTeacher()
        kind = OracleTeacher if self._recipe.data.trajectory == "oracle" else ChatTeacher
        return kind(self._client, self._prompts)

    @property
    def missing(self) -> int:
        """Number of samples that the teacher still has to add."""
        if self.shown.samples and self._recipe.data.teacher == "random":  # its actions are not worth learning
            return 0
        return max(0, self._recipe.data.samples - len(self.shown.samples) - self._taught)

    def estimate(self) -> CallEstimate:
        """Return the estimate of the teacher's calls."""
        chooses = self._recipe.data.trajectory == "teacher"
        return estimate_teacher_calls(
            self._envs[0], self._tasks, self._teaching, self._prompts, samples=self.missing, chooses=chooses
        )

    async def play(self) -> None:
        """Play teacher episodes until there are enough samples.

        Raises:
            InvalidInput: an environment without the expert that the recipe asks for, or only reflections with secrets.
            WorkFailed: the endpoint cannot be used.
        """
        if not self.missing:
            return
        numbers = itertools.count()

        async def work(env: NatLangEnv) -> None:
            while self.missing:
                self._check_yield()
                number = next(numbers)
                task = self._tasks[number % len(self._tasks)]
                self._add(await play_teacher_episode(env, number, task, self._teaching))
                await asyncio.sleep(0)  # calls of other episodes are waiting, even if this one made none

        async with AsyncExitStack() as stack:
            if self._client is not None:
                await stack.enter_async_context(self._client)
            working = [asyncio.create_task(work(env)) for env in self._envs]
            try:
                await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            finally:  # there are enough samples, or one episode failed: the others are not needed
                for task in working:
                    task.cancel()
            for outcome in await asyncio.gather(*working, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome

    def _add(self, episode: TeacherEpisode) -> None:
        """Add an episode; episodes may end in any order."""
        self._early[episode.number] = episode
        while self.missing and len(self._episodes) in self._early:
            self._episodes.append(self._early.pop(len(self._episodes)))
            self._taught += len(self._episodes[-1].samples)
        if self._progress is not None:
            wanted = self._recipe.data.samples
            self._progress(wanted - self.missing, wanted, "samples")

    def _check_yield(self) -> None:
        """Raise ``InvalidInput`` if a whole round of tasks gave no sample, as further rounds would give none either.

        After a round in which further calls were set aside, there is another one, because episodes may stray elsewhere.
        """
        tasks, episodes = len(self._tasks), self._episodes
        if self._taught or len(episodes) < self._yielding:
            return
        if self._client is not None and self._client.journal.rejected > self._rejected:
            self._yielding, self._rejected = len(episodes) + tasks, self._client.journal.rejected
            return
        if self._client is not None and self._rejected:
            raise InvalidInput(
                f"all {tasks} training tasks were played without a sample, and {self._rejected} calls to the teacher "
                f"had no usable reply; {self._client.journal.rejected_path} says why. Use another model and --run."
            )
        raise InvalidInput(
            f"all {tasks} training tasks were played and every reflection says a secret that its prompt does not show; "
            "expected others: reflect on what the texts tell, or name fewer words in the environment's secrets()."
        )

    @property
    def _samples(self) -> list[Sample]:
        """The wanted number of samples, those of demonstrations first."""
        taught = (sample for episode in self._episodes for sample in episode.samples)
        return [*self.shown.samples, *taught][: self._recipe.data.samples]

    def write(self, folder: Path) -> None:
        """Write the episodes, the samples and the rows."""
        layout, samples, env = self._teaching.layout, self._samples, self._recipe.env
        header = Header(env.name, env.options, layout)
        if self.shown.samples:
            write_samples(folder / DEMONSTRATIONS, header, self.shown.samples[: len(samples)])
        played = [episode.trajectory for episode in self._episodes if episode.trajectory.turns]
        write_trajectories(folder / TEACHER, header, played)
        write_samples(folder / NEGATIVES, header, [sample for sample in samples if sample.negative])
        rng = random.Random(derive_seed(self._recipe.seed, "reflection dropout"))
        doubtful = with_unreliable_reflections(samples, self._recipe.data.reflection_dropout, rng)
        seats = self._seats(played)
        heard, read = words_in_view(doubtful, seats, layout, played)
        silent = [seat for seat in seats if seat.role != "reflector"]
        _, unadvised = words_in_view(samples, silent, layout, played)
        rng = random.Random(derive_seed(self._recipe.seed, "misread"))
        misread = with_misread_states(samples, self._recipe.data.misread, rng)
        noted = with_wrong_notes(samples, random.Random(derive_seed(self._recipe.seed, "wrong notes")))
        rows = {
            "reflector": map(reflector_row, noted, itertools.repeat(layout), heard),
            "policy": map(policy_row, doubtful, itertools.repeat(layout), read),
            "policy-no-reflection": map(policy_row, misread, itertools.repeat(layout), unadvised),
        }
        for name, content in rows.items():
            write_rows(folder / sft_rows_file(name), content)

    def summary(self, questions: int, usage: Usage) -> DataSummary:
        """Summarise the samples."""
        samples, episodes = self._samples, self._episodes
        return DataSummary(
            samples=len(samples),
            demonstrated=min(len(samples), len(self.shown.samples)),
            negatives=sum(sample.negative for sample in samples),
            held_out=self.shown.held_out + sum(episode.held_out for episode in episodes),
            indiscreet=sum(episode.indiscreet for episode in episodes),
            questions=questions,
            usage=usage,
        )


def _held_out(recipe: Recipe, env: NatLangEnv) -> frozenset[tuple[str, ...]]:
    """Return what the initial states of held-out tasks show, and no training task's.

    A text that training tasks begin with as well cannot identify a held-out task: what tells them apart is hidden, or
    the tasks are the same. Nothing is held out where the environment says that different states may show the same.
    Only ``STARTS`` training tasks are begun, at equal distances: a text that many begin with is found among them.
    """
    if not env_class(recipe.env.name).observable:
        return frozenset()
    tasks = [task for split in env.splits if split != "train" for task in env.any_tasks(split)]
    held_out = _starts(env, tasks)
    return frozenset(held_out - _starts(env, spread(env.split_tasks("train"), STARTS))) if held_out else frozenset()


def _starts(env: NatLangEnv, tasks: Sequence[Task]) -> set[tuple[str, ...]]:
    starts = set()
    for task in tasks:
        env.reset(seed=0, options={"task": task})
        starts.add(env.observation.shown)
    return starts
