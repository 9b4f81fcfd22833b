"""Tokens, forward passes and seconds of an iteration of RLFT, before anything is trained.

The prompts come from episodes of a noisy expert, tokenized with the recipe's tokenizer. Models of the recipe's shape
with random weights and few layers read, write and learn from a sample of them through the engine itself, on this
machine; the cost of a layer is multiplied by the number of layers. No weights are downloaded, except for a model that
is in a package.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from reflectrl.config import Recipe
from reflectrl.config.environment import recipe_env
from reflectrl.config.rlft import RLFTSection, Stage
from reflectrl.core import InvalidInput, NatLangEnv, Task, Trajectory
from reflectrl.core.layout import BASE, BASE_REFLECTOR
from reflectrl.core.seeds import derive_seed
from reflectrl.core.text import counted
from reflectrl.data_gen.dataset import build_dataset
from reflectrl.endpoint.account import Account
from reflectrl.models.load import BUILTIN, check_labels
from reflectrl.pipeline.compute import decided, prepare_compute
from reflectrl.pipeline.costs import PartCost, ShallowModels, acting_cost, clock, reflecting_cost, updating_cost
from reflectrl.pipeline.folder import RunFolder
from reflectrl.players import CarelessExpert, ExpertReflector, Player, RandomPolicy, Seat, reflecting
from reflectrl.players.scripted import ScriptedReflector
from reflectrl.prompts import PromptFormat, labels
from reflectrl.prompts.views import MenuView, View, view
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.turn import policy_views, states_of

Item = TypeVar("Item")
EXPERTISE = 0.6
"""Probability of playing the expert's action: about the level of a policy at the start of RLFT."""


@dataclass(frozen=True)
class StageEstimate:
    """Cost of an iteration of one curriculum stage, and the number of its iterations."""

    stage: str
    """Name of the stage."""
    parts: dict[str, PartCost]
    episodes: int
    """Number of episodes of an iteration."""
    steps: int
    """Number of environment steps of an iteration."""
    iterations: int
    """Maximum number of iterations of the stage."""

    @property
    def seconds(self) -> float:
        """Seconds of an iteration."""
        return sum(part.seconds for part in self.parts.values())

    @property
    def text(self) -> str:
        """The estimate as a table, with its total in words."""
        lines = [("part of an iteration", "tokens", "passes", "seconds")]
        lines += [(name, f"{w.tokens:,}", f"{w.passes:,}", f"{w.seconds:.2f}") for name, w in self.parts.items()]
        lines += [("all", "", "", f"{self.seconds:.2f}")]
        table = [f"{name:22}{tokens:>12}{passes:>10}{took:>10}" for name, tokens, passes, took in lines]
        played, repeated = counted(self.episodes, "episode"), counted(self.iterations, "iteration")
        long = _long(self.iterations * self.seconds)
        return "\n".join([*table, f"{played}, about {self.steps} steps; {repeated}: about {long}"])


@dataclass(frozen=True)
class Estimate:
    """Cost of RLFT, stage by stage."""

    stages: tuple[StageEstimate, ...]
    compute: tuple[str, ...]
    """Sentences about the precision that was measured, where the recipe leaves it open or the machine lacks it."""
    not_counted: tuple[str, ...]
    """Parts of the recipe that take time besides."""

    @property
    def text(self) -> str:
        """The estimate of each stage, and what it was measured with and without."""
        lines = []
        for each in self.stages:
            lines += [f"stage {each.stage}:", each.text, ""] if len(self.stages) > 1 else [each.text]
        if len(self.stages) > 1:
            lines.append(f"all stages: about {_long(sum(each.iterations * each.seconds for each in self.stages))}")
        lines += [f"compute: {each}" for each in self.compute]
        return "\n".join([*lines, f"not counted: {', '.join(self.not_counted)}"])


def _long(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.1f} min"


@dataclass(frozen=True)
class Played:
    """Episodes of an iteration."""

    envs: Sequence[NatLangEnv]
    """Environments, one for each of the episodes that are played side by side."""
    layout: PromptFormat
    before: Sequence[Trajectory]
    """Episodes of the previous iteration."""
    episodes: Sequence[Trajectory]

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the longest menu."""
        return labels(self.layout.labels, self.envs[0].max_actions)

    @property
    def policy_views(self) -> list[list[MenuView]]:
        """Views of the policy, step by step."""
        return self._together([policy_views(each, self.layout) for each in self.episodes])

    @property
    def corpus(self) -> list[str]:
        """Every prompt of the policy, each of which begins with the reflector's."""
        return [each.prompt.text for step in self.policy_views for each in step]

    def reflections(self, *, cached: bool) -> tuple[list[list[View]], list[list[str]]]:
        """Return the reflector's views and its words, step by step; ``cached`` leaves out repeated questions."""
        asked = [self._asked(each) for each in self.episodes]
        known = {view.prompt for each in self.before for view, _ in self._asked(each)}
        views, words = [], []
        for step in self._together(asked):
            fresh = {view.prompt: (view, said) for view, said in step if view.prompt not in known}
            known |= fresh.keys()
            pairs = list(fresh.values()) if cached else step
            views.append([view for view, _ in pairs])
            words.append([said for _, said in pairs])
        return views, words

    def _asked(self, played: Trajectory) -> list[tuple[View, str]]:
        views = (view("reflector", self.layout, state) for state in states_of(played))
        return [(each, turn.reflection or "") for each, turn in zip(views, played.turns, strict=True)]

    def _together(self, episodes: Sequence[Sequence[Item]]) -> list[list[Item]]:
        """Return the first steps of the episodes that are played side by side, then their second steps, and so on."""
        steps = []
        for at in range(0, len(episodes), len(self.envs)):
            group = episodes[at : at + len(self.envs)]
            steps += [[e[step] for e in group if step < len(e)] for step in range(max(map(len, group)))]
        return steps


def estimate(recipe: Recipe) -> Estimate:
    """Estimate an iteration of each stage of ``recipe`` on this machine; environments play in this process.

    Raises:
        InvalidInput: no ``rlft`` section, a policy that writes before it acts or reads pictures, a dataset whose
            questions a chat model writes, or a model whose configuration cannot be read.

    """
    section = recipe.rlft
    if section is None:
        raise InvalidInput(f"recipe {recipe.name!r} has no rlft section; expected one, whose iterations are estimated.")
    if recipe.prompt.action_mode != "enumerated":
        raise InvalidInput(
            f"recipe {recipe.name!r} has prompt.action_mode={recipe.prompt.action_mode}, but what a policy writes is "
            "not estimated; expected enumerated: estimate without thoughts, which gives a lower bound."
        )
    if any(model.images for model in (recipe.model, recipe.reflector_model or recipe.model)):
        raise InvalidInput(
            f"recipe {recipe.name!r} has a model that reads pictures (model.images), whose vision tower is not "
            "estimated; time a few iterations of the recipe itself."
        )
    if recipe.dataset is not None and recipe.dataset.writer == "openai":
        raise InvalidInput(
            f"the questions of recipe {recipe.name!r} are written by a chat model, which costs money; estimate with "
            "dataset.writer=extractive, whose prompts are about as long."
        )
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as place:
        run, compute = RunFolder(Path(place)), list[str]()
        prepare_compute(recipe, run, "rlft", compute.append)
        build_dataset(recipe, run.path, Account())
        stages = []
        for number, stage in enumerate(section.stages):
            played = play(recipe, section, stage, run.path)
            parts = _costs(recipe, section, played, run, f"-{number}")
            steps = _steps(played.episodes)
            stages.append(StageEstimate(stage.name, parts, len(played.episodes), steps, stage.iterations))
            for env in played.envs:
                env.close()
    return Estimate(tuple(stages), tuple(compute), _not_counted(recipe, section))


def _not_counted(recipe: Recipe, section: RLFTSection) -> tuple[str, ...]:
    players = recipe.players
    parts = {
        "checkpoints": True,
        "records": section.record_episodes > 0,
        "rlft.validation": section.validation is not None,
        "rlft.terms.kl": section.terms.kl is not None,
        "rlft.ema": section.ema > 0,
        "the requests of players.reflector": players.reflector.player == "remote",
        "the updates of players.reflector": players.reflector.trained,
        "players.planner": players.planner is not None and players.planner.player != "expert",
        "the search of players.memory": players.memory is not None,
        "players.rater": players.rater is not None and players.rater.player != "rule",
    }
    return tuple(part for part, there in parts.items() if there)


def play(recipe: Recipe, section: RLFTSection, stage: Stage, folder: Path) -> Played:
    """Play an iteration of a stage, and one before it; without an expert, reflections have the maximum length.

    Args:
        recipe: the whole recipe.
        section: its settings of RLFT.
        stage: one of its stages.
        folder: run folder, with the dataset that the recipe may need.

    """
    settings = recipe.players.reflector
    side_by_side = min(section.batch_size or section.episodes, section.episodes)
    envs = [recipe_env(recipe, folder, stage.env) for _ in range(side_by_side)]
    layout, tasks = recipe.layout(envs[0].instructions), stage.choose(envs[0])
    speaker: Player | None = None
    if settings.player != "none":
        longest = "the " * settings.max_new_tokens
        speaker = ExpertReflector() if _has_expert(envs[0], tasks[0]) else ScriptedReflector(lambda _: longest)
    memory = recipe.players.memory
    recalled = ScriptedReflector(lambda _: "the " * (memory.max_chars // 4 if memory else 0))
    remembering = [Seat("memory", recalled)] if memory else []
    rng = random.Random(derive_seed(recipe.seed, "estimate"))
    before, episodes = (
        rollout(
            envs,
            [Episode(rng.choice(tasks), rng.getrandbits(32)) for _ in range(section.episodes)],
            policy=CarelessExpert(EXPERTISE),
            seats=(*remembering, *reflecting(speaker)),
            layout=layout,
        )
        for _ in range(2)
    )
    return Played(envs, layout, before, episodes)


def _costs(recipe: Recipe, section: RLFTSection, played: Played, run: RunFolder, suffix: str) -> dict[str, PartCost]:
    """Return the cost of each part of the iteration that was played; ``suffix`` is added to the models' folders."""
    if recipe.model.name != BUILTIN:
        check_labels(recipe.model, played.labels)  # of the model itself, which messages should name
    policy = ShallowModels(decided(recipe.model, run, "policy"), played.corpus, played.labels, run / f"{BASE}{suffix}")
    parts: dict[str, PartCost] = {}
    settings = recipe.players.reflector
    if settings.player in ("local", "self"):
        other = recipe.reflector_model if settings.player == "local" else None
        speaker = (
            policy
            if other is None
            else ShallowModels(
                decided(other, run, "reflector"), played.corpus, played.labels, run / f"{BASE_REFLECTOR}{suffix}"
            )
        )
        views, words = played.reflections(cached=settings.player == "local" and not settings.temperature)
        parts |= reflecting_cost(speaker, settings, views, words)
    acted = played.policy_views
    parts["act"] = acting_cost(policy, acted)
    parts["update"] = updating_cost(policy, section, acted)
    parts["environments"] = PartCost(0, 0, _environments(played))
    return parts


def _has_expert(env: NatLangEnv, task: Task) -> bool:
    env.reset(seed=0, options={"task": task})
    return env.hints().reflection is not None


def _environments(played: Played) -> float:
    """Return the seconds of the environments and the rollout, without any model, for the number of steps played."""
    episodes = [Episode(each.task, each.seed) for each in played.episodes]
    began = clock()
    alone = rollout(played.envs, episodes, policy=RandomPolicy(), seats=(), layout=played.layout)
    return (clock() - began) * _steps(played.episodes) / _steps(alone)


def _steps(played: Sequence[Trajectory]) -> int:
    return sum(len(each.turns) for each in played)
