"""The seat ``reflector``: writes a reflection before each action (Reflect-RL, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from reflectrl.core import Hints, InvalidInput, Utterance
from reflectrl.core.messages import Messages
from reflectrl.core.settings import Count, CountOrZero, NonNegative
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.prompts import Prompt
from reflectrl.prompts.chats import KEEP, read_reflection
from reflectrl.prompts.format import REFLECTION_CUE, WRITTEN_ACTIONS
from reflectrl.prompts.players import CachedPlayer, Player, ReadsHints
from reflectrl.prompts.prompt import CARRIED_CUE
from reflectrl.prompts.views import Role, View
from reflectrl.seats.base import SERVER, Bench, FrozenModel, SeatKind, SeatSection

if TYPE_CHECKING:  # openai takes a second to import
    from reflectrl.endpoint.client import ChatClient

REFLECTOR_ROLE = (
    "You advise a player. Judge the player's last action if there was one, say where things stand and what matters "
    "next, in one paragraph of at most 50 words. Answer with the reflection only."
)


class ReflectorPlayerSection(SeatSection):
    """The player that reflects before each action (section 4.1); it is frozen unless ``trained``."""

    player: Literal["local", "server", "remote", "expert", "none", "self"] = "local"
    """The fine-tuned local model, the same behind a server such as vLLM that continues token ids, a chat endpoint, the
    expert, none, or the policy itself (appendix F.2)."""
    trained: bool = False
    """Train ``local`` in RLFT as well, with the policy's advantages, as a separate adapter on the policy's base. Its
    reflections are sampled at ``temperature`` in RLFT, and greedy elsewhere."""
    max_new_tokens: Count = 100
    """Maximum length of the fine-tuned model's reflection, in tokens; the default is the public code's."""
    temperature: NonNegative = 0.0
    """Sampling temperature of the fine-tuned model; at 0 it is greedy, and its reflections are cached exactly."""
    cache_size: CountOrZero = 100_000
    """Maximum number of cached reflections of a greedy model; 0 for none. A model in training has no cache."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of ``remote``, or the server of ``server``."""
    carry: bool = False
    """Show the reflector its reflection of the step before, for it to rewrite: a memory of constant length, which the
    policy reads in its latest form only. The expert's reflections then build on each other, too."""

    @property
    def temperature_at_play(self) -> float:
        """Sampling temperature outside of RLFT: ``temperature`` for a frozen reflector, 0 for one that RLFT trains."""
        return 0.0 if self.trained else self.temperature

    plain: ClassVar[str] = "player trained carry"

    @property
    def fine_tuned(self) -> bool:
        """Whether the reflections are those of a model of its own that SFT trains, wherever it writes."""
        return self.player in ("local", SERVER)

    @property
    def reads_states(self) -> bool:
        """The expert reads the environment, not what it shows."""
        return self.player not in ("expert", "none")

    def sees_pictures(self, *, base: bool) -> bool:
        """A model of this process sees what its base does, a chat model only text."""
        return base and self.player != "remote"

    def unused(self, at: str) -> Iterator[str]:
        """Yield a temperature that is not the chat model's."""
        yield from super().unused(at)
        if self.temperature and self.player == "remote":
            yield (
                f"{at}.temperature: it is that of a local model, but {at}.player is remote; set "
                f"{at}.endpoint.temperature instead."
            )

    def also_reads(self, stage: str) -> Iterator[str]:
        """Yield the length of a local model's words: the prompts of SFT leave room for what it may write."""
        if stage == "sft" and (self.fine_tuned or self.player == "self"):
            yield "players.reflector.max_new_tokens"

    def check(self, recipe: Any) -> None:
        """Check that a reflector that carries its words reads them, and that one that is trained can be."""
        if self.carry and self.player in ("none", "expert"):
            raise ValueError(
                "players.reflector.carry shows the reflector its last reflection, but players.reflector.player is "
                f"{self.player}, which reads none; set player to local, remote or self, or carry to false"
            )
        if self.player == SERVER and (recipe.reflector_model or recipe.model).images:
            raise ValueError(
                "players.reflector.player=server sends token ids, but its model reads pictures (images=true); set the "
                "player to local"
            )
        if self.trained:
            self._check_trained(recipe)

    def _check_trained(self, recipe: Any) -> None:
        model, rlft = recipe.model, recipe.rlft
        memory = recipe.players.memory
        needs = {
            f"player=local, a model of this process, not {self.player}": self.player == "local",
            "model.lora, an adapter for each player on one base, e.g. model.lora: {r: 64}": model.lora is not None,
            "the policy's base for both, so no reflector_model": recipe.reflector_model is None,
            "a base of text, so model.images=false": not model.images,
            "a temperature above 0, at which its reflections are sampled": self.temperature > 0,
            "sft.enabled=true, which teaches it first": recipe.sft.enabled,
            "an rlft section": rlft is not None,
            "prompt.action_mode=enumerated or thought_choice": recipe.prompt.action_mode not in WRITTEN_ACTIONS,
            "carry=false: a reflection that is sampled along with the action is not shown again": not self.carry,
            "no players.corrector, which knows no reflections": recipe.players.corrector is None,
            "no rlft.terms.kl, which knows menus alone": rlft is None or rlft.terms.kl is None,
            "a memory whose key is observation or none: it speaks before the reflection is there": (
                memory is None or memory.key in ("observation", "none")
            ),
        }
        if missing := [need for need, there in needs.items() if not there]:
            raise ValueError(
                f"players.reflector.trained=true needs {'; '.join(missing)}: change that, or set trained to false"
            )


def hints_of(view: View) -> Hints:
    """Return the expert's hints in a view.

    Raises:
        InvalidInput: the view was made for a player that is given none.
    """
    if view.hints is None:
        raise InvalidInput("an expert player was given a view without hints; play it through reflectrl.rollout.")
    return view.hints


class ScriptedReflector:
    """Player that says ``words(prompt.text)``, such as a blank reflection as a control."""

    def __init__(self, words: Callable[[str], str]) -> None:
        self._words = words

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002 - nothing is drawn
        """Return ``words(prompt.text)`` for each view."""
        return [Utterance(self._words(view.prompt.text)) for view in views]


class ShuffledReflector:
    """Player that says reflections on other states, as a control that shows whether a policy uses its reflections."""

    def __init__(self, pool: Sequence[str]) -> None:
        if not pool:
            raise InvalidInput("ShuffledReflector was given no reflections; expected those of at least one episode.")
        self._pool = list(pool)

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return for each view an entry of the pool, chosen by the draw and independent of the prompt."""
        return [Utterance(self._pool[int(draw * len(self._pool))]) for _, draw in zip(views, draws, strict=True)]


class ExpertReflector(ReadsHints):
    """Reflector that says ``env.reflection()``."""

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002 - nothing is drawn
        """Return the expert's reflection for each view.

        Raises:
            InvalidInput: the environment has no reflections.
        """
        said = [hints_of(view).reflection for view in views]
        if None in said:
            raise InvalidInput(
                "the expert was asked to reflect on a state about which expert() and reflection() say nothing; write "
                "one of them for every state, or leave the expert out (eval.controls)."
            )
        return [Utterance(text or "") for text in said]


class RemoteReflector(CachedPlayer):
    """A frozen chat model that reflects. At temperature 0, equal prompts are sent once and their replies cached.

    A prompt without a usable reply gets an empty reflection; ``endpoint.max_rejected`` limits their number. Above
    temperature 0 the endpoint samples, so only replies in ``journal`` can be reproduced.
    """

    def __init__(self, chat: ChatClient, *, cache_size: int = 100_000, is_sampled: bool = False) -> None:
        """Ask ``chat``; cache at most ``cache_size`` reflections, 0 for none, and none of a model that samples."""
        super().__init__(0 if is_sampled else cache_size)
        self.client = chat

    def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per prompt.

        Raises:
            WorkFailed: the endpoint failed, or too many prompts have no usable reply.
        """
        chats = [reflector_chat(prompt) for prompt in prompts]
        replies = self.client.ask_many(
            chats, [read_reflection] * len(chats), [repr(draw) for draw in draws], instead=""
        )
        return [Utterance(reply.value, reply.tokens) for reply in replies]


def reflector_chat(prompt: Prompt) -> Messages:
    """Return the chat that asks for a reflection on a reflector's prompt; raise as ``Prompt.as_text`` does."""
    carries = any(line.startswith(CARRIED_CUE) for line in prompt.said.splitlines())
    role = f"{REFLECTOR_ROLE} {KEEP}" if carries else REFLECTOR_ROLE
    return [{"role": "system", "content": role}, {"role": "user", "content": prompt.as_text()}]


def frozen_reflector(section: ReflectorPlayerSection, model: FrozenModel) -> CachedPlayer:
    """Return the frozen reflector that writes with a local ``model``."""
    from reflectrl.lm.writer import LMReflector

    return LMReflector(
        model.lm.model,
        model.lm.tokenizer,
        max_length=model.max_length,
        max_new_tokens=section.max_new_tokens,
        temperature=section.temperature_at_play,
        cache_size=section.cache_size,
        prefix_cache=model.prefix_cache,
    )


def make(section: ReflectorPlayerSection, bench: Bench) -> Player | None:
    """Return the reflector that a recipe describes; ``None`` for none. ``self`` speaks with the policy's model."""
    if section.player == "none":
        return None
    if section.player == "expert":
        return ExpertReflector()
    if section.player == "remote":
        chat = bench.chat(section.endpoint, "reflector")
        return RemoteReflector(chat, cache_size=section.cache_size, is_sampled=section.endpoint.is_sampled)
    if section.player == SERVER:
        from reflectrl.seats.served import ServedReflector, served

        limit, temperature = section.max_new_tokens, section.temperature
        there = served(section, bench, "reflector", max_new_tokens=limit, temperature=temperature)
        return ServedReflector(*there, cache_size=section.cache_size)
    return frozen_reflector(section, bench.frozen_model(None, "reflector" if section.player == "local" else "policy"))


SEAT = SeatKind(
    role=Role(
        "reflector",
        "before_act",
        reads=("planner", "memory"),
        cue=REFLECTION_CUE,
        before=("reflector",),
        carried=CARRIED_CUE,
    ),
    section=ReflectorPlayerSection,
    make=make,
    about="Reflector, which writes a reflection before each action.",
    default=ReflectorPlayerSection(),
    inputs={"gen-data": ("carry",), "sft": ("player",), "rlft": ("",)},
    taught=True,
)
