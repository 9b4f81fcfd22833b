"""Conversations of other projects as demonstrations: their actions are replayed in the environment.

A file is a JSON list, or JSON lines, of records with ``conversations`` of ``from`` and ``value`` (ShareGPT), or with
``conversations`` or ``messages`` of ``role`` and ``content`` (ETO, chat APIs). A turn of the player ends in a line
``Action: ...``, after a thought, if there is one. What the states show comes from the environment, not from the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectrl.core import (
    NO_MENU,
    Choice,
    Decision,
    InvalidInput,
    NatLangEnv,
    Task,
    Trajectory,
    Utterance,
    WorkFailed,
    make_env,
)
from reflectrl.core.files import check_output, read_text
from reflectrl.core.jsonl import read_json, read_jsonl
from reflectrl.core.text import counted, one_line, shown
from reflectrl.data_gen.demonstrations import samples_of
from reflectrl.data_gen.rows import write_samples
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.chats import index_of
from reflectrl.prompts.views import MenuView, View
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.record import Header
from reflectrl.seats.table import reflecting

_TURNS = (("conversations", "from", "value"), ("conversations", "role", "content"), ("messages", "role", "content"))
"""Names of the list of turns, and in a turn of the speaker and the words."""
_PLAYERS = ("assistant", "bot", "chatgpt", "gpt", "model")
_ACTION = re.compile(r"^[ \t]*Action:", re.MULTILINE | re.IGNORECASE)
_MARKS = re.compile(r"</?think>|^\s*Thoughts?:", re.IGNORECASE)
_FENCE = re.compile(r"\s*(```|~~~)\w*\s*")
_PART = re.compile(r"\{(\w*)\}")
_BLANK = re.compile(r"\\\{(\w+)\\\}")
_RULE = "expected such as 'put {thing} on {place}=move {thing} to {place}'"
_UNMATCHED = "with no matching training task, by id or first observation"
_UNREADABLE = "with a turn that is not plain text"
_EXPECTED = "a JSON list, or JSON lines, of conversations"


@dataclass(frozen=True)
class Conversation:
    """An episode as another project tells it."""

    where: str
    """File and number of the record."""
    beginning: str
    """Everything that the player was told before its first action, as ``_plain`` returns it."""
    names: tuple[str, ...]
    """Other texts of the record, one of which may name the task."""
    thoughts: tuple[str, ...]
    """(t,) thoughts before the actions, on one line each; empty where there is none."""
    actions: tuple[str, ...]
    """(t,) actions in the order of play."""
    readable: bool = True
    """Whether all turns are plain text; otherwise there are no actions."""


@dataclass(frozen=True)
class Imported:
    """Result of an import."""

    episodes: int
    """Number of conversations that became demonstrations."""
    samples: int
    left_out: Mapping[str, tuple[str, ...]]
    """Places of the other conversations, by the reason for which they were left out."""

    def sentences(self) -> Iterator[str]:
        """Yield a line on each reason."""
        for why, places in self.left_out.items():
            yield f"left out: {counted(len(places), 'conversation')} {why} (first: {places[0]})"


def import_conversations(
    path: Path, name: str, options: Mapping[str, Any], out: Path, *, reword: Sequence[str] = ()
) -> Imported:
    """Replay the conversations of a file in training tasks, and write the episodes that succeed as demonstrations.

    A conversation belongs to the task whose id is one of its texts, or the end of a path in them, or else to the first
    task in which its actions succeed, of those whose first observation it quotes.

    Args:
        path: the file of conversations.
        name: the environment.
        options: its options.
        out: new file for ``data.demonstrations``, which appears complete or not at all.
        reword: other words of the environment for actions of the file, such as ``put {a} on {b}=move {a} to {b}``; read
            where an action is not possible as it is.

    Raises:
        InvalidInput: a file of something else, an ``out`` that exists, or no conversation that can be replayed.
        WorkFailed: ``out`` cannot be written.
        EnvFailed: the environment failed.
    """
    check_output(out)
    if out.exists():
        raise InvalidInput(f"{out} exists already and is not replaced; choose another --out.")
    rules = [_Rule(each) for each in reword]
    conversations = read_conversations(path)
    kept: list[Trajectory] = []
    left_out: dict[str, list[str]] = {}
    with closing(make_env(name, **options)) as env:
        tasks, played = _Tasks(env), Counter[str]()
        for conversation in conversations:
            astray = _AstrayError(_UNMATCHED if conversation.readable else _UNREADABLE)
            for task in tasks.of(conversation) if conversation.readable else ():
                try:
                    # a seed of its own: rows of equal task and seed count as one episode
                    kept.append(_replayed(env, Episode(task, played[task.id]), conversation, rules))
                    played[task.id] += 1
                    break
                except _AstrayError as error:
                    astray = error
            else:
                left_out.setdefault(astray.why, []).append(f"{conversation.where}{astray.at}")
    samples = [sample for trajectory in kept for sample in samples_of(trajectory)]
    result = Imported(len(kept), len(samples), {why: tuple(places) for why, places in left_out.items()})
    if not kept:
        raise InvalidInput(
            f"no conversation of {path} can be replayed in {name!r}; {'; '.join(result.sentences())}: choose the "
            "environment, and its options, in which they were played."
        )
    try:
        write_samples(out, Header(name, options, PromptFormat(env.instructions)), samples)
    except OSError as error:
        raise WorkFailed(f"{out} cannot be written ({error.strerror}); make room or choose another --out.") from error
    return result


class _Rule:
    """Other words for an action."""

    def __init__(self, given: str) -> None:
        before, equals, self._after = given.partition("=")
        parts = _PART.findall(before)
        why = "" if before.strip() and equals and self._after.strip() else "was given"
        for part in parts:
            if not part.isidentifier():
                why = f"names a part {{{part}}}, which does not begin with a letter"
            elif parts.count(part) > 1:
                why = f"names the part {{{part}}} twice"
        for part in _PART.findall(self._after):
            if not why and part not in parts:
                why = f"has {{{part}}} after the '=' and not before it"
        if why:
            raise InvalidInput(f"--reword {given!r} {why}; {_RULE}.")
        self._before = re.compile(_BLANK.sub(r"(?P<\1>.+)", re.escape(" ".join(before.split()))), re.IGNORECASE)

    def apply(self, action: str) -> str | None:
        """Return the action in other words, ``None`` if it is another action."""
        found = self._before.fullmatch(action)
        return found and _PART.sub(lambda blank: found[blank[1]], self._after)


def read_conversations(path: Path) -> list[Conversation]:
    """Read a file of conversations; turns of the player without an action, such as ``OK``, are passed over.

    Raises:
        InvalidInput: a file of something else, or one without actions.
    """
    if read_text(path, _EXPECTED).lstrip().startswith("["):
        records = [(f"{path}, record {number}", each) for number, each in enumerate(read_json(path, _EXPECTED), 1)]
    else:
        records = list(read_jsonl(path))
    found = [_conversation(where, record) for where, record in records]
    if not any(conversation.actions for conversation in found):
        raise InvalidInput(
            f"{path} has {counted(len(found), 'conversation')}, and no turn of a player with a line 'Action: ...'; "
            "expected episodes of another project: choose another file."
        )
    return found


def _conversation(where: str, record: object) -> Conversation:
    told: list[str] = []
    thoughts: list[str] = []
    actions: list[str] = []
    for speaker, words in _turns(where, record):
        if words is None:
            return Conversation(where, "", (), (), (), readable=False)
        *_, last = [None, *_ACTION.finditer(words)] if speaker in _PLAYERS else [None]
        lines = [] if last is None else words[last.end() :].split("\n")
        action = next((one_line(line) for line in lines if line.strip() and not _FENCE.fullmatch(line)), "")
        if last is not None and action:
            thoughts.append(one_line(_MARKS.sub(" ", words[: last.start()])))
            actions.append(action)
        elif not actions:
            told.append(words)
    texts = record.values() if isinstance(record, dict) else ()
    names = tuple(text for text in texts if isinstance(text, str))
    return Conversation(where, _plain("\n".join(told)), names, tuple(thoughts), tuple(actions))


def _turns(where: str, record: object) -> Iterator[tuple[str, str | None]]:
    """Yield speaker and words of each turn, and ``None`` for words that are no text."""
    fields = record if isinstance(record, dict) else {}
    for listed, speaker, words in _TURNS:
        turns = fields.get(listed)
        if isinstance(turns, list) and turns and all(isinstance(each, dict) for each in turns):
            pairs = [(each.get(speaker), each.get(words)) for each in turns]
            if all(isinstance(who, str) for who, _ in pairs) and any(words in each for each in turns):
                yield from ((who.lower(), said if isinstance(said, str) else None) for who, said in pairs)
                return
    raise InvalidInput(
        f"{where} is {shown(record)}; expected a conversation: 'conversations' of 'from' and 'value', or 'messages' of "
        "'role' and 'content', all of them texts."
    )


def _plain(text: str) -> str:
    """Return a text for comparison: in lower case, with one space before, between and after its words."""
    return f" {' '.join(text.casefold().split())} "


class _Tasks:
    """Training tasks, found by what a conversation says."""

    def __init__(self, env: NatLangEnv) -> None:
        self._env = env
        self._by_id = {task.id: task for task in env.split_tasks("train")}
        self._quotes: list[tuple[Task, list[str]]] = []

    def of(self, conversation: Conversation) -> Sequence[Task]:
        """Return the tasks that a conversation may be about."""
        paths = [name.split("/") for name in conversation.names]
        ends = ["/".join(parts[start:]) for parts in paths for start in range(len(parts))]
        if named := [self._by_id[end] for end in ends if end in self._by_id]:
            return named[:1]
        self._quotes = self._quotes or [(task, self._first_lines(task)) for task in self._by_id.values()]
        return [task for task, lines in self._quotes if lines and all(line in conversation.beginning for line in lines)]

    def _first_lines(self, task: Task) -> list[str]:
        """Return the lines by which a first observation is known: the goal, where it is stated, or else the text."""
        self._env.reset(seed=0, options={"task": task})
        observation = self._env.observation
        return [_plain(line) for line in (observation.task or observation.text).splitlines() if line.strip()]


class _AstrayError(Exception):
    """A conversation cannot be replayed."""

    def __init__(self, why: str, at: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.at = at


def _replayed(env: NatLangEnv, episode: Episode, conversation: Conversation, rules: Sequence[_Rule]) -> Trajectory:
    """Play the actions of a conversation; raise ``_AstrayError`` if they do not succeed."""
    player = _Replay(conversation, rules)
    [played] = rollout([env], [episode], policy=player, seats=reflecting(player), layout=PromptFormat(env.instructions))
    if not played.success:
        raise _AstrayError("whose episode does not succeed")
    return played


class _Replay:
    """Policy and reflector that repeat a conversation; actions beyond the end of the episode are never asked for."""

    def __init__(self, conversation: Conversation, rules: Sequence[_Rule]) -> None:
        self._conversation = conversation
        self._rules = rules

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002 - nothing is drawn
        """Return the thoughts."""
        return [Utterance("".join(self._conversation.thoughts[len(view.past) :][:1])) for view in views]

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002 - nothing is drawn
        """Return the actions; raise ``_AstrayError`` for one that is not on its menu, or if there are no more."""
        return [self._decision(view) for view in views]

    def _decision(self, view: MenuView) -> Decision:
        step, given = len(view.past), self._conversation.actions
        if step == len(given):
            raise _AstrayError("whose actions stop before the end of the episode")
        menu, action = view.menu, given[step]
        if not menu.actions:
            return Decision(action, 0.0, 0.0, Choice(NO_MENU))
        reworded = (words for rule in self._rules if (words := rule.apply(action)) is not None)
        for words in (action, *reworded):
            if (place := index_of(words, menu, "text")) is not None:
                return Decision(menu.actions[place], 0.0, 0.0, Choice(place))
        raise _AstrayError("with an action that is not possible at that point", f", {action!r}")
