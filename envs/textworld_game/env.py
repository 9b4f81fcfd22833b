"""``TextWorldGame``: games of TextWorld from files, from its generator, or from any world in PDDL.

A game in JSON is played by the logic of TextWorld alone, which has facts and commands but no texts: those are in the
story file that Inform compiles. ``described`` puts facts, with the names of things, into words.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import sys
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task
from reflectrl.core.errors import raised
from reflectrl.core.files import user_path
from reflectrl.core.foreign import is_signal
from reflectrl.core.types import SPLITS

PLAYER, HANDS = "P", "I"
"""Names of the player and of what the player carries in the facts of TextWorld."""
INSIDE = ("at", "in", "on")
DIRECTIONS = ("north", "south", "east", "west")
SHUT = ("closed", "locked")
"""States in which a thing hides what it holds."""
SLOT = "slot"
"""Kind of the places in the player's hands, which TextWorld counts by facts."""


class Argument(Protocol):
    """An argument of a fact."""

    name: str
    type: str


class Fact(Protocol):
    """A fact: ``in(apple, fridge)``, ``open(fridge)`` or ``north_of(kitchen, hall)``."""

    name: str
    arguments: Sequence[Argument]


@dataclass
class _World:
    """Facts by what they say."""

    room: str = ""
    held: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Things by the room, thing or hands that hold them."""
    states: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """States by thing, such as ``open``."""
    doors: dict[tuple[str, str], str] = field(default_factory=dict)
    """Doors by the room on this side and the one behind."""
    ways: list[tuple[str, str, str]] = field(default_factory=list)
    """Room, direction, and the room that lies there."""

    def add(self, name: str, given: Sequence[str]) -> None:
        """Add a fact."""
        direction = name.removesuffix("_of")
        if name == "at" and given[0] == PLAYER:
            self.room = given[1]
        elif name in INSIDE:
            self.held[given[1]].append(given[0])
        elif name == "link":
            self.doors[given[0], given[2]] = given[1]
        elif direction in DIRECTIONS:
            self.ways.append((given[1], direction, given[0]))
        elif len(given) == 1:
            self.states[given[0]].append(name)

    def named(self, thing: str) -> str:
        """Return a thing with its states, and with what it holds in view."""
        states = self.states.get(thing, [])
        inside = [] if {*states} & {*SHUT} else [self.named(each) for each in self.held.get(thing, [])]
        said = f"{thing} ({', '.join(states)})" if states else thing
        return f"{said} with {' and '.join(inside)}" if inside else said

    def lines(self) -> Iterator[str]:
        """Yield the lines of the description."""
        yield f"You are in the {self.room}."
        if here := [self.named(thing) for thing in self.held.get(self.room, [])]:
            yield f"You see: {', '.join(here)}."
        exits = []
        for _, direction, behind in (way for way in self.ways if way[0] == self.room):
            door = self.doors.get((self.room, behind))
            exits.append(f"{direction} through {self.named(door)}" if door else direction)
        if exits:
            yield f"Exits: {', '.join(exits)}."
        yield f"You carry: {', '.join(map(self.named, self.held.get(HANDS, []))) or 'nothing'}."


def described(facts: Iterable[Fact]) -> str:
    """Return the player's room, what is in view there, the exits and the player's belongings, a line each."""
    world = _World()
    plain = ((fact.name, tuple(each.name for each in fact.arguments if each.type != SLOT)) for fact in facts)
    for name, given in sorted(each for each in plain if each[1]):  # the engine keeps facts in sets
        world.add(name, given)
    return "\n".join(world.lines())


INSTALL = "pip install 'reflectrl[alfworld]'"
PDDL = ".tw-pddl"
LOGIC = ".json"
KINDS = (".z8", PDDL, LOGIC)
"""Files that TextWorld 1.7 can play: Inform games with a ``.json`` beside them, worlds in PDDL, and the ``.json``
alone, which has no texts."""
_GAME = re.compile(rb'\s*{\s*"version"\s*:\s*\d+\s*,\s*"world"\s*:')
"""Beginning of a game in JSON, unlike other files of that kind."""
START = "The game begins."
END = "The game is over."
NOTHING = "Nothing else happens."

_PROMPT = re.compile(r"\n>[^\n]*\s*\Z")
"""Matches the prompt of a game with its status line, which counts the turns."""
_VERDICT = re.compile(r"Your score has just .*?\.|\*\*\*.*")
"""Matches what an answer of a game says about its score and its end."""
_HEADER = 64
"""Number of bytes of a story before those that its checksum covers."""
_UNREACHABLE = "val1"
"""Mark of the empty task that the PDDL translator writes if the goal cannot be reached even without side effects."""
_IDLE: list[Any] = []
"""Unused engines of worlds in PDDL, for reuse, because their library is never unloaded."""


class TextWorldGame(NatLangEnv):
    """Play a game with the engine's admissible commands. ``textworld:PATH`` names it wherever an environment is named.

    The reward is the increase of the game's score divided by its maximum score, so the return of a game that is won is
    1. One game is one task. The games of a folder are split 7:2:1; fewer than three of them, or a single one, are
    training tasks only. Needs the extra ``alfworld``. Nothing has been trained on these games here.

    Args:
        games: a game (``.z8`` with its ``.json`` beside it, the ``.json`` alone, or ``.tw-pddl``), or a folder of
            games. A ``.json`` without a story, as that of a Glulx game (``.ulx``), is shown in words of our own.
        horizon: maximum number of steps of an episode.
        menu: maximum length of the menu; a game with more commands is refused, because a shorter menu could lack the
            right one.
        expert: follow the game's own winning policy. In PDDL that is a planner, which may take minutes per step in
            worlds larger than a few rooms: set it to false there.
    """

    name = "textworld"
    observable = False
    instructions = (
        "You play a text adventure. Each step plays one of the commands that are possible here. Do what the task asks "
        "in as few commands as you can."
    )

    def __init__(self, games: str, horizon: int = 50, menu: int = 40, expert: bool = True) -> None:
        super().__init__(horizon)
        if not isinstance(menu, int) or menu < 2:
            raise InvalidInput(f"menu={menu!r} was given to {self.name!r}; expected 2 or more commands.")
        self.max_actions = menu
        self._folder, files = _find(games)
        self._tasks = _split([Task(file, {"game": file}) for file in files])
        self._known = {task.id: task for tasks in self._tasks.values() for task in tasks}
        self._expert = expert
        self._engine: Any = None
        self._file: str | None = None
        self._put_away: Callable[[], object] = lambda: None

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the games of a split, in a fixed shuffled order; ids are paths."""
        return self._tasks[split]

    def start(self, task: Task) -> None:
        """Load the game, unless it was played last, and begin it.

        Raises:
            InvalidInput: a task of other games, or a file that cannot be played.
        """
        if self._known.get(task.id) != task:
            raise InvalidInput(f"task {task.id!r} is not among the games in {self._folder}; use env.tasks(split).")
        file = task.options["game"]
        with _engine_at_work(self._folder / file):
            if self._file != file:
                self.close()
                self._engine = _open(self._folder / file, self._expert)
                # also returns the engine if the environment is dropped without close
                self._put_away = weakref.finalize(self, _close, self._engine, file.endswith(PDDL))
                self._file = file
            self._state = self._engine.reset()
        self._highest = self._state.get("max_score") or 1
        self._score = 0
        self._about = _tidy(self._state.get("objective") or self._state["feedback"])  # worlds in PDDL begin with it
        self._last = START
        self._mistaken: bool | None = None

    def observe(self) -> Observation:
        """Return the result of the last command, then room and belongings if the game describes them.

        Raises:
            InvalidInput: more commands than a menu may have.
        """
        commands = tuple(self._state["admissible_commands"])
        if len(commands) > self.max_actions:
            raise InvalidInput(
                f"{self.task.id!r} offers {len(commands)} commands here, but menu={self.max_actions}; "
                f"give {self.name!r} the option menu={len(commands)} or more."
            )
        shown = [_tidy(self._state.get(part)) for part in ("description", "inventory")]
        if self._wordless:
            shown = described(self._state["facts"]).splitlines()
        # the answer already contains a room that was just entered, or what was just asked for
        lines = [self._last, *(line for line in shown if line not in self._last)]
        return Observation("\n".join(lines), commands, f"Task: {self._about}")

    def act(self, action: str) -> Outcome:
        with _engine_at_work(self._folder / self.task.id):
            before = self._state.get("policy_commands")
            self._state, score, ended = self._engine.step(action)
        gained = (score or 0) - self._score
        self._score += gained
        said = _VERDICT.sub("", _tidy(self._state["feedback"])).strip()  # no rater may see the score
        if self._wordless:
            said = "" if ended else f"Done: {action}."
        self._last = said or (END if ended else NOTHING)
        won = bool(self._state["won"])
        after = self._state.get("policy_commands")
        no_shorter = len(after) >= len(before) if before and after else None
        self._mistaken = not won if ended else no_shorter
        return Outcome(gained / self._highest, ended=bool(ended), success=won)

    def expert(self) -> str | None:
        """Return the first command of the game's own winning policy from here; ``None`` if it has none."""
        policy = self._state.get("policy_commands")
        return policy[0] if policy else None

    def mistaken(self) -> bool | None:
        """Return whether the last command made the game's own path to the win no shorter, or lost the game."""
        return self._mistaken

    def close(self) -> None:
        self._put_away()
        self._engine = self._file = None

    @property
    def _wordless(self) -> bool:
        """Whether the engine has no texts of this game."""
        return self.task.id.endswith(LOGIC)


def _find(games: str) -> tuple[Path, list[str]]:
    """Return the folder, and the games below it by name."""
    path = user_path(games)
    if path.is_dir():
        found = (file for kind in KINDS for file in path.rglob(f"*{kind}") if kind != LOGIC or _is_lone_game(file))
        files = sorted(file.relative_to(path).as_posix() for file in found)
        if not files:
            raise InvalidInput(f"{path} has no games; expected files that end with {' or '.join(KINDS)}.")
        return path, files
    if path.suffix not in KINDS or not path.is_file():
        raise InvalidInput(
            f"game {str(path)!r} is missing or of another kind; expected a file {' or '.join(KINDS)}: of a Glulx game "
            "(.ulx), which TextWorld 1.7 does not play, give the .json beside it."
        )
    return path.parent, [path.name]


def _is_lone_game(file: Path) -> bool:
    """Return whether a file in JSON is a game without its story beside it."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return _GAME.match(opened.read(64)) is not None and not file.with_suffix(".z8").exists()


def _split(tasks: list[Task]) -> Mapping[str, Sequence[Task]]:
    order = random.Random(0).sample(tasks, len(tasks))
    count = len(order)
    test, validation = (0, 0) if count < 3 else (max(1, (count + 5) // 10), max(1, (2 * count + 5) // 10))
    parts = (order[test + validation :], order[test : test + validation], order[:test])
    return dict(zip(SPLITS, parts, strict=True))


def _open(path: Path, expert: bool) -> Any:
    if importlib.util.find_spec("textworld") is None:
        raise InvalidInput(f"games of TextWorld need the package textworld, which is not installed; run {INSTALL}.")
    import textworld
    from textworld.envs import PddlEnv

    infos = textworld.EnvInfos(
        admissible_commands=True,
        description=True,
        facts=path.suffix == LOGIC,
        inventory=True,
        max_score=True,
        objective=True,
        policy_commands=expert,
        score=True,
        won=True,
    )
    if path.suffix == PDDL:
        engine = _IDLE.pop() if _IDLE else PddlEnv()
        engine.request_infos = infos
        try:
            # as data, because the engine does not close a file that is given as a path
            engine.load(json.loads(path.read_text(encoding="utf-8")))
        except KeyError as error:
            if error.args == (_UNREACHABLE,):
                raise ValueError("its goal cannot be reached, whatever is done") from error
            raise
        return engine
    if path.suffix == LOGIC:
        return textworld.start(str(path), infos)
    if not path.with_suffix(".json").is_file():
        raise InvalidInput(
            f"{path} has no {path.stem}.json beside it; expected a game that TextWorld made, because the engine knows "
            "the admissible commands of no other."
        )
    _check_story(path)
    from jericho import UnsupportedGameWarning

    with warnings.catch_warnings():
        # says that Jericho does not know this game: score and end come from TextWorld's description of it
        warnings.simplefilter("ignore", UnsupportedGameWarning)
        engine = textworld.start(str(path), infos)
    engine.seed(1)
    return engine


def _check_story(path: Path) -> None:
    """Check that a story is complete; an incomplete one would make the interpreter end the process."""
    story = path.read_bytes()
    words = [int.from_bytes(story[place : place + 2], "big") for place in (0x1A, 0x1C)]
    size, checksum = words[0] * 8, words[1]
    if story[:1] != b"\x08" or not _HEADER <= size <= len(story) or sum(story[_HEADER:size]) % 2**16 != checksum:
        raise ValueError("length or checksum differ from those in its header")


def _close(engine: Any, again: bool) -> None:
    if again:
        _IDLE.append(engine)
    else:
        engine.close()


@contextmanager
def _engine_at_work(path: Path) -> Iterator[None]:
    """Name the game in the engine's errors; keep the command line's arguments, which the PDDL translator overwrites."""
    arguments = sys.argv
    try:
        yield
    except InvalidInput:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - for bad PDDL, the engine raises assertions, exits and parser errors
        if is_signal(error):
            raise
        raise InvalidInput(f"{path} cannot be played: the engine {raised(error)}; make the game again.") from error
    finally:
        sys.argv = arguments


def _tidy(text: str | None) -> str:
    return " ".join(_PROMPT.sub("", text or "").split())
