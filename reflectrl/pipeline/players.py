"""``RunPlayers``: the players of a run, made from its recipe and its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.config.endpoint import eval_role
from reflectrl.config.evaluation import ReflectorSection
from reflectrl.config.memory import MemoryPlayerSection
from reflectrl.config.model import ModelSection
from reflectrl.config.reflector import ReflectorPlayerSection
from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.layout import POLICY, POLICY_SFT, REFLECTOR, REFLECTOR_RLFT
from reflectrl.endpoint.account import Account, Usage
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.engine.head import add_choice_head
from reflectrl.engine.reuse import prefix_cache_for
from reflectrl.models.load import LanguageModel
from reflectrl.models.policy import LMPolicy
from reflectrl.models.reflector import LMReflector
from reflectrl.models.thinking import writing_policy
from reflectrl.pipeline.endpoints import Endpoints, Replies
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.judges import corrector_of, rater_of
from reflectrl.pipeline.memories import Memories
from reflectrl.pipeline.models import RunModels
from reflectrl.pipeline.reflectors import reflector_recipe
from reflectrl.players import ExpertPolicy, ExpertReflector, Player, Policy, RandomPolicy, ScriptedReflector, Seat


class RunPlayers(RunModels):
    """The players of one run and their models, which are loaded when they are first needed."""

    def __init__(
        self, recipe: Recipe, run: RunFolder, account: Account | None = None, *, replies: Replies = "keep"
    ) -> None:
        super().__init__(recipe, run)
        self.endpoints = Endpoints(run, account or Account(), replies)
        self.memories = Memories(self, self.endpoints)
        self._reflectors: dict[str, tuple[LanguageModel, LMReflector]] = {}

    @property
    def usage(self) -> Usage:
        """Calls of this process to chat endpoints, and their cost."""
        return self.endpoints.usage

    # ---- policies ----------------------------------------------------------------------------------------------------

    def lm_policy(self, name: str) -> tuple[LanguageModel, Callable[[bool], Policy]]:
        """Return the model of a saved policy, and a function from ``greedy`` to a player with this model."""
        lm = self.load(name)
        lm.model.requires_grad_(False)  # of a base that is not trained, too
        add_choice_head(lm.base)
        encoder, model = self.encoder(lm), self.recipe.model
        prefix_cache = prefix_cache_for(lm.base, model.max_length, "policy") if model.prefix_reuse else None
        mode, section = self.layout.action_mode, self.recipe.players.policy
        if mode == "enumerated":
            return lm, lambda greedy: LMPolicy(lm.model, encoder, greedy=greedy, prefix_cache=prefix_cache)
        return lm, lambda greedy: writing_policy(
            mode,
            lm,
            encoder,
            max_new_tokens=section.max_new_tokens,
            temperature=section.temperature,
            greedy=greedy,
            prefix_cache=prefix_cache,
        )

    def plain_policy(self, name: str) -> Policy:
        """Return a policy without a local model: ``random``, ``expert`` or ``remote``."""
        if name == "remote":
            from reflectrl.players.remote import RemotePolicy

            return self.endpoints.player(RemotePolicy, "policy", self.recipe.players.policy.endpoint)
        return RandomPolicy() if name == "random" else ExpertPolicy()

    # ---- seats -------------------------------------------------------------------------------------------------------

    def seats(self, policy: LanguageModel | None, name: str) -> tuple[Seat, ...]:
        """Return the seats of the recipe's frozen players; see ``reflector``."""
        return self.playing(self.reflector(policy, name), name)

    def playing(
        self, reflector: Player | None, name: str = POLICY, memory: MemoryPlayerSection | None = None
    ) -> tuple[Seat, ...]:
        """Return the seats before the act of the policy in the folder ``name``; ``memory`` replaces the recipe's."""
        section = memory or self.recipe.players.memory
        return self.memories.table(section, () if section is None else self.memories.of_policy(name), reflector)

    def training_seats(self, reflector: Player | None, *, from_start: bool) -> tuple[Seat, ...]:
        """Return the seats of RLFT; ``from_start`` is false where training continues from a checkpoint."""
        store = self.memories.growing(from_start=from_start)
        if store is None:
            acting = self.playing(reflector, POLICY_SFT)
        else:
            acting = self.memories.table(self.recipe.players.memory, store.snapshot(), reflector, store)
        return (*acting, *self.corrector, *self.rater)

    def teaching_seats(self, taught: Sequence[Trajectory]) -> tuple[Seat, ...]:
        """Return the seats whose words SFT rows show: those of RLFT, where the teacher takes the reflector's place."""
        return self.memories.table(
            self.recipe.players.memory, self.memories.kept(taught), ScriptedReflector(lambda _: "")
        )

    @cached_property
    def rater(self) -> tuple[Seat, ...]:
        """The seat of the recipe's rater, for RLFT; empty without one."""
        section = self.recipe.players.rater
        return () if section is None else (Seat("rater", rater_of(section, self, self.endpoints)),)

    @cached_property
    def corrector(self) -> tuple[Seat, ...]:
        """The seat of the recipe's corrector, for RLFT; empty without one."""
        section = self.recipe.players.corrector
        if section is None:
            return ()
        return (Seat("corrector", corrector_of(section, self, self.endpoints)),)

    # ---- reflectors --------------------------------------------------------------------------------------------------

    def reflector(self, policy: LanguageModel | None, name: str = POLICY) -> Player | None:
        """Return the recipe's reflector, or ``None``; in the single-player ablation ``policy`` is its model.

        A reflector that RLFT trains is loaded as it was trained together with the policy in the folder ``name``.
        """
        kind = self.recipe.players.reflector.player
        if kind == "none":
            return None
        if kind == "expert":
            return ExpertReflector()
        if kind == "remote":
            return self._remote_reflector(self.recipe.players.reflector.endpoint, "reflector")
        if kind == "self":
            if policy is None:
                raise InvalidInput("players.reflector.player is self, but this policy has no local model to reflect.")
            return _frozen_reflector(policy, self.recipe.players.reflector, self.recipe.model)
        trained = self.recipe.players.reflector.trained and name == POLICY
        return self._local_reflector(REFLECTOR_RLFT if trained else REFLECTOR)[1]

    def other_reflector(self, section: ReflectorSection) -> Callable[[], Player | None]:
        """Check that a reflector of ``eval.reflectors`` can be made, and return a function that makes it.

        Raises:
            InvalidInput: it cannot.

        """
        if section.endpoint is not None:
            reflector = self._remote_reflector(section.endpoint, eval_role(section.name))
            return lambda: reflector
        folder = Path(section.run or "")
        other = RunPlayers(reflector_recipe(section.name, folder, self.recipe), RunFolder(folder))
        return lambda: other.reflector(None)

    def readers(self, policy: LanguageModel) -> dict[str, LanguageModel]:
        """Return the local models that read prompts when ``policy`` acts, by role; a single player has both roles."""
        kind = self.recipe.players.reflector.player
        if kind not in ("local", "self"):
            return {"policy": policy}
        own = kind == "local" and not self.recipe.players.reflector.trained
        return {"policy": policy, "reflector": self._local_reflector(REFLECTOR)[0] if own else policy}

    def _remote_reflector(self, endpoint: Endpoint, role: str) -> Player:
        from reflectrl.players.remote import RemoteReflector

        cached = self.recipe.players.reflector.cache_size
        return self.endpoints.player(RemoteReflector, role, endpoint, cache_size=cached)

    def _local_reflector(self, name: str) -> tuple[LanguageModel, LMReflector]:
        if name not in self._reflectors:
            lm, settings = self.load(name), self.recipe.players.reflector
            self._reflectors[name] = lm, _frozen_reflector(lm, settings, self.section("reflector"))
        return self._reflectors[name]


def _frozen_reflector(lm: LanguageModel, settings: ReflectorPlayerSection, section: ModelSection) -> LMReflector:
    """Return the frozen reflector that writes with ``lm``, which was loaded by its model ``section``."""
    return LMReflector(
        lm.model,
        lm.tokenizer,
        max_length=section.max_length,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature_at_play,
        cache_size=settings.cache_size,
        prefix_cache=prefix_cache_for(lm.base, section.max_length, "reflector") if section.prefix_reuse else None,
    )
