"""``Retriever``: the past episodes that resemble the present one, and the part of each that matters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from reflectrl.core import InvalidInput
from reflectrl.core.errors import need_one_of
from reflectrl.core.settings import NonNegative, settings
from reflectrl.seats.embedders import Embedder, words
from reflectrl.seats.experience import Experience, PastStep, PicturedStep

if TYPE_CHECKING:  # torch takes seconds to import
    from reflectrl.seats.neural import VisionTower

KeyMatch = Literal["embed", "lexical", "hybrid"]
Numbers = npt.NDArray[np.float32]
Indexes = npt.NDArray[np.int64]
DECIMALS = 6
"""Decimals that decide whether similarities are equal; the order of float32 sums changes the digits beyond."""
EPISODES_KEPT = 256
"""Number of present episodes whose tasks, types and plans are compared with the past only once, for all their keys."""


class Column:
    """Texts of ``N`` episodes, any number in each; empty texts are left out.

    Args:
        rows: the texts of each episode.
        embedder: embeds each different text.
        by: compare by embeddings, by words, or by the larger of both.
        first_word: in a comparison by words, compare only the first words, which are the verbs of actions.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[str]],
        embedder: Embedder,
        *,
        by: KeyMatch = "embed",
        first_word: bool = False,
    ) -> None:
        self.embedder = embedder
        """Embeds queries, too."""
        self._by, self._first_word = by, first_word
        self.counts: Indexes = np.zeros(0, np.int64)
        """(N,) number of texts of each episode."""
        self._places, self._texts = self.counts, self.counts
        self.renew(self.counts, rows)

    def renew(self, kept: Indexes, rows: Sequence[Sequence[str]]) -> None:
        """Keep the episodes ``kept`` alone, in this order, and add those with the texts ``rows`` behind them.

        Texts of episodes that are not kept stay, until none is.
        """
        if not len(kept):
            self._numbers: dict[str, int] = {}
            self._holders: dict[str, Indexes] = {}
            self._vectors = self._room = np.zeros((0, 0), np.float32)
        new = list(dict.fromkeys(text for row in rows for text in row if text and text not in self._numbers))
        first = len(self._numbers)
        self._numbers.update((text, first + place) for place, text in enumerate(new))
        if self._by != "embed":
            for word, numbers in _holders(new, self._first_word).items():
                self._holders[word] = np.append(self._holders.get(word, numbers[:0]), first + numbers)
        if self._by != "lexical" and new:
            self._append(self.embedder.embed(new))
        found = [[(place, self._numbers[text]) for place, text in enumerate(row) if text] for row in rows]
        pairs = np.array([pair for row in found for pair in row], np.int64).reshape(-1, 2)
        counts = self.counts[kept]
        # the texts of kept episode i begin at starts[i], and will begin at the sum of the counts before it
        starts = (np.cumsum(self.counts) - self.counts)[kept] - (np.cumsum(counts) - counts)
        texts = np.repeat(starts, counts) + np.arange(counts.sum())
        self._places = np.append(self._places[texts], pairs[:, 0])
        self._texts = np.append(self._texts[texts], pairs[:, 1])
        self.counts = np.append(counts, np.array([len(row) for row in found], np.int64))
        self._starts: Indexes = np.cumsum(self.counts) - self.counts
        self.held: Numbers = (self.counts > 0).astype(np.float32)
        """(N,) 1 for an episode with texts, else 0."""

    def _append(self, vectors: Numbers) -> None:
        first, count = len(self._vectors), len(self._vectors) + len(vectors)
        if count > len(self._room):
            room = np.empty((count + first // 2, vectors.shape[1]), np.float32)  # so that growing copies few vectors
            if first:
                room[:first] = self._vectors
            self._room = room
        self._room[first:count] = vectors
        self._vectors = self._room[:count]

    def similarities(self, text: str, vector: Numbers) -> Numbers:
        """Return the similarities of a query to all texts, episode after episode.

        Args:
            text: the query.
            vector: (width,) embedding of the query.
        """
        # unlike ``@``, it rounds a row alike wherever it stands: a memory that grew says what one made at once says
        embedded: Numbers | None = np.einsum("ij,j->i", self._vectors, vector) if len(self._vectors) else None
        if self._by == "embed" and embedded is not None:
            return embedded[self._texts]
        shared = self._shared_words(text)
        return (shared if embedded is None else np.maximum(shared, embedded))[self._texts]

    def best(self, similarities: Numbers) -> Numbers:
        """Return the similarity of the nearest text in each episode: (N,), 0 for an episode without texts."""
        largest, filled = np.zeros(len(self.counts), np.float32), self.counts > 0
        if len(similarities):
            largest[filled] = np.maximum.reduceat(similarities, self._starts[filled])
        return largest

    def nearest(self, similarities: Numbers, episode: int) -> int | None:
        """Return the place of the nearest text in an episode, the first of equal ones; ``None`` without texts."""
        first, count = self._starts[episode], self.counts[episode]
        if not count:
            return None
        return int(self._places[first + np.argmax(np.round(similarities[first : first + count], DECIMALS))])

    def _shared_words(self, text: str) -> Numbers:
        """Return the fraction of the query's words that each text holds; for first words, 1 if both agree."""
        shared = np.zeros(len(self._numbers), np.float32)
        asked = dict.fromkeys(words(text)[:1] if self._first_word else words(text))
        for word in asked:
            shared[self._holders.get(word, [])] += 1 / len(asked)
        return shared


def _holders(texts: Sequence[str], first_word: bool) -> dict[str, Indexes]:
    """Return the indices of the texts that hold each word, or that begin with it."""
    holders: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        for word in set(words(text)[:1] if first_word else words(text)):
            holders.setdefault(word, []).append(number)
    return {word: np.array(numbers, np.int64) for word, numbers in holders.items()}


@dataclass(frozen=True)
class Key:
    """What to look for in the steps of past episodes: an action, or an observation."""

    kind: Literal["action", "observation", "picture"]
    """Compare with the actions (equation 8), or with the observations (equation 7) or their pictures, of each
    episode."""
    text: str
    """Words, or what ``VisionTower.name`` calls the pictures."""


@dataclass(frozen=True)
class Query:
    """The present episode as far as it is known; empty fields are not compared."""

    task: str = ""
    task_type: str = ""
    plan: str = ""
    key: Key | None = None
    task_id: str = ""
    """Task whose own past episode is left out; empty for none."""


@settings()
class Weights:
    """Weights ``w`` of the score (RAP, equation 5); a component of weight 0 is not compared."""

    task: NonNegative = 1.0
    """Weight of the similarity of goals."""
    task_type: NonNegative = 1.0
    """Weight of the similarity of the names of the tasks' groups."""
    plan: NonNegative = 1.0
    """Weight of the similarity of plans."""
    key: NonNegative = 1.0
    """Weight of the similarity between a step and the retrieval key."""


@dataclass(frozen=True)
class Windows:
    """Number and size of the windows to retrieve."""

    k: int
    """Maximum number of episodes."""
    m: int
    """Number of steps before the best one, and of steps from the best one on."""


@dataclass(frozen=True)
class Window:
    """Part of a past episode."""

    experience: Experience
    score: float
    """Weighted mean of the similarities compared, in [-1, 1], to ``DECIMALS``."""
    best: int | None
    """Step that the key matched; ``None`` without a key, or if the episode has nothing to compare with it."""
    m: int

    @property
    def first(self) -> int:
        """Index of the window's first step."""
        return 0 if self.best is None else max(0, self.best - self.m)

    @property
    def steps(self) -> tuple[PastStep, ...]:
        """Steps ``best - m`` to ``best + m - 1``, as far as they exist; without a best step, the first ``m``."""
        return self.experience.steps[self.first : (self.best or 0) + self.m]

    def smaller(self) -> Window:
        """Return the window with one step fewer on each side."""
        return replace(self, m=min(self.m, len(self.experience.steps)) - 1)


class Retriever:
    """Ranks past episodes by ``sum of w_c sim_c / sum of w_c`` over the components that query and episode have.

    That is equation 5, divided by the weights so that scores have one scale. Each similarity is a cosine of embeddings;
    that of a key is the largest over an episode's steps (equations 7 and 8). Equal scores are ranked by age, the oldest
    first. What is retrieved depends on ``experiences`` and the query alone.

    Args:
        experiences: past episodes, oldest first, such as ``EpisodeStore.snapshot()``.
        embedder: embeds texts and queries; an ``EmbeddingCache`` keeps the vectors for the next retriever.
        weights: weights of the components.
        key_match: compare a key by embeddings, by words (1 for an action that begins with its first word; the fraction
            of its words that an observation holds), or by the larger of both.
        action: windows retrieved by a key for actions, or without a key; default: the paper's values.
        observation: windows retrieved by a key for observations or their pictures; default: the paper's values.
        pictures: embeds the pictures of states; absent: no keys for pictures.
        min_score: episodes with a lower score are left out.

    Raises:
        InvalidInput: ``key_match`` is none of these.
    """

    def __init__(
        self,
        experiences: Sequence[Experience],
        embedder: Embedder,
        *,
        weights: Weights = Weights(),  # noqa: B008 - frozen
        key_match: KeyMatch = "embed",
        action: Windows = Windows(k=4, m=10),
        observation: Windows = Windows(k=8, m=5),
        pictures: VisionTower | None = None,
        min_score: float = -1.0,
    ) -> None:
        need_one_of("key_match", key_match, get_args(KeyMatch))
        self._embedder = embedder
        self.pictures = pictures
        self._windows = {"action": action, "observation": observation, "picture": observation}
        self._min_score = min_score
        self._key_weight = weights.key
        self._key_match = key_match
        self.experiences: tuple[Experience, ...] = ()
        self._gone = 0  # episodes whose texts are still held
        self._tasks = {
            name: (weight, Column([], embedder))
            for name in ("task", "task_type", "plan")
            if (weight := getattr(weights, name)) > 0
        }
        self._columns: dict[str, Column] = {}
        self.renew(experiences)

    def renew(self, experiences: Sequence[Experience]) -> None:
        """Search in other episodes; of those that come first and are held already, nothing is computed again."""
        places = {id(each): place for place, each in enumerate(self.experiences)}
        held = [places[id(each)] for each in takewhile(lambda each: id(each) in places, experiences)]
        self._gone += len(self.experiences) - len(held)
        if self._gone > len(experiences):
            self._gone, held = 0, []
        kept, new = np.array(held, np.int64), experiences[len(held) :]
        for name, (_, column) in self._tasks.items():
            column.renew(kept, [[getattr(each, name)] for each in new])
        for kind, column in self._columns.items():
            column.renew(kept, self._texts(kind, new))
        self.experiences = tuple(experiences)
        # not a method: the cache would hold the retriever, so that its vectors outlived it
        self._compared = lru_cache(EPISODES_KEPT)(partial(_compare, self._tasks, self._embedder, len(experiences)))
        self._of_task: dict[str, list[int]] = {}
        for number, each in enumerate(self.experiences):
            self._of_task.setdefault(each.task_id, []).append(number)

    def retrieve(self, query: Query) -> list[Window]:
        """Return the windows for ``query``, best first; at most ``k``, fewer for a memory of fewer episodes.

        Raises:
            InvalidInput: the key is a picture, and ``pictures`` was not given.
        """
        windows = self._windows["action" if query.key is None else query.key.kind]
        count = len(self.experiences)
        if not count:
            return []
        sums, weights = self._compared(replace(query, key=None, task_id=""))
        own = self._of_task.get(query.task_id, []) if query.task_id else []
        others = np.delete(np.arange(count), own) if own else np.arange(count)
        key = query.key if query.key is not None and query.key.text and self._key_weight else None
        if key is None:
            ranked = self._ranked(sums * _inverse(weights), others, windows.k)
            return [Window(self.experiences[each], score, None, windows.m) for each, score in ranked]
        column = self._column(key.kind)
        similar = column.similarities(key.text, column.embedder.embed([key.text])[0])
        weight = self._key_weight * column.held
        scores = (sums + weight * column.best(similar)) * _inverse(weights + weight)
        return [
            Window(self.experiences[each], score, column.nearest(similar, each), windows.m)
            for each, score in self._ranked(scores, others, windows.k)
        ]

    def planned(self, count: int) -> Retriever | None:
        """Return a ranking of the episodes that have a plan, of which it shows ``count``; ``None`` if that is none."""
        planned = [each for each in self.experiences if each.plan] if count else []
        return Retriever(planned, self._embedder, action=Windows(count, 1)) if planned else None

    def prepare(self, kinds: Iterable[str]) -> None:
        """Embed the past steps that keys of ``kinds`` are compared with, rather than at the first such key."""
        for kind in kinds:
            if self._key_weight and (kind != "picture" or self.pictures is not None):
                self._column(kind)

    def _column(self, kind: str) -> Column:
        """Return what the steps of past episodes have to compare with keys of a kind; embedded for the first one."""
        if kind not in self._columns:
            embeds = self._embedder if kind != "picture" else self.pictures
            if embeds is None:
                raise InvalidInput(
                    "a key is a picture, but the retriever was given nothing that embeds any; set pictures."
                )
            by: KeyMatch = self._key_match if kind != "picture" else "embed"
            texts = self._texts(kind, self.experiences)
            self._columns[kind] = Column(texts, embeds, by=by, first_word=kind == "action")
        return self._columns[kind]

    def _texts(self, kind: str, experiences: Sequence[Experience]) -> list[list[str]]:
        """Return what the steps of episodes have to compare with a key of a kind; of pictures, their names."""
        if kind == "action":
            return [[step.action for step in each.steps] for each in experiences]
        if kind == "observation":
            return [[step.observation for step in each.steps] for each in experiences]
        name = (lambda _: "") if self.pictures is None else self.pictures.name
        return [[name(s.images) if isinstance(s, PicturedStep) else "" for s in each.steps] for each in experiences]

    def _ranked(self, scores: Numbers, among: Indexes, k: int) -> list[tuple[int, float]]:
        """Return the ``k`` best episodes with their scores; of equal ones, the older come first."""
        rounded = np.round(scores[among], DECIMALS)
        order = np.argsort(-rounded, kind="stable")[:k]
        ranked = ((int(among[each]), round(float(rounded[each]), DECIMALS)) for each in order)
        return [(each, score) for each, score in ranked if score >= self._min_score]


def _compare(
    tasks: Mapping[str, tuple[float, Column]], embedder: Embedder, count: int, query: Query
) -> tuple[Numbers, Numbers]:
    """Return the weighted similarities of a query's task, type and plan, and the weights compared: (count,) each."""
    sums, weights = np.zeros((2, count), np.float32)
    for name, (weight, column) in tasks.items():
        if text := getattr(query, name):
            sums += weight * column.best(column.similarities(text, embedder.embed([text])[0]))
            weights += weight * column.held
    return sums, weights


def _inverse(weights: Numbers) -> Numbers:
    return np.divide(1, weights, out=np.zeros_like(weights), where=weights > 0)
