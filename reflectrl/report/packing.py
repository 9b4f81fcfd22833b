"""Episodes in the form in which a page holds them: each text and picture once, with what the policy read of prompts."""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import accumulate, chain, groupby
from operator import itemgetter
from os.path import commonprefix
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from reflectrl.config import load_saved_recipe
from reflectrl.core import Image, InvalidInput, Trajectory, Turn
from reflectrl.core.run_files import BASE, POLICY, POLICY_SFT, RECIPE
from reflectrl.core.types import NO_MENU, OUTCOMES
from reflectrl.prompts import Prompt, PromptFormat
from reflectrl.prompts.chats import thought_in
from reflectrl.report.markup import MAX_CHARACTERS, excerpt
from reflectrl.rollout.iteration import independent_trials, wilson_interval
from reflectrl.rollout.turn import policy_views

LEFT_OUT = -1
"""Number of a picture for which a page has no room."""


@dataclass
class Album:
    """Pictures with their numbers, in the order in which they were first seen."""

    room: int = 0
    """Characters that are left for further pictures."""
    numbers: dict[Image, int] = field(default_factory=dict)
    """Number of each picture that was seen; ``LEFT_OUT`` where it did not fit."""
    pictures: list[str] = field(default_factory=list)
    """Base64 of the PNG file of each picture, by number."""

    def number(self, image: Image) -> int:
        """Return the number of a picture, which is added where it is new and fits."""
        if image not in self.numbers:
            data = base64.b64encode(image.data).decode()
            fits = len(data) <= self.room
            self.numbers[image] = len(self.pictures) if fits else LEFT_OUT
            if fits:
                self.room -= len(data)
                self.pictures.append(data)
        return self.numbers[image]

    def copy(self) -> Album:
        """Return an album of the same pictures, to which others can be added."""
        return Album(self.room, dict(self.numbers), list(self.pictures))

    @property
    def left_out(self) -> int:
        """Number of pictures that did not fit."""
        return list(self.numbers.values()).count(LEFT_OUT)


MAX_ACTIONS = 24
"""Number of a menu's actions that are shown: the chosen one and the most probable others."""
MAX_GROUPS = 8
"""Number of groups of tasks that are shown."""
_LEAST = 0.00005
"""Probabilities below are 0 ten-thousandths; most are, of a trained policy."""
CUTTING = 20
"""About the number of times that a prompt is tokenized until it is cut to fit."""
_NAME = 300
"""Maximum number of characters shown of a task's name, or of an action."""


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode, with its training records if it is from training."""

    trajectory: Trajectory
    iteration: int | None = None
    """Iteration of the training; ``None`` for an evaluated episode."""
    advantages: tuple[float, ...] | None = None
    """(T,) as the trainer used them; ``None`` where they were not recorded."""
    layout: PromptFormat | None = None
    """Layout of the prompts that the policy read; ``None`` for one that reads none."""


class Reader:
    """Tells what the trained policy of a run read of its prompts, token by token.

    Args:
        run: the run folder.
        policy: name of the folder in it where the policy was saved.

    Raises:
        InvalidInput: what was saved of it cannot be read.
    """

    def __init__(self, run: Path, policy: str) -> None:
        from reflectrl.lm.plain_text import SavedReader  # transformers takes most of a second

        recipe = load_saved_recipe(run / RECIPE, given=None)
        self._limits = (recipe.model.max_length, recipe.prompt.action_mode, recipe.players.policy.max_new_tokens)
        self._saved = SavedReader(run / policy)

    def read(self, prompts: Iterable[Prompt], room: int) -> dict[Prompt, tuple[Prompt, list[str]]]:
        """Return what was read of each prompt, cut to fit, and its tokens; of the first, of ``room`` characters."""
        unlike = [*dict.fromkeys(prompts)]
        lengths = accumulate(len(prompt.text) for prompt in unlike)
        given = [prompt for prompt, length in zip(unlike, lengths, strict=True) if length <= room]
        found: dict[Prompt, tuple[Prompt, list[str]]] = {}
        with suppress(InvalidInput):  # pictures, or another environment, whose prompts do not fit
            for prompt, read in zip(given, self._saved.read(given, *self._limits), strict=True):
                room -= len(prompt.text) * (1 if read.prompt is prompt else CUTTING)
                if room < 0:
                    break
                found[prompt] = (read.prompt, [*map(self._saved.text, read.ids)])
        return found


def reader_of(run: Path) -> Reader | None:
    """Return the reader of a run; ``None`` where no policy is saved in it."""
    for policy in (POLICY, POLICY_SFT, BASE):
        if (run / policy).is_dir():
            with suppress(InvalidInput):
                return Reader(run, policy)
    return None


class _Texts:
    """Visible texts, and menus of them, numbered in the order in which they were first seen."""

    def __init__(self, album: Album) -> None:
        self.album = album
        self.tokens: dict[tuple[int, ...], int] = {}
        self._known: dict[tuple[str, int], int] = {}  # original texts, most of which recur
        self.texts: dict[str, int] = {}
        self.menus: dict[tuple[str, ...], int] = {}

    def text(self, text: str, limit: int = MAX_CHARACTERS) -> int:
        if (text, limit) not in self._known:
            self._known[text, limit] = self.texts.setdefault(excerpt(text, limit), len(self.texts))
        return self._known[text, limit]

    def menu(self, actions: tuple[str, ...]) -> int:
        return self.menus.setdefault(actions, len(self.menus))


def pack(episodes: Sequence[RecordedEpisode], album: Album, reader: Reader | None = None, room: int = 0) -> str:
    """Return base64 of the compressed JSON of ``columns``, whose arguments it takes."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(columns(episodes, album, reader, room)), 5)).decode()


def columns(
    episodes: Sequence[RecordedEpisode], album: Album, reader: Reader | None = None, room: int = 0
) -> dict[str, Any]:
    """Return the object that viewer.js unpacks: ``texts``; ``menus`` and ``tokens`` as numbers of texts; ``episodes``.

    An episode is [task, goal, outcome, seed, iteration or null, steps]: the goal is what its observations share, or -1;
    the outcome is its number in ``OUTCOMES``. A step is [observation, menu, reflection or -1,
    chosen, reward, illegal, value, advantage or null, actions left out, their probability, probabilities, what the
    policy wrote or -1, correction, pictures, prompt, its tokens or -1]: texts are numbers, probabilities
    ten-thousandths. A correction is the differences between thought and correction, see ``differences``; empty without
    one. Pictures are their numbers in ``album``. A prompt is its parts, each with its place in ``PARTS``, of which the
    complement stands for a text that was cut away; without tokens, it is not known what was cut. ``groups`` are those
    of ``worst_groups``, their names as numbers of texts.

    Args:
        episodes: the episodes of one source.
        album: new pictures are added to it.
        reader: the policy that played them; ``None`` for prompts without tokens.
        room: maximum number of characters of the prompts whose tokens are shown.
    """
    seen = _Texts(album)
    prompts = [_prompts(recorded) for recorded in episodes]
    read = reader.read(chain.from_iterable(prompts), room) if reader else {}
    packed = [_episode(recorded, given, read, seen) for recorded, given in zip(episodes, prompts, strict=True)]
    menus = [[seen.text(action, _NAME) for action in menu] for menu in seen.menus]
    evaluated = [recorded.trajectory for recorded in episodes if recorded.iteration is None]
    groups = [(seen.text(name, _NAME), *rest) for name, *rest in worst_groups(evaluated)]
    lists = {"menus": menus, "tokens": list(seen.tokens), "groups": groups, "episodes": packed}
    return {"texts": list(seen.texts), **lists}


def worst_groups(played: Sequence[Trajectory]) -> list[tuple[str, float, float, float, int, int]]:
    """Return the groups of tasks with the least success, the worst first, none without a failure.

    A group is the environment's own (``Task.group``) or, where no task has one, the tasks that agree in an option whose
    values divide them into groups. Each has its name, its success with the ends of the 95 % interval, its episodes, and
    the place in ``played`` of the first that failed.
    """
    members: dict[tuple[str, str], list[int]] = {}
    own = any(each.task.group for each in played)
    for number, each in enumerate(played):
        options = {"": each.task.group} if own else each.task.options
        for key, value in options.items():
            if isinstance(value, str | int) and value != "":
                members.setdefault((key, str(value)), []).append(number)
    tasks, values = len({each.task.id for each in played}), Counter(key for key, _ in members)
    found = []
    for (key, value), numbers in members.items():
        failed = next((number for number in numbers if not played[number].success), None)
        if failed is not None and (1 < values[key] <= tasks / 2 or own):
            group = [played[number] for number in numbers]
            rate = fmean(each.success for each in group)
            interval = wilson_interval(rate, independent_trials(group))
            found.append((f"{key} {value}".strip(), rate, *interval, len(group), failed))
    return sorted(found, key=lambda group: (group[1], -group[4], group[0]))[:MAX_GROUPS]


def _episode(
    recorded: RecordedEpisode, prompts: Sequence[Prompt], read: Mapping[Prompt, tuple[Prompt, list[str]]], texts: _Texts
) -> list[Any]:
    played = recorded.trajectory
    goal = played.turns[0].observation.task if played.turns else ""
    advantages = recorded.advantages or [None] * len(played.turns)
    known: Sequence[Prompt | None] = prompts or [None] * len(played.turns)
    return [
        texts.text(played.task.id, _NAME),
        texts.text(goal) if goal else -1,
        OUTCOMES.index(played.outcome),
        played.seed,
        recorded.iteration,
        [
            [*_step(turn, goal, value, texts), *(_read(prompt, read.get(prompt), texts) if prompt else ([], -1))]
            for turn, value, prompt in zip(played.turns, advantages, known, strict=True)
        ],
    ]


PARTS = ("instructions", "past", "state", "words", "menu")
"""Parts of a prompt, in their order."""


def _prompts(recorded: RecordedEpisode) -> list[Prompt]:
    """Return each prompt; nothing where the policy read none, or the record does not tell."""
    if recorded.layout:
        with suppress(InvalidInput):
            return [view.prompt for view in policy_views(recorded.trajectory, recorded.layout)]
    return []


def _read(prompt: Prompt, read: tuple[Prompt, list[str]] | None, texts: _Texts) -> tuple[list[tuple[int, int]], int]:
    """Return the parts of a prompt, and the number of its tokens or -1."""
    cut, tokens = read or (prompt, [])
    parts = [
        (place if was_read else ~place, texts.text(words))
        for place, (whole, kept) in enumerate(zip(_parts(prompt), _parts(cut), strict=True))
        for was_read, words in (kept_parts(whole, kept) if kept != whole else [(True, whole)])
        if words
    ]
    spelled = tuple(texts.text(token) for token in tokens)
    return parts, texts.tokens.setdefault(spelled, len(texts.tokens)) if tokens else -1


def _parts(prompt: Prompt) -> tuple[str, ...]:
    return prompt.head, "".join(prompt.history), prompt.state, prompt.said, prompt.tail


def kept_parts(whole: str, kept: str) -> list[tuple[bool, str]]:
    """Return the runs of a text that was cut to ``kept``: True for what was read, all of which together is ``kept``."""
    if whole.endswith(kept):  # lines of the history
        return [(False, whole[: len(whole) - len(kept)]), (True, kept)]
    lines, others = whole.splitlines(keepends=True), kept.splitlines(keepends=True)
    if len(lines) == len(others) > 1:  # a line of a player, or of the menu
        runs = [run for pair in zip(lines, others, strict=True) for run in kept_parts(*pair) if run[1]]
        return [(was_read, "".join(text for _, text in same)) for was_read, same in groupby(runs, itemgetter(0))]
    first = commonprefix((whole, kept))
    last = commonprefix((whole[len(first) :][::-1], kept[len(first) :][::-1]))[::-1]
    end, until = len(whole) - len(last), len(kept)
    return [(True, whole[: len(first)]), (False, whole[len(first) : end]), (True, kept[len(first) : until])]


def _step(turn: Turn, goal: str, advantage: float | None, texts: _Texts) -> list[Any]:
    seen, menu = turn.observation, turn.menu or (turn.decision.action,)
    chosen = turn.decision.choice.index if turn.menu else 0
    odds, written = turn.decision.choice.probabilities, turn.decision.choice.written
    better = turn.said["corrector"].text if "corrector" in turn.said else ""
    corrected = differences(thought_in(written.text), better) if written and better else []
    if len(odds) != len(menu):
        odds = ()  # the probabilities are unknown
    left_out, rest = 0, 0.0
    if len(menu) > MAX_ACTIONS:
        ranked = sorted(range(len(menu)), key=odds.__getitem__, reverse=True) if odds else [*range(len(menu))]
        if chosen in ranked[MAX_ACTIONS:]:
            ranked.remove(chosen)
            ranked.insert(0, chosen)
        kept, others = sorted(ranked[:MAX_ACTIONS]), ranked[MAX_ACTIONS:]
        left_out, rest = len(others), sum([odds[at] for at in others]) if odds else 0.0
        chosen = kept.index(chosen) if chosen in kept else NO_MENU
        menu, odds = tuple([menu[at] for at in kept]), tuple([odds[at] for at in kept]) if odds else ()
    said, value = turn.reflection, turn.decision.value
    return [
        texts.text(seen.text if seen.task == goal else seen.full_text),
        texts.menu(menu),
        -1 if said is None else texts.text(said),
        chosen if chosen < len(menu) else NO_MENU,
        _rounded(turn.reward),
        int(turn.illegal),
        _rounded(value) if value else 0.0,
        None if advantage is None else _rounded(advantage),
        left_out,
        _ten_thousandths(rest),
        [0 if odd < _LEAST else _ten_thousandths(odd) for odd in odds],
        -1 if written is None else texts.text(written.text),
        [(kind, texts.text(words)) for kind, words in corrected],
        [texts.album.number(image) for image in seen.images],
    ]


def differences(old: str, new: str) -> list[tuple[int, str]]:
    """Return the words of two texts in runs: 0 for words in both, -1 for old ones only, 1 for new ones only."""
    before, after = old.split(), new.split()
    runs = []
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        parts = [(0, before[a:b])] if kind == "equal" else [(-1, before[a:b]), (1, after[c:d])]
        runs += [(sign, " ".join(words)) for sign, words in parts if words]
    return runs


def _ten_thousandths(probability: float) -> int:
    return 0 if probability < 0 else 10_000 if probability > 1 else round(10_000 * probability)


def _rounded(number: float) -> float:
    """Round a number, to one that the browser reads from JSON unchanged."""
    return round(number, 4) + 0.0  # without the sign of a zero
