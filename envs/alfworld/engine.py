"""``Engine``: one ALFWorld game at a time on Fast Downward, with the texts and commands of the stock stack.

The stock stack (TextWorld's ``PddlEnv`` in ALFWorld's wrappers) translates a problem twice at each reset and parses its
grammar at each step. Here a problem is translated once, parsed rules are cached, and visited states can be restored:
Fast Downward keeps every state of a loaded game in its own registry.
"""

from __future__ import annotations

import itertools
import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import fast_downward

from reflectrl.core import InvalidInput
from reflectrl.envs.alfworld.games import Game
from reflectrl.envs.alfworld.grammar import Grammar, Sentences, World
from reflectrl.envs.alfworld.translation import translate

NOTHING = "Nothing happens."
"""Answer to every command that is not admissible."""

_GOAL = "UNKNOWN GOAL"
_PLAIN = re.compile(r"[\w ,.'-]+")
"""Matches goals without special characters of a grammar; people who describe a task may write anything."""
_LIBRARIES: list[Any] = []
"""Libraries of deleted engines, for reuse: closing one breaks the interpreter's exit."""
_LOADS = itertools.count()

Rows = frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class Reply:
    """Answer of the engine."""

    text: str
    commands: tuple[str, ...]
    """Commands that are admissible in this state, sorted."""
    won: bool


@dataclass(frozen=True)
class Move:
    """An admissible command in Fast Downward's terms."""

    operator: int
    name: str
    """Name of the action with its arguments."""
    effects: int
    """Number of atoms that it may change."""


@dataclass(frozen=True)
class Position:
    """A state of a loaded game, for a later return to it."""

    load: int
    """Number of the load in which the state was reached; the state is unknown in other loads."""
    state: int
    """Index of the state in Fast Downward's registry."""
    facts: Mapping[str, Rows]
    """All true facts: predicate to arguments. Privileged: no player may read them."""
    moves: Mapping[str, Move]
    """Admissible commands in Fast Downward's terms."""
    reply: Reply


class Engine:
    """Plays games, one at a time. Not for several threads; several engines in one process are independent.

    Once ``states`` different states of a game are stored, about 100 bytes each, a reset loads the game again.
    """

    def __init__(self, states: int = 50_000) -> None:
        self._states = states
        self._library = _LIBRARIES.pop() if _LIBRARIES else _library()
        weakref.finalize(self, _LIBRARIES.append, self._library)
        self._position: Position | None = None

    def load(self, game: Game) -> Reply:
        """Load a game and begin it.

        Raises:
            InvalidInput: PDDL or a grammar that cannot be used; the engine has no game then.
        """
        self._position = None
        translation = translate(game.domain, game.problem)
        plain = _PLAIN.fullmatch(game.goal) is not None
        goal, blank = f"is to: {game.goal}.", f"is to: {_GOAL}."
        self._grammar = _grammar(game.grammar.replace(goal, blank) if plain else game.grammar)
        self._parameters = translation.parameters
        self._commands: dict[str, str] = {}
        self._load = next(_LOADS)
        self._newest = 0
        self._library.load_sas(translation.sas.encode())
        facts: dict[str, set[tuple[str, ...]]] = {}
        for predicate, arguments in (*translation.facts, *self._atoms()):
            facts.setdefault(predicate, set()).add(arguments)
        frozen = {predicate: frozenset(rows) for predicate, rows in facts.items()}
        self._kinds = translation.kinds
        self.names = names(itertools.chain.from_iterable(itertools.chain.from_iterable(frozen.values())))
        intro = self._grammar.write("#intro#", self._world(frozen), {}).replace(_GOAL, game.goal)
        self._game = game
        self._begin = self._position = self._look(frozen, intro)
        return self._begin.reply

    def reset(self) -> Reply:
        """Restart the loaded game."""
        return self.load(self._game) if self._newest > self._states else self.restore(self._begin)

    def step(self, command: str) -> Reply:
        """Execute ``command``; a command that is not admissible changes nothing.

        Raises:
            InvalidInput: the game's grammar has no text for the result of the command, which is then undone.
        """
        before = self.snapshot()
        move = before.moves.get(command.strip())
        if move is None:
            self._position = replace(before, reply=replace(before.reply, text=NOTHING))
            return self._position.reply
        effects = (fast_downward.Atom * move.effects)()
        self._library.set_state_id(before.state)  # the state may differ after a step for which the grammar had no text
        self._library.apply_operator(move.operator, effects)
        facts = _changed(before.facts, (_atom(effect.name) for effect in effects))
        sentences, binding = self._bind(move.name)
        text = self._grammar.write(sentences.feedback, self._world(facts), binding)
        self._position = self._look(facts, text)
        return self._position.reply

    def snapshot(self) -> Position:
        """Return the present state; free, since positions are never changed."""
        if self._position is None:
            raise InvalidInput("the engine was played without a game; call load first.")
        return self._position

    def knows(self, position: Position) -> bool:
        """Return whether ``restore`` can return to a position: not after another game was loaded."""
        return self._position is not None and position.load == self._load

    def restore(self, position: Position) -> Reply:
        """Return to a position in the loaded game that this engine ``knows``."""
        self._library.set_state_id(position.state)
        self._position = position
        return position.reply

    def _look(self, facts: Mapping[str, Rows], text: str) -> Position:
        """Return the present state with its admissible commands."""
        moves = self._moves(facts)
        won = bool(self._library.check_goal())
        reply = Reply(text, tuple(sorted(moves)), won)
        state = self._library.get_state_id()
        self._newest = max(self._newest, state)  # a visited state has the number of its first visit
        return Position(self._load, state, facts, moves, reply)

    def _moves(self, facts: Mapping[str, Rows]) -> dict[str, Move]:
        operators = (fast_downward.Operator * self._library.get_applicable_operators_count())()
        self._library.get_applicable_operators(operators)
        moves: dict[str, Move] = {}
        for operator in operators:
            name = operator.name
            command = self._commands.get(name)
            if command is None:
                sentences, binding = self._bind(name)
                # cached, since names and positions of furniture, all that a command shows, never change
                command = self._commands[name] = self._grammar.write(sentences.command, self._world(facts), binding)
            moves.setdefault(command, Move(operator.id, name, operator.nb_effect_atoms))
        return moves

    def _bind(self, name: str) -> tuple[Sentences, dict[str, str]]:
        action, *arguments = name.split()
        sentences = self._grammar.actions.get(action)
        if sentences is None:
            raise InvalidInput(f"the grammar of a game has no action {action!r}, which its domain has; add it.")
        # the translator adds parameters for what a precondition leaves open; an operator's name does not tell them
        return sentences, dict(zip(self._parameters[action], arguments, strict=False))

    def _world(self, facts: Mapping[str, Rows]) -> World:
        return World(facts, self.names, self._kinds)

    def _atoms(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        atoms = (fast_downward.Atom * self._library.get_state_size())()
        self._library.get_state(atoms)
        return (fact for atom in atoms if not (fact := _atom(atom.name))[0].startswith("not_"))


def _library() -> Any:
    try:
        return fast_downward.load_lib()
    except (OSError, RuntimeError) as error:
        raise InvalidInput(
            f"the library of Fast Downward cannot be loaded ({error}); compile it here: run pip install --no-cache-dir "
            "--force-reinstall --no-deps fast-downward-textworld, or set TMPDIR to a folder that may hold programs."
        ) from error


@lru_cache(maxsize=16)
def _grammar(text: str) -> Grammar:
    """Parse a grammar once: without the goal, all games of a version have the same grammar."""
    return Grammar(text)


def _atom(name: str) -> tuple[str, tuple[str, ...]]:
    """Parse ``Atom inreceptacle(tomato_1, fridge_1)``, or a NegatedAtom, which is no longer true."""
    sign, _, rest = name.partition(" ")
    predicate, _, arguments = rest.removesuffix(")").partition("(")
    return ("not_" if sign == "NegatedAtom" else "") + predicate, tuple(filter(None, arguments.split(", ")))


def _changed(facts: Mapping[str, Rows], effects: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, Rows]:
    """Return the facts after the effects; grammars express that a fact is not true by ``not_inreceptacle``."""
    after = dict(facts)
    for predicate, arguments in effects:
        opposite = predicate.removeprefix("not_") if predicate.startswith("not_") else f"not_{predicate}"
        after[opposite] = after.get(opposite, frozenset()) - {arguments}
        after[predicate] = after.get(predicate, frozenset()) | {arguments}
    return after


def names(ids: Iterable[str]) -> dict[str, str]:
    """Return the name of each id, such as ``tomato 2``, as ALFWorld's ``Demangler`` does, down to trailing spaces.

    It numbers the ids of a kind in reverse order.
    """
    kinds = {id: _kind(id) for id in sorted(set(ids))}
    left = Counter(kind for id, kind in kinds.items() if "_bar_" in id)
    found = {}
    for id, kind in kinds.items():
        found[id] = f"{kind} {left[kind]}" if "_bar_" in id else f"{kind} "
        left[kind] -= 1
    return found


def _kind(id: str) -> str:
    kind, separator, _ = id.partition("_bar_")
    if not separator:
        for mangled, sign in (("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
            kind = kind.replace(mangled, sign)
        return kind
    return f"{kind}basin" if "basin" in id else kind
