"""``Memories``: the planner and the memory of a run, made from its recipe and its folder (RAP)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from reflectrl.config.memory import MemoryPlayerSection
from reflectrl.core import Trajectory
from reflectrl.core.layout import MEMORY, POLICY, TEACHER, memory_file
from reflectrl.core.seeds import derive_seed
from reflectrl.memory import (
    EmbeddingCache,
    EpisodeStore,
    Experience,
    GrowingMemory,
    Memory,
    Planner,
    Retriever,
    Weights,
    Windows,
)
from reflectrl.memory.language import HiddenStates, embedder
from reflectrl.memory.local import LocalText
from reflectrl.memory.planner import TextModel
from reflectrl.memory.store import Keep, experiences
from reflectrl.memory.vision import VisionTower
from reflectrl.models.builtin import make_base
from reflectrl.models.load import BUILTIN
from reflectrl.pipeline.endpoints import Endpoints
from reflectrl.pipeline.folder import process_rank
from reflectrl.pipeline.models import RunModels
from reflectrl.players import ExpertReflector, Player, Seat, reflecting
from reflectrl.rollout.record import Header, read_trajectories

_log = logging.getLogger(__name__)


class Memories:
    """The players that plan and that remember past episodes; models are loaded when they are first needed."""

    def __init__(self, models: RunModels, endpoints: Endpoints) -> None:
        self._models = models
        self._recipe = models.recipe
        self._endpoints = endpoints

    @property
    def _section(self) -> MemoryPlayerSection | None:
        return self._recipe.players.memory or self._recipe.eval.memory

    @property
    def _keep(self) -> Keep:
        return "success" if self._section is None else self._section.keep

    @property
    def _grows(self) -> bool:
        section = self._recipe.players.memory
        return section is not None and section.grows

    def of_policy(self, name: str) -> tuple[Experience, ...]:
        """Return the memory of the policy in the folder ``name``: its contents at the end of the policy's training.

        Raises:
            InvalidInput: the file does not exist, or was damaged or exchanged.

        """
        if not self._grows or name != POLICY:
            return self.taught
        return EpisodeStore(self._models.run.verified(MEMORY, "rlft"), self._header).snapshot()

    def load_planner(self) -> None:
        """Load the model of the planner, if there is one, before the work that needs it."""
        self._planning_model  # noqa: B018 - a cached property

    def growing(self, *, from_start: bool) -> EpisodeStore | None:
        """Return the store that grows in RLFT and begins with the teacher's episodes; ``None`` if none grows.

        Args:
            from_start: True where training begins, False where it continues from a checkpoint.

        """
        if not self._grows:
            return None
        path = self._models.run / memory_file(process_rank())
        if from_start:
            path.unlink(missing_ok=True)
        store = EpisodeStore(path, self._header, keep=self._keep)
        if store.dropped:
            _log.warning("the last line of %s was damaged and is dropped; training plays its episode again.", path)
        if not len(store):
            for trajectory in self._teachers_episodes:
                store.add(trajectory)
        return store

    @property
    def _header(self) -> Header:
        env = self._recipe.env
        return Header(env.name, dict(env.options), self._models.layout)

    @property
    def _teachers_episodes(self) -> Sequence[Trajectory]:
        return read_trajectories(self._models.run.verified(TEACHER, "gen-data"))[1]

    @cached_property
    def taught(self) -> tuple[Experience, ...]:
        """The teacher's episodes that a memory keeps."""
        return self.kept(self._teachers_episodes)

    def kept(self, trajectories: Iterable[Trajectory]) -> tuple[Experience, ...]:
        """Return the episodes that the recipe's memory keeps, the best one of each task."""
        return experiences(trajectories, self._keep)

    def table(
        self,
        memory: MemoryPlayerSection | None,
        past: Sequence[Experience],
        reflector: Player | None,
        store: EpisodeStore | None = None,
    ) -> tuple[Seat, ...]:
        """Return the seats that speak before the act, in their order.

        Args:
            memory: settings of a memory of ``past`` episodes; there is none for ``None``, or without such episodes.
            past: episodes to remember; the planner learns from their plans, too.
            reflector: the reflector; ``None`` for no reflections.
            store: store that the memory adds to, if it grows; then ``past`` is its snapshot.

        """
        planner = self._planner(past)
        seats = () if planner is None else (Seat("planner", planner),)
        if memory is None or (not past and store is None):
            return (*seats, *reflecting(reflector))

        def grown(experiences: Sequence[Experience]) -> Retriever:
            if isinstance(planner, Planner):
                planner.past = self._plans(experiences)
            return self._retriever(memory, experiences)

        new = partial(Memory, self._retriever(memory, past)) if store is None else partial(GrowingMemory, store, grown)
        keys = planner if isinstance(planner, Planner) and memory.key == "planner" else None
        player = new(key=memory.key, planner=keys, max_chars=memory.max_chars)
        recalling = (Seat("memory", player),)
        if player.reads_thoughts:
            return (*seats, *reflecting(reflector), *recalling)
        return (*seats, *recalling, *reflecting(reflector))

    def _retriever(self, memory: MemoryPlayerSection, past: Sequence[Experience]) -> Retriever:
        seen = Windows(memory.episodes, memory.steps)
        return Retriever(
            past,
            self._embedder,
            weights=Weights(**memory.weights.model_dump()),
            key_match=memory.key_match,
            action=Windows(memory.action_episodes or seen.k, memory.action_steps or seen.m),
            observation=seen,
            pictures=self._vision_tower if memory.key == "picture" else None,
            min_score=memory.min_score,
        )

    def _planner(self, past: Sequence[Experience]) -> Player | None:
        section = self._recipe.players.planner
        if section is None:
            return None
        if self._planning_model is None:
            return ExpertReflector()
        return Planner(self._planning_model, self._plans(past))

    def _plans(self, past: Sequence[Experience]) -> Retriever | None:
        """Return the ranking of past episodes' plans for the planner; ``None`` if it is shown none."""
        section = self._recipe.players.planner
        planned = [each for each in past if each.plan] if section is not None and section.examples else []
        if section is None or not planned:
            return None
        return Retriever(planned, self._embedder, action=Windows(section.examples, 1))

    @cached_property
    def _planning_model(self) -> TextModel | None:
        """The model of the planner; ``None`` where the expert plans."""
        section = self._recipe.players.planner
        if section is None or section.player == "expert":
            return None
        if section.player == "local":
            lm, limit = self._models.frozen(section.model, "planner"), section.max_new_tokens
            return LocalText(lm, max_length=section.model.max_length, max_new_tokens=limit)
        from reflectrl.memory.remote import RemoteText

        return self._endpoints.player(RemoteText, "planner", section.endpoint)

    @cached_property
    def _embedder(self) -> EmbeddingCache:
        section = self._section
        return EmbeddingCache(embedder(section.embedder if section else "hashing", self._own_states))

    def _own_states(self) -> HiddenStates:
        """Return an embedder with the policy's base before any training."""
        shape = self._models.base("policy") if self._recipe.model.name == BUILTIN else self._recipe.model
        lm = self._models.frozen(shape.model_copy(update={"lora": None}), "embedder")
        return HiddenStates(lm.base, lm.tokenizer, shape.max_length)

    @cached_property
    def _vision_tower(self) -> VisionTower:
        """A copy of the policy's base, which embeds pictures as keys of a memory."""
        section = self._recipe.model.model_copy(update={"lora": None})
        with TemporaryDirectory(prefix="reflectrl-") as place:  # the run's own built-in base is made later, of rows
            seed = derive_seed(self._recipe.seed, "vision tower")
            base = make_base(section, Path(place) / "base", corpus=[], labels=self._models.labels, seed=seed)
            return VisionTower(self._models.frozen(base, "memory"))
