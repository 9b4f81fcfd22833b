"""``Team``: the players of a run and the bench that they come from: its environments, models and chat endpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

from transformers.utils import logging as transformers_logging

from reflectrl.config import Recipe
from reflectrl.config.environment import recipe_env
from reflectrl.config.evaluation import ReflectorSection
from reflectrl.config.spending import eval_role
from reflectrl.core import InvalidInput, NatLangEnv, Trajectory
from reflectrl.core.run_files import (
    ADAPTERS,
    BASE,
    BASE_REFLECTOR,
    CALLS,
    DATASET,
    MEMORY,
    POLICY,
    POLICY_SFT,
    REFLECTOR,
    REFLECTOR_RLFT,
    TEACHER,
    memory_file,
    sft_rows_file,
)
from reflectrl.core.seeds import derive_seed
from reflectrl.data_gen.rows import read_rows
from reflectrl.endpoint.account import Account, Usage
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal
from reflectrl.lm.builtin import make_base
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import BUILTIN, LanguageModel, load_model, new_model, without_weights
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.reuse import prefix_cache_for
from reflectrl.lm.section import ModelSection
from reflectrl.lm.thinking import writing_policy
from reflectrl.lm.tokenizer import label_ids
from reflectrl.pipeline.compute import with_precision
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.launch import is_main_process, process_count, process_rank
from reflectrl.pipeline.preflight import reflector_recipe
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import Player, Policy
from reflectrl.rollout.record import EpisodeStore, Header, read_trajectories
from reflectrl.seats import SEATS
from reflectrl.seats.base import SERVER, FrozenModel, Meets, SeatKind, SeatSection
from reflectrl.seats.experience import Experience, experiences
from reflectrl.seats.memory import SEAT as MEMORY_SEAT
from reflectrl.seats.memory import Embedders, MemoryPlayerSection, remembering
from reflectrl.seats.others import ExpertPolicy, RandomPolicy, RemotePolicy
from reflectrl.seats.own import own_seat
from reflectrl.seats.reflector import ReflectorPlayerSection, RemoteReflector, ScriptedReflector
from reflectrl.seats.reflector import make as make_reflector
from reflectrl.seats.served import PolicyServer, check_servers
from reflectrl.seats.table import Seat, acting

Replies: TypeAlias = Literal["keep", "reuse", "forget"]
"""Whether the replies to calls are kept in the run folder, as by its stages, or only reused from there, or neither; a
server forgets them, and is not stopped by any number of rejected calls."""

_BASES = dict[Path, object]()
"""What each folder's built-in base was made of in this process: making it means reading all rows."""


class Team:
    """The players of one run, which are made when they are first needed, out of what the run has: a ``Bench``.

    Args:
        recipe: the recipe.
        run: the run folder.
        account: budget of all chat endpoints.
        replies: use of the journals of paid replies.
    """

    def __init__(
        self, recipe: Recipe, run: RunFolder, account: Account | None = None, *, replies: Replies = "keep"
    ) -> None:
        transformers_logging.disable_progress_bar()  # its progress bars would break the stage's own
        transformers_logging.set_verbosity_error()
        self.recipe = recipe
        self.run = run
        self._account = account or Account()
        self._replies = replies
        self._clients: list[ChatClient] = []
        self._models: dict[str, FrozenModel] = {}
        self._players: dict[str, tuple[SeatSection, Player | None]] = {}
        self._reflectors: dict[str, Player | None] = {}
        self._playing: LanguageModel | None = None
        self._reflector = REFLECTOR
        self._whole_dataset = False

    # ---- the bench ---------------------------------------------------------------------------------------------------

    def frozen_model(self, section: ModelSection | None, role: str, *, weights: bool = True) -> FrozenModel:
        """Return a model for a role, see ``Bench``."""
        if not weights:
            name = str(self.run.verified(self._reflector, "sft")) if section is None else section.name
            shape = section or self.section("reflector")
            return FrozenModel(without_weights(name, shape), shape.max_length)
        if section is not None:
            return FrozenModel(self._frozen(section, role), section.max_length)
        if role == "policy":
            if self._playing is None:
                raise InvalidInput("players.reflector.player is self, but this policy has no local model to reflect.")
            return self._with_cache(self._playing, self.recipe.model)
        if role == "embedder":
            shape = self.base("policy") if self.recipe.model.name == BUILTIN else self.recipe.model
            return FrozenModel(self._frozen(_bare(shape), role), shape.max_length)
        if role == "memory":
            with TemporaryDirectory(prefix="reflectrl-") as place:  # the run's own built-in base is made of its rows
                seed, shape = self.seed("vision tower"), _bare(self.recipe.model)
                base = make_base(shape, Path(place) / "base", corpus=[], labels=self.labels, seed=seed)
                return FrozenModel(self._frozen(base, role), base.max_length)
        return self._fine_tuned(self._reflector)

    def _fine_tuned(self, folder: str) -> FrozenModel:
        if folder not in self._models:
            self._models[folder] = self._with_cache(self.load(folder), self.section("reflector"))
        return self._models[folder]

    def _with_cache(self, lm: LanguageModel, section: ModelSection) -> FrozenModel:
        kept = prefix_cache_for(lm.base, section.max_length, "reflector") if section.prefix_reuse else None
        return FrozenModel(lm, section.max_length, kept)

    def _frozen(self, section: ModelSection, role: str) -> LanguageModel:
        lm = new_model(with_precision(section), labels=(), seed=self.seed("new", role))
        lm.model.requires_grad_(False)
        return lm

    def chat(self, endpoint: Endpoint, role: str, *, skip_failures: bool = False) -> ChatClient:
        """Return a client of a chat endpoint, see ``Bench``; each process of a `torchrun` launch has its journal."""
        if self._replies == "forget":
            journal, endpoint = Journal(), replace(endpoint, max_rejected=sys.maxsize)
        else:
            rank = process_rank()
            folder = self.run / CALLS / (f"{role}-{rank}" if rank else role)
            journal = Journal(folder, read_only=self._replies == "reuse")
        self._clients.append(ChatClient(endpoint, journal, self._account, skip_failures=skip_failures))
        return self._clients[-1]

    def env(self, *, training: bool = False) -> list[NatLangEnv]:
        """Return new environments, see ``Bench``."""
        lessons = [lesson.env for lesson in self.recipe.rlft.lessons] if training and self.recipe.rlft else [{}]
        return [self.new_env(options) for number, options in enumerate(lessons) if options not in lessons[:number]]

    def teacher_episodes(self) -> Sequence[Trajectory]:
        """Return the teacher's episodes, see ``Bench``."""
        return read_trajectories(self.run.verified(TEACHER, "gen-data"))[1]

    def seed(self, *purpose: str | int) -> int:
        """Return a seed of the recipe for a purpose."""
        return derive_seed(self.recipe.seed, *purpose)

    @property
    def usage(self) -> Usage:
        """Calls of this process to chat endpoints, and their cost."""
        return sum((client.usage for client in self._clients), Usage())

    # ---- environments and prompts ------------------------------------------------------------------------------------

    def new_env(self, options: Mapping[str, Any]) -> NatLangEnv:
        """Return a new environment; ``options`` override the recipe's."""
        if self.recipe.dataset is not None and not self._whole_dataset:
            self.run.verified(DATASET, "gen-data")
            self._whole_dataset = True
        return recipe_env(self.recipe, self.run.path, options)

    @cached_property
    def instructions(self) -> str:
        """Instructions of the recipe's environment."""
        with closing(self.new_env({})) as env:
            return env.instructions

    @cached_property
    def layout(self) -> PromptFormat:
        """Layout of the prompts."""
        return self.recipe.layout(self.instructions)

    @cached_property
    def max_actions(self) -> int:
        """Length of the longest menu."""
        with closing(self.new_env({})) as env:
            return env.max_actions

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Labels of all menus."""
        return self.layout.all_labels(self.max_actions)

    # ---- models of the run -------------------------------------------------------------------------------------------

    def section(self, role: str, saved: Path | None = None) -> ModelSection:
        """Return the model section of the ``reflector`` or the ``policy``, with the precision of this run.

        For a player that was ``saved`` with all of its weights, its base need not be there.
        """
        section = (self.recipe.reflector_model if role == "reflector" else None) or self.recipe.model
        return with_precision(section, saved if section.lora is None else None)

    def base(self, role: str) -> ModelSection:
        """Return the section of a role with a base that can be loaded; the built-in base is written to the folder."""
        files = [self.run.verified(sft_rows_file(name), "gen-data") for name in ("reflector", "policy")]
        section, folder = self.section(role), self.run / self._base_folder(role)
        if section.name != BUILTIN:
            return section
        read = [sha256(file.read_bytes()).hexdigest() for file in files]
        made_of = (section.model_dump_json(), self.layout.action_mode, self.labels, self.seed("base"), *read)
        written = folder.is_dir() and (process_count() > 1 or _BASES.get(folder.resolve()) == made_of)
        if written:  # and another process may be reading it
            return section.model_copy(update={"name": str(folder)})
        corpus = [row.prompt.text + row.written(self.layout.action_mode) for file in files for row in read_rows(file)]
        base = make_base(section, folder, corpus=corpus, labels=self.labels, seed=self.seed("base"))
        _BASES[folder.resolve()] = made_of
        return base

    def _base_folder(self, role: str) -> str:
        return BASE_REFLECTOR if role == "reflector" and self.recipe.reflector_model else BASE

    def load(self, name: str, *, trainable: bool = False) -> LanguageModel:
        """Load a model of this run by the name of its folder; ``base`` is the policy before any training."""
        if name == BASE:
            return new_model(self.base("policy"), labels=self.labels, seed=self.seed("new", "policy"))
        made_by = "rlft" if name in (POLICY, REFLECTOR_RLFT) else "sft"
        role = "reflector" if name in (REFLECTOR, REFLECTOR_RLFT) else "policy"
        folder = self.run.verified(name, made_by)
        section = self.section(role, folder)
        base = self._base_folder(role)
        if section.lora is not None and section.name == BUILTIN and (self.run / base).is_dir():
            self.run.verified(base, "sft")
        return load_model(folder, section, trainable=trainable)

    def encoder(self, lm: LanguageModel) -> PromptEncoder:
        """Return the encoder of a policy's prompts."""
        ids = label_ids(lm.tokenizer, self.labels)
        return PromptEncoder(lm.tokenizer, ids, self.recipe.model.max_length, pictures=lm.pictures)

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

    def policy_server(self, lm: LanguageModel) -> PolicyServer | None:
        """Return the server that writes the texts of the policy ``lm`` in RLFT, if there is one, after a check of it.

        Replies are not kept: the next iteration has other weights.

        Raises:
            InvalidInput: as ``check_servers`` does.
        """
        section, folder = self.recipe.players.policy, (self.run / ADAPTERS).resolve()
        if section.server is None:
            return None
        endpoint = replace(section.server, max_tokens=section.max_new_tokens, temperature=section.temperature)
        self._clients.append(client := ChatClient(endpoint, Journal(), self._account))
        servers = check_servers(client, FrozenModel(lm, self.recipe.model.max_length))
        if is_main_process():
            Journal(self.run / CALLS / "policy", read_only=self._replies != "keep").add_servers(servers)
        return PolicyServer(client, folder, lm)

    def plain_policy(self, name: str) -> Policy:
        """Return a policy without a local model: ``random``, ``expert`` or ``remote``."""
        if name == "remote":
            return RemotePolicy(self.chat(self.recipe.players.policy.endpoint, "policy"))
        return RandomPolicy() if name == "random" else ExpertPolicy()

    # ---- seats -------------------------------------------------------------------------------------------------------

    def seats(self, policy: LanguageModel | None, name: str) -> tuple[Seat, ...]:
        """Return the seats before the act of the policy in the folder ``name``; see ``reflector``."""
        return self.playing(self.reflector(policy, name), name)

    def playing(
        self, reflector: Player | None, name: str = POLICY, memory: MemoryPlayerSection | None = None
    ) -> tuple[Seat, ...]:
        """Return the seats before the act of the policy in the folder ``name``; ``memory`` replaces the recipe's."""
        section = memory or self.recipe.players.memory
        if self._grows and name == POLICY:  # what it held at the end of the policy's training
            store = EpisodeStore(self.run.verified(MEMORY, "rlft"), self._header)
            return self.remembering(section, store.snapshot(), reflector)
        return self._seated(reflector, None if section is None else self._made(MEMORY_SEAT, section))

    def training_seats(self, reflector: Player | None, *, from_start: bool) -> tuple[Seat, ...]:
        """Return the seats of RLFT; ``from_start`` is false where training continues from a checkpoint."""
        if self._grows:
            store = self._store(from_start=from_start)
            before = self.remembering(self.recipe.players.memory, store.snapshot(), reflector, store)
        else:
            before = self.playing(reflector, POLICY_SFT)
        return (*before, *self.judges)

    @property
    def judges(self) -> tuple[Seat, ...]:
        """The seats after the act, which speak in RLFT."""
        players = [
            (kind, self._made(kind, each)) for kind, each in self.recipe.players.frozen if not kind.role.speaks_before
        ]
        made = [Seat(kind.role.name, player) for kind, player in players if player is not None]
        return (*made, *(seat for seat in self._own if not acting([seat])))

    def teaching_seats(self, taught: Sequence[Trajectory]) -> tuple[Seat, ...]:
        """Return the seats whose words SFT rows show: those of RLFT, where the teacher takes the reflector's place."""
        return self.remembering(self.recipe.players.memory, self.kept(taught), ScriptedReflector(lambda _: ""))

    def remembering(
        self,
        memory: MemoryPlayerSection | None,
        past: Sequence[Experience],
        reflector: Player | None,
        store: EpisodeStore | None = None,
    ) -> tuple[Seat, ...]:
        """Return the seats before the act, in the order in which they speak, with a memory of given episodes.

        Args:
            memory: settings of a memory of ``past`` episodes; there is none for ``None``, or without such episodes.
            past: episodes to remember; the planner learns from their plans, too.
            reflector: the reflector; ``None`` for no reflections.
            store: store that the memory adds to, if it grows; then ``past`` is its snapshot.
        """
        there = memory is not None and (past or store is not None)
        return self._seated(reflector, remembering(memory, self._embedders, past, store) if memory and there else None)

    def prepare(self) -> None:
        """Make the players that speak in gen-data, whose keys and models may be missing, before the teacher works."""
        for kind, section in self.recipe.players.frozen:
            if kind.role.speaks_before and not kind.taught and kind is not MEMORY_SEAT:
                self._made(kind, section)
        self._own  # noqa: B018 - a cached property

    def _seated(self, reflector: Player | None, memory: Player | None) -> tuple[Seat, ...]:
        """Return the seats before the act, in the order in which they speak."""
        given = {"reflector": reflector, "memory": memory}
        seats = []
        for kind in (kind for kind in SEATS if kind.role.speaks_before):
            role, section = kind.role.name, getattr(self.recipe.players, kind.role.name)
            player = given[role] if role in given else section and self._made(kind, section)
            seats += [] if player is None else [Seat(role, player)]
        seats += acting(self._own)
        players = {seat.role: seat.player for seat in seats}
        waits = {role: isinstance(player, Meets) and player.meet(players) for role, player in players.items()}
        return tuple(sorted(seats, key=lambda seat: (seat.when != "episode_start", waits[seat.role])))

    def _made(self, kind: SeatKind, section: SeatSection) -> Player | None:
        """Return the player of a seat, which is made once for a section."""
        known, player = self._players.get(kind.role.name, (None, None))
        if known is not section:
            player = kind.make(section, self)
            self._players[kind.role.name] = section, player
        return player

    @cached_property
    def _own(self) -> list[Seat]:
        return [own_seat(name, settings) for name, settings in self.recipe.players.own.items()]

    # ---- past episodes -----------------------------------------------------------------------------------------------

    @property
    def _grows(self) -> bool:
        section = self.recipe.players.memory
        return section is not None and section.grows

    @property
    def _remembers(self) -> MemoryPlayerSection:
        """Settings of the memory that the recipe has, or would have."""
        return self.recipe.players.memory or self.recipe.eval.memory or MemoryPlayerSection()

    @cached_property
    def _embedders(self) -> Embedders:
        return Embedders(self._remembers, self)

    @cached_property
    def taught(self) -> tuple[Experience, ...]:
        """The teacher's episodes that a memory keeps."""
        return self.kept(self.teacher_episodes())

    def kept(self, trajectories: Iterable[Trajectory]) -> tuple[Experience, ...]:
        """Return the episodes that the recipe's memory keeps, the best one of each task."""
        return experiences(trajectories, self._remembers.keep)

    @property
    def _header(self) -> Header:
        return Header(self.recipe.env.name, dict(self.recipe.env.options), self.layout)

    def _store(self, *, from_start: bool) -> EpisodeStore:
        """Return the store that grows in RLFT and begins with the teacher's episodes."""
        path = self.run / memory_file(process_rank())
        if from_start:
            path.unlink(missing_ok=True)
        store = EpisodeStore(path, self._header, keep=self._remembers.keep)
        if not len(store):
            for trajectory in self.teacher_episodes():
                store.add(trajectory)
        return store

    # ---- reflectors --------------------------------------------------------------------------------------------------

    def reflector(self, policy: LanguageModel | None, name: str = POLICY) -> Player | None:
        """Return the recipe's reflector, or ``None``; in the single-player ablation ``policy`` is its model.

        A reflector that RLFT trains is loaded as it was trained together with the policy in the folder ``name``.
        """
        section: ReflectorPlayerSection = self.recipe.players.reflector
        self._playing = policy
        self._reflector = REFLECTOR_RLFT if section.trained and name == POLICY else REFLECTOR
        if section.player in ("remote", SERVER) and self._replies == "forget":
            section = section.model_copy(update={"cache_size": 0})
        if not section.fine_tuned:
            return make_reflector(section, self)
        if self._reflector not in self._reflectors:
            self._reflectors[self._reflector] = make_reflector(section, self)
        return self._reflectors[self._reflector]

    def other_reflector(self, section: ReflectorSection) -> Callable[[], Player | None]:
        """Check that a reflector of ``eval.reflectors`` can be made, and return a function that makes it.

        Raises:
            InvalidInput: it cannot.
        """
        if section.endpoint is not None:
            client, kept = (
                self.chat(section.endpoint, eval_role(section.name)),
                self.recipe.players.reflector.cache_size,
            )
            reflector = RemoteReflector(client, cache_size=kept, is_sampled=section.endpoint.is_sampled)
            return lambda: reflector
        folder = Path(section.run or "")
        other = Team(reflector_recipe(section.name, folder, self.recipe), RunFolder(folder))
        return lambda: other.reflector(None)

    def readers(self, policy: LanguageModel) -> dict[str, LanguageModel]:
        """Return the models that read prompts when ``policy`` acts; a single player has both roles."""
        section = self.recipe.players.reflector
        if section.player == SERVER:
            return {"policy": policy, "reflector": self.frozen_model(None, "reflector", weights=False).lm}
        if section.player not in ("local", "self"):
            return {"policy": policy}
        own = section.player == "local" and not section.trained
        return {"policy": policy, "reflector": self._fine_tuned(REFLECTOR).lm if own else policy}


def _bare(section: ModelSection) -> ModelSection:
    return section.model_copy(update={"lora": None})
