"""``Memories``: the planner and the memory of a run, made from its recipe and its folder (RAP)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from reflectrl.config.memory import MemoryPlayerSection
from reflectrl.core.layout import TEACHER
from reflectrl.core.seeds import derive_seed
from reflectrl.memory import EmbeddingCache, Experience, Memory, Planner, Retriever, Windows
from reflectrl.memory.language import HiddenStates, embedder
from reflectrl.memory.local import LocalText
from reflectrl.memory.planner import TextModel
from reflectrl.memory.store import successes
from reflectrl.memory.vision import VisionTower
from reflectrl.models.builtin import make_base
from reflectrl.models.load import BUILTIN
from reflectrl.pipeline.endpoints import Endpoints
from reflectrl.pipeline.models import RunModels
from reflectrl.players import ExpertReflector, Player, Seat, reflecting
from reflectrl.rollout.record import read_trajectories


class Memories:
    """Players that bring past episodes to the table, and the one that plans; models are loaded when first needed."""

    def __init__(self, models: RunModels, endpoints: Endpoints) -> None:
        self._models = models
        self._recipe = models.recipe
        self._endpoints = endpoints

    @cached_property
    def taught(self) -> tuple[Experience, ...]:
        """The successful episodes of the teacher."""
        return successes(read_trajectories(self._models.run.verified(TEACHER, "gen-data"))[1])

    def table(
        self, memory: MemoryPlayerSection | None, past: Sequence[Experience], reflector: Player | None
    ) -> tuple[Seat, ...]:
        """Return the seats before the act, in the order in which they speak.

        Args:
            memory: settings of a memory of ``past`` episodes; there is none for ``None``, or without such episodes.
            past: episodes to remember, from whose plans the planner learns too.
            reflector: the reflector; ``None`` for no reflections.

        """
        planner = self._planner(past)
        seats = () if planner is None else (Seat("planner", planner, when="episode_start"),)
        if memory is None or not past:
            return (*seats, *reflecting(reflector))
        seen = Windows(memory.episodes, memory.steps)
        done = Windows(memory.action_episodes or seen.k, memory.action_steps or seen.m)
        tower = self._vision_tower if memory.key == "picture" else None
        retriever = Retriever(past, self._embedder, action=done, observation=seen, pictures=tower)
        keys = planner if isinstance(planner, Planner) and memory.key == "planner" else None
        player = Memory(retriever, key=memory.key, planner=keys, max_chars=memory.max_chars)
        recalling = (Seat("memory", player),)
        if player.reads_thoughts:
            return (*seats, *reflecting(reflector), *recalling)
        return (*seats, *recalling, *reflecting(reflector))

    def _planner(self, past: Sequence[Experience]) -> Player | None:
        section = self._recipe.players.planner
        if section is None:
            return None
        if self._planning_model is None:
            return ExpertReflector()
        planned = [each for each in past if each.plan] if section.examples else []
        shown = Retriever(planned, self._embedder, action=Windows(section.examples, 1)) if planned else None
        return Planner(self._planning_model, shown)

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
        section = self._recipe.players.memory or self._recipe.eval.memory
        return EmbeddingCache(embedder(section.embedder if section else "hashing", self._own_states))

    def _own_states(self) -> HiddenStates:
        """Return the embedder of the policy's base before any training."""
        shape = self._models.base("policy") if self._recipe.model.name == BUILTIN else self._recipe.model
        lm = self._models.frozen(shape.model_copy(update={"lora": None}), "embedder")
        return HiddenStates(lm.base, lm.tokenizer, shape.max_length)

    @cached_property
    def _vision_tower(self) -> VisionTower:
        """A copy of the policy's base, of which pictures are keys of a memory."""
        section = self._recipe.model.model_copy(update={"lora": None})
        with TemporaryDirectory(prefix="reflectrl-") as place:  # the run's own built-in base is made of rows, later
            seed = derive_seed(self._recipe.seed, "vision tower")
            base = make_base(section, Path(place) / "base", corpus=[], labels=self._models.labels, seed=seed)
            return VisionTower(self._models.frozen(base, "memory"))
