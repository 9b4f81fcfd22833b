"""``RunPlayers``: the players of a run, made from its recipe and its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from transformers.utils import logging as transformers_logging

from reflectrl.config import Recipe
from reflectrl.config.endpoint import CALLS, eval_role
from reflectrl.config.environment import DATASET, recipe_env
from reflectrl.config.evaluation import ReflectorSection
from reflectrl.config.judges import CorrectorPlayerSection, RaterPlayerSection
from reflectrl.config.memory import MemoryPlayerSection
from reflectrl.config.model import ModelSection
from reflectrl.core import InvalidInput, NatLangEnv, Trajectory
from reflectrl.core.layout import BASE, BASE_REFLECTOR, POLICY, REFLECTOR, REFLECTOR_RLFT, TEACHER, sft_rows_file
from reflectrl.core.seeds import derive_seed
from reflectrl.data_gen.rows import read_rows
from reflectrl.endpoint.account import Account, Usage
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal
from reflectrl.engine.head import add_choice_head
from reflectrl.engine.prefix_cache import PrefixCache
from reflectrl.engine.reuse import prefix_cache_for
from reflectrl.memory import EmbeddingCache, Experience, Memory, Planner, Retriever, Windows
from reflectrl.memory.language import HiddenStates, embedder
from reflectrl.memory.local import LocalText
from reflectrl.memory.planner import TextModel
from reflectrl.memory.store import successes
from reflectrl.memory.vision import VisionTower
from reflectrl.models.builtin import make_base
from reflectrl.models.encode import PromptEncoder
from reflectrl.models.load import BUILTIN, LanguageModel, load_model, new_model
from reflectrl.models.policy import LMPolicy
from reflectrl.models.precision import given_precision
from reflectrl.models.reflector import LMReflector
from reflectrl.models.thinking import writing_policy
from reflectrl.models.tokenizer import label_ids
from reflectrl.pipeline.compute import decided
from reflectrl.pipeline.folder import RunFolder, process_rank
from reflectrl.pipeline.local_reflector import local_reflector
from reflectrl.pipeline.reflectors import reflector_recipe
from reflectrl.players import (
    ExpertCorrector,
    ExpertPolicy,
    ExpertReflector,
    Informed,
    Player,
    Policy,
    RandomPolicy,
    RuleCorrector,
    ScriptedReflector,
    Seat,
    reflecting,
)
from reflectrl.prompts import PromptFormat, labels
from reflectrl.raters import Questions, Rater, RaterModel, RuleRater, Scale
from reflectrl.raters.corrector import LocalCorrector
from reflectrl.raters.learned import LearnedRater
from reflectrl.raters.local import LocalModel
from reflectrl.rollout.record import read_trajectories

if TYPE_CHECKING:  # openai takes a second to import
    from reflectrl.endpoint.chat import ChatClient


class RunPlayers:
    """The players of one run; models are loaded when first asked for."""

    def __init__(self, recipe: Recipe, run: RunFolder, account: Account | None = None) -> None:
        transformers_logging.disable_progress_bar()  # its bars would tear the stage's own
        transformers_logging.set_verbosity_error()
        self.recipe = recipe
        self.run = run
        self._account = account or Account()
        self._clients: list[ChatClient] = []
        self._reflectors: dict[str, tuple[LanguageModel, LMReflector]] = {}
        self._whole_dataset = False

    @property
    def usage(self) -> Usage:
        """Calls to chat endpoints of this process, and their cost."""
        return sum((client.usage for client in self._clients), Usage())

    def env(self, options: Mapping[str, Any]) -> NatLangEnv:
        """Return a new environment; ``options`` override the recipe's."""
        if self.recipe.dataset is not None and not self._whole_dataset:
            self.run.verified(DATASET, "gen-data")
            self._whole_dataset = True
        return recipe_env(self.recipe, self.run.path, options)

    @cached_property
    def layout(self) -> PromptFormat:
        """Layout of the prompts."""
        return self.recipe.layout(self.env({}).instructions)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of the longest menu."""
        return labels(self.layout.labels, self.env({}).max_actions)

    def section(self, role: str) -> ModelSection:
        """Return the model section of the ``reflector`` or the ``policy``, with the precision of this run."""
        section = self.recipe.reflector_model if role == "reflector" else None
        return decided(section or self.recipe.model, self.run, "reflector" if section else "policy")

    def base(self, role: str) -> ModelSection:
        """Return the section of a role with a base that can be loaded; the built-in one is written to the folder."""
        files = (self.run.verified(sft_rows_file(name), "gen-data") for name in ("reflector", "policy"))
        rows = [row for file in files for row in read_rows(file)]
        return make_base(
            self.section(role),
            self.run / self._base_folder(role),
            corpus=[row.prompt.text + row.written(self.layout.action_mode) for row in rows],
            labels=self.labels,
            seed=derive_seed(self.recipe.seed, "base"),
        )

    def _base_folder(self, role: str) -> str:
        return BASE_REFLECTOR if role == "reflector" and self.recipe.reflector_model else BASE

    def load(self, name: str, *, trainable: bool = False) -> LanguageModel:
        """Load a model of this run by its folder; ``base`` is the policy before any training."""
        if name == "base":
            seed = derive_seed(self.recipe.seed, "new", "policy")
            return new_model(self.base("policy"), labels=self.labels, seed=seed)
        made_by = "rlft" if name in (POLICY, REFLECTOR_RLFT) else "sft"
        role = "reflector" if name in (REFLECTOR, REFLECTOR_RLFT) else "policy"
        section, folder = self.section(role), self.run.verified(name, made_by)
        base = self._base_folder(role)
        if section.lora is not None and section.name == BUILTIN and (self.run / base).is_dir():
            self.run.verified(base, "sft")
        return load_model(folder, section, trainable=trainable)

    def encoder(self, lm: LanguageModel) -> PromptEncoder:
        """Return the encoder of a policy's prompts."""
        ids = label_ids(lm.tokenizer, self.labels)
        return PromptEncoder(lm.tokenizer, ids, self.recipe.model.max_length, pictures=lm.pictures)

    def lm_policy(self, name: str) -> tuple[LanguageModel, Callable[[bool], Policy]]:
        """Return the model of a saved policy, and a function from ``greedy`` to a player of it."""
        lm = self.load(name)
        add_choice_head(lm.base)
        encoder = self.encoder(lm)
        prefix_cache = self._prefix_cache(lm, self.recipe.model, "policy")
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

            endpoint = self.recipe.players.policy.endpoint
            policy = RemotePolicy(endpoint, journal=self._journal("policy"), account=self._account)
            self._clients.append(policy.client)
            return policy
        return RandomPolicy() if name == "random" else ExpertPolicy()

    def seats(self, policy: LanguageModel | None, name: str) -> tuple[Seat, ...]:
        """Return the frozen players of this recipe, see ``reflector``."""
        return self.playing(self.reflector(policy, name))

    def playing(self, reflector: Player | None) -> tuple[Seat, ...]:
        """Return the seats before the act of policies that are trained by this recipe."""
        section = self.recipe.players.memory
        return self.table(section, () if section is None else self.taught, reflector)

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
        window = Windows(memory.episodes, memory.steps)
        tower = self._vision_tower if memory.key == "picture" else None
        retriever = Retriever(past, self._embedder, action=window, observation=window, pictures=tower)
        keys = planner if isinstance(planner, Planner) and memory.key == "planner" else None
        player = Memory(retriever, key=memory.key, planner=keys, max_chars=memory.max_chars)
        recalling = (Seat("memory", player),)
        if player.reads_thoughts:
            return (*seats, *reflecting(reflector), *recalling)
        return (*seats, *recalling, *reflecting(reflector))

    def teaching_seats(self, taught: Sequence[Trajectory]) -> tuple[Seat, ...]:
        """Return the seats whose words SFT rows show, those of RLFT; the reflector's is a place for the teacher's."""
        return self.table(self.recipe.players.memory, successes(taught), ScriptedReflector(lambda _: ""))

    @cached_property
    def _embedder(self) -> EmbeddingCache:
        section = self.recipe.players.memory or self.recipe.eval.memory
        return EmbeddingCache(embedder(section.embedder if section else "hashing", self._own_states))

    def _own_states(self) -> HiddenStates:
        """Return the embedder of the policy's base before any training."""
        shape = self.base("policy") if self.recipe.model.name == BUILTIN else self.recipe.model
        lm = self._frozen(shape.model_copy(update={"lora": None}), "embedder")
        return HiddenStates(lm.base, lm.tokenizer, shape.max_length)

    @cached_property
    def _vision_tower(self) -> VisionTower:
        """A copy of the policy's base, of which pictures are keys of a memory."""
        section = self.recipe.model.model_copy(update={"lora": None})
        with TemporaryDirectory(prefix="reflectrl-") as place:  # the run's own built-in base is made of rows, later
            seed = derive_seed(self.recipe.seed, "vision tower")
            base = make_base(section, Path(place) / "base", corpus=[], labels=self.labels, seed=seed)
            return VisionTower(self._frozen(base, "memory"))

    def _planner(self, past: Sequence[Experience]) -> Player | None:
        section = self.recipe.players.planner
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
        section = self.recipe.players.planner
        if section is None or section.player == "expert":
            return None
        if section.player == "local":
            lm, limit = self._frozen(section.model, "planner"), section.max_new_tokens
            return LocalText(lm, max_length=section.model.max_length, max_new_tokens=limit)
        from reflectrl.memory.remote import RemoteText

        remote = RemoteText(section.endpoint, journal=self._journal("planner"), account=self._account)
        self._clients.append(remote.client)
        return remote

    def _frozen(self, section: ModelSection, role: str) -> LanguageModel:
        """Return a model that is not trained, without a trial of precisions, whose outcome would be recorded."""
        shape = section.model_copy(update={"compute": given_precision(section) or "float32"})
        lm = new_model(shape, labels=(), seed=derive_seed(self.recipe.seed, "new", role))
        lm.model.requires_grad_(False)
        return lm

    @cached_property
    def taught(self) -> tuple[Experience, ...]:
        """The successful episodes of the teacher."""
        return successes(read_trajectories(self.run.verified(TEACHER, "gen-data"))[1])

    @cached_property
    def rater(self) -> tuple[Seat, ...]:
        """The seat of the recipe's rater, for RLFT; empty without one."""
        section = self.recipe.players.rater
        if section is None:
            return ()
        scale = Scale(tuple(section.labels), section.scale)
        if section.player == "rule":
            stages = [stage.env for stage in self.recipe.rlft.stages] if self.recipe.rlft else []
            envs = [self.env(options) for number, options in enumerate(stages) if options not in stages[:number]]
            return (Seat("rater", RuleRater(envs, scale, section.accuracy), when="episode_end"),)
        rules, images = self.env({}).instructions, section.images
        questions = Questions(rules, section.segment, section.include_actions, scale, images=images)
        if section.player == "learned":
            lm = self._frozen(section.model, "rater")
            learned = LearnedRater(lm, questions, max_length=section.model.max_length)
            return (Seat("rater", learned, when="episode_end"),)
        model = self._rating_model(section, scale)
        return (Seat("rater", Rater(model, questions, section.votes), when="episode_end"),)

    @cached_property
    def corrector(self) -> tuple[Seat, ...]:
        """The seat of the recipe's corrector, for RLFT; empty without one."""
        section = self.recipe.players.corrector
        if section is None:
            return ()
        player = self._corrector(section)
        return (Seat("corrector", Informed(player) if section.tool else player, when="after_act"),)

    def _corrector(self, section: CorrectorPlayerSection) -> Player:
        if section.player == "expert":
            return ExpertCorrector()
        if section.player == "rule":
            return RuleCorrector()
        if section.player == "local":
            return LocalCorrector(self._frozen(section.model, "corrector"), max_length=section.model.max_length)
        from reflectrl.players.remote import RemoteCorrector

        instead = {"skip": "", "default": section.default, "raise": None}[section.on_failure]
        corrector = RemoteCorrector(
            section.endpoint,
            instead=instead,
            images=section.images,
            journal=self._journal("corrector"),
            account=self._account,
        )
        self._clients.append(corrector.client)
        return corrector

    def _rating_model(self, section: RaterPlayerSection, scale: Scale) -> RaterModel:
        if section.player == "local":
            return LocalModel(self._frozen(section.model, "rater"), scale, max_length=section.model.max_length)
        from reflectrl.raters.remote import RemoteModel

        remote = RemoteModel(section.endpoint, scale, journal=self._journal("rater"), account=self._account)
        self._clients.append(remote.client)
        return remote

    def reflector(self, policy: LanguageModel | None, name: str = POLICY) -> Player | None:
        """Return the recipe's reflector, or ``None``; in the single-player ablation ``policy`` is its model.

        One that RLFT trains advises the policy of the folder ``name`` as it was trained with it.
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
            return local_reflector(policy, self.recipe.players.reflector, self.recipe.model)
        trained = self.recipe.players.reflector.trained and name == POLICY
        return self._local_reflector(REFLECTOR_RLFT if trained else REFLECTOR)[1]

    def other_reflector(self, section: ReflectorSection) -> Callable[[], Player | None]:
        """Return a function that makes a reflector of ``eval.reflectors``, after a check that it can be made.

        Raises:
            InvalidInput: it cannot.

        """
        if section.endpoint is not None:
            reflector = self._remote_reflector(section.endpoint, eval_role(section))
            return lambda: reflector
        folder = Path(section.run or "")
        other = RunPlayers(reflector_recipe(section.name, folder, self.recipe), RunFolder(folder))
        return lambda: other.reflector(None)

    def _remote_reflector(self, endpoint: Endpoint, role: str) -> Player:
        from reflectrl.players.remote import RemoteReflector

        reflector = RemoteReflector(
            endpoint,
            cache_size=self.recipe.players.reflector.cache_size,
            journal=self._journal(role),
            account=self._account,
        )
        self._clients.append(reflector.client)
        return reflector

    def readers(self, policy: LanguageModel) -> dict[str, LanguageModel]:
        """Return the local models that read prompts when ``policy`` acts, by role; a single player has both."""
        kind = self.recipe.players.reflector.player
        if kind not in ("local", "self"):
            return {"policy": policy}
        own = kind == "local" and not self.recipe.players.reflector.trained
        return {"policy": policy, "reflector": self._local_reflector(REFLECTOR)[0] if own else policy}

    def _journal(self, role: str) -> Journal:
        """Return the journal of paid replies in the role; each process of a `torchrun` launch has its own."""
        rank = process_rank()
        return Journal(self.run / CALLS / (f"{role}-{rank}" if rank else role))

    def _local_reflector(self, name: str) -> tuple[LanguageModel, LMReflector]:
        if name not in self._reflectors:
            lm, settings = self.load(name), self.recipe.players.reflector
            self._reflectors[name] = lm, local_reflector(lm, settings, self.section("reflector"))
        return self._reflectors[name]

    def _prefix_cache(self, lm: LanguageModel, section: ModelSection, role: str) -> PrefixCache | None:
        return prefix_cache_for(lm.base, section.max_length, role) if section.prefix_reuse else None
