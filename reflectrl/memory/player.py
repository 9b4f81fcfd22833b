"""``Memory``: the player of the seat ``memory``, which shows parts of past episodes that resemble the present state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args

from reflectrl.core import Utterance
from reflectrl.core.errors import need_one_of
from reflectrl.memory.experience import goal, news
from reflectrl.memory.retriever import Key, Query, Retriever, Window
from reflectrl.prompts.prompt import CUT, FAILED, STEP_CUE, SUCCEEDED
from reflectrl.prompts.views import View

KeySource = Literal["observation", "action", "either", "planner", "picture", "none"]
_KEY = re.compile(r"\b(search|action)[\"'`*]*:", re.IGNORECASE)
_KEY_TEXT = re.compile(r"[\s\"'`*“‘<\[]*(\w[^\n.;]*)")


_KINDS: Mapping[KeySource, Sequence[str]] = {
    "observation": ("observation",),
    "action": ("action",),
    "either": ("observation", "action"),
    "planner": ("observation", "action"),
    "picture": ("picture",),
    "none": (),
}
"""Kinds of the keys that each source gives."""


class KeyWriter(Protocol):
    """Protocol that writes keys, ``search: WORDS`` or ``action: WORDS``; a ``Planner`` is one."""

    def keys(self, thoughts: Sequence[str], draws: Sequence[float]) -> list[str]:
        """Return words with a key for each thought or reflection; words without a key count as a miss."""
        ...


@dataclass
class Counts:
    """Counts of the queries to a memory."""

    asked: int = 0
    hits: int = 0
    """Queries for which something was retrieved."""
    key_misses: int = 0
    """Queries without a key, although the planner should give one."""


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
            either, the last action); ``either``: the one of these two whose best window scores higher; ``planner``:
            what the planner says (``search: mug``, ``action: put``); ``picture``: the pictures of the state, among
            those of the states after each action, by the retriever's ``pictures``; or nothing.
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
        planner: KeyWriter | None = None,
        max_chars: int = 2000,
    ) -> None:
        need_one_of("key", key, get_args(KeySource))
        retriever.prepare(_KINDS[key])
        self.retriever = retriever
        self.counts = Counts()
        self._key = key
        self._planner = planner
        self._max_chars = max_chars

    @property
    def reads_thoughts(self) -> bool:
        """True if the keys come from reflections or thoughts, so that the memory speaks after the reflector."""
        return self._key in ("action", "either") or self._planner is not None

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
        keys = self._keys_of(view, written)
        if not keys and self._key == "planner":
            self.counts.key_misses += 1
            if "memory" in view.before:  # unusable keys leave the examples as they are
                self.counts.hits += bool(view.before["memory"])
                return view.before["memory"]
        is_key = keys and self._key == "planner" and self._planner is None
        query = Query(
            task=goal(view.observation.task),
            task_type=view.task_type,
            plan="" if is_key else view.said.get("planner", ""),
            task_id=view.task_id,
        )
        found = [self.retriever.retrieve(replace(query, key=key)) for key in keys or (None,)]
        words = described(max(found, key=lambda windows: windows[0].score if windows else -1.0), self._max_chars)
        self.counts.hits += bool(words)
        return words

    def _keys_of(self, view: View, written: str) -> tuple[Key, ...]:
        if self._key == "planner":
            key = parsed_key(written)
            return () if key is None else (key,)
        pictures = self.retriever.pictures
        if self._key == "picture":
            return (Key("picture", pictures.name(view.observation.images)),) if pictures and view.past else ()
        keys: list[Key] = []
        if self._key in ("observation", "either") and view.past:
            keys.append(Key("observation", news(view.observation.text, view.past[-1])))
        if self._key in ("action", "either") and (words := self._thought(view) or "".join(view.past[-1:])):
            keys.append(Key("action", words))
        return tuple(keys)

    def _thought(self, view: View) -> str:
        """Return the reflection, or else the policy's thought at the step before; empty without either."""
        return view.said.get("reflector") or view.before.get("policy", "")


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
