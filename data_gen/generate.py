"""``generate``: stage 1a. Teacher episodes on training tasks until there are enough samples, then the files."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.config import Recipe
from reflectrl.config.environment import RecipeEnvs
from reflectrl.config.prompts import prompt_format
from reflectrl.core import InvalidInput, NatLangEnv, Task
from reflectrl.core.registry import env_class
from reflectrl.core.types import SPLITS
from reflectrl.data_gen.dataset import Progress, build_dataset
from reflectrl.data_gen.episodes import Course, play_lesson
from reflectrl.data_gen.rows import policy_row, reflector_row, write_rows
from reflectrl.data_gen.samples import Lesson, Sample, write_samples
from reflectrl.data_gen.teachers import ChatTeacher, ExpertTeacher, OracleTeacher, Teacher
from reflectrl.data_gen.unfinished import UnfinishedRun
from reflectrl.prompts import PromptFormat, TeacherPrompts
from reflectrl.rollout.record import Header, write_trajectories

if TYPE_CHECKING:  # imported where a chat model teaches: openai takes a second
    from reflectrl.players.chat import ChatClient, Usage


@dataclass(frozen=True)
class DataSummary:
    """What a run of gen-data collected, and what the teacher cost in this process."""

    episodes: int
    samples: int
    negatives: int
    held_out: int
    """Samples left out because they show a validation or test task's start."""
    success_rate: float
    """Of the teacher's episodes."""
    reflection_words: float
    """Mean over the samples."""
    questions: int = 0
    """In the dataset that was made for the environment, all splits together; 0 where it brings its own tasks."""
    calls: int = 0
    """Requests to chat endpoints, of the questions' writer and of the teacher; 0 for the expert."""
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


def generate(recipe: Recipe, folder: Path, progress: Progress | None = None) -> DataSummary:
    """Collect ``recipe.data.samples`` samples and write ``data/`` and ``sft/`` in ``folder``.

    A recipe with a dataset section first gets its ``dataset/``.

    Episodes play training tasks in a seeded order and are independent of each other, so the result does not depend on
    which of them ends first.

    Raises:
        InvalidInput: an environment without the expert that the recipe asks for, no key, held-out states only.
        WorkFailed: the endpoint cannot be used; finished episodes are kept and used by the next call.

    """
    usages = build_dataset(recipe, folder, progress)
    client = _client(recipe)
    with RecipeEnvs(recipe, folder, on_failure="replay") as source:  # lessons count in a row: none may be missing
        envs = source.make({}, 1 if client is None else recipe.data.concurrency)
        return _generate(recipe, folder, envs, client, usages, progress)


def _generate(
    recipe: Recipe,
    folder: Path,
    envs: Sequence[NatLangEnv],
    client: ChatClient | None,
    usages: list[Usage],
    progress: Progress | None,
) -> DataSummary:
    """Collect and write, a lesson at a time in each of ``envs``."""
    env = envs[0]
    layout = prompt_format(recipe, env.instructions)
    unfinished = UnfinishedRun(folder / "data" / "episodes.partial.jsonl", recipe) if client else None
    collection = _Collection(recipe.data.samples, progress)
    course = Course(
        teacher=_teacher(recipe, client, TeacherPrompts(env.instructions, layout)),
        layout=layout,
        seed=recipe.seed,
        noise=recipe.data.noise,
        negatives=recipe.data.negatives,
        held_out=_held_out(env) if env_class(recipe.env.name).observable else frozenset(),
    )
    asyncio.run(_collect(envs, course, _order(env, recipe.seed), collection, client, unfinished))
    _write(folder, Header(recipe.env.name, recipe.env.options, layout), collection)
    if unfinished:
        unfinished.close()
    if client:
        usages.append(client.usage)
    questions = sum(len(env.tasks(split)) for split in SPLITS) if recipe.dataset else 0
    return _summary(collection, questions, usages)


def _client(recipe: Recipe) -> ChatClient | None:
    if recipe.data.teacher == "expert":
        return None
    from reflectrl.players.chat import ChatClient, Endpoint

    return ChatClient(Endpoint(**recipe.data.endpoint.model_dump()))


def _teacher(recipe: Recipe, client: ChatClient | None, prompts: TeacherPrompts) -> Teacher:
    if client is None:
        return ExpertTeacher()
    return OracleTeacher(client, prompts) if recipe.data.trajectory == "oracle" else ChatTeacher(client, prompts)


def _held_out(env: NatLangEnv) -> frozenset[str]:
    """Texts of the states in which validation and test tasks start."""
    tasks = [task for split in ("validation", "test") for task in env.tasks(split)]
    return frozenset(env.reset(seed=0, options={"task": task})[0] for task in tasks)


def _order(env: NatLangEnv, seed: int) -> list[Task]:
    tasks = list(env.split_tasks("train"))
    random.Random(f"{seed} order of tasks").shuffle(tasks)
    return tasks


class _Collection:
    """Lessons by number; those in a row from the first on count, until they hold enough samples."""

    def __init__(self, wanted: int, progress: Progress | None) -> None:
        self._wanted = wanted
        self._progress = progress
        self._early: dict[int, Lesson] = {}
        self._count = 0
        self.lessons: list[Lesson] = []

    @property
    def enough(self) -> bool:
        return self._count >= self._wanted

    @property
    def samples(self) -> list[Sample]:
        return [sample for lesson in self.lessons for sample in lesson.samples][: self._wanted]

    def add(self, lesson: Lesson) -> None:
        self._early[lesson.number] = lesson
        while not self.enough and len(self.lessons) in self._early:
            self.lessons.append(self._early.pop(len(self.lessons)))
            self._count += len(self.lessons[-1].samples)
        if self._progress is not None:
            self._progress(min(self._count, self._wanted), self._wanted, "samples")

    def check_yield(self, tasks: int) -> None:
        """Refuse to go on for ever when a whole round of tasks taught nothing."""
        if len(self.lessons) >= tasks and self._count == 0:
            raise InvalidInput(
                f"all {tasks} training tasks were played and every state is the start of a validation or test task; "
                "expected others: mend the environment's splits."
            )


async def _collect(
    envs: Sequence[NatLangEnv],
    course: Course,
    tasks: Sequence[Task],
    collection: _Collection,
    client: ChatClient | None,
    unfinished: UnfinishedRun | None,
) -> None:
    """Play lessons, several at a time where a remote teacher is waited for."""
    known = unfinished.lessons() if unfinished else {}
    for lesson in known.values():
        collection.add(lesson)

    async def work(env: NatLangEnv, numbers: Iterator[int]) -> None:
        while not collection.enough:
            collection.check_yield(len(tasks))
            number = next(numbers)
            lesson = await play_lesson(env, number, tasks[number % len(tasks)], course)
            if unfinished:
                unfinished.add(lesson)
            collection.add(lesson)

    numbers = (number for number in itertools.count() if number not in known)
    async with AsyncExitStack() as stack:
        if client is not None:
            await stack.enter_async_context(client)
        await asyncio.gather(*(work(env, numbers) for env in envs))


def _write(folder: Path, header: Header, collection: _Collection) -> None:
    layout: PromptFormat = header.prompt
    samples = collection.samples
    write_trajectories(folder / "data" / "teacher.jsonl", header, [lesson.trajectory for lesson in collection.lessons])
    write_samples(folder / "data" / "negatives.jsonl", header, [sample for sample in samples if sample.negative])
    rows = {
        "reflector": [reflector_row(sample, layout) for sample in samples],
        "policy": [policy_row(sample, layout, reflection=True) for sample in samples],
        "policy-no-reflection": [policy_row(sample, layout, reflection=False) for sample in samples],
    }
    for name, content in rows.items():
        write_rows(folder / "sft" / f"{name}.jsonl", content)


def _summary(collection: _Collection, questions: int, usages: Sequence[Usage]) -> DataSummary:
    samples, lessons = collection.samples, collection.lessons
    return DataSummary(
        episodes=len(lessons),
        samples=len(samples),
        negatives=sum(sample.negative for sample in samples),
        held_out=sum(lesson.held_out for lesson in lessons),
        success_rate=sum(lesson.trajectory.success for lesson in lessons) / len(lessons),
        reflection_words=sum(len(sample.reflection.split()) for sample in samples) / len(samples),
        questions=questions,
        calls=sum(usage.calls for usage in usages),
        retries=sum(usage.retries for usage in usages),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
    )
