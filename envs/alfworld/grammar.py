"""``Grammar``: the texts of a game, from the text grammar inside its file.

TextWorld's own parsers read the grammar; a small generator writes the sentences. TextWorld's generator writes the same
ones (the tests compare them), but copies all names at every symbol, parses every condition again, and passes
expressions of the file to ``eval``. Game files are downloaded, so here their expressions can only name, join and
choose.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from textworld.envs.pddl import textgen
from textworld.envs.pddl.logic import GameLogic
from textworld.logic import Rule

from reflectrl.core import InvalidInput
from reflectrl.core.errors import raised

Facts = Mapping[str, Collection[tuple[str, ...]]]
"""Map from a predicate to the arguments for which it is true."""
Binding = dict[str, str]
"""Map from a placeholder of a sentence to the id of its entity."""


@dataclass(frozen=True)
class World:
    """The state of the world that sentences describe."""

    facts: Facts
    names: Mapping[str, str]
    """Map from the id of an entity to its name for the player."""
    kinds: Mapping[str, Collection[str]]
    """Map from the id of an entity to its type and all supertypes."""


@dataclass(frozen=True)
class Sentences:
    """Patterns of an action's command and feedback."""

    command: str
    feedback: str


class Grammar:
    """Rules of a grammar file such as ``alfred.twl2``, in the syntax of TextWorld's ``ContextSensitiveGrammar``."""

    def __init__(self, text: str) -> None:
        try:
            logic = GameLogic(domain="", grammar=text)
        except Exception as error:  # noqa: BLE001 - for an incomplete text, parser, JSON or converter raise errors of their own
            raise InvalidInput(
                f"the grammar of a game cannot be parsed: TextWorld {raised(error)}; expected the one of alfworld."
            ) from error
        self._rules: Mapping[str, Sequence[Any]] = logic.grammar._rules
        self.actions: Mapping[str, Sentences] = {
            name: Sentences(action.template, action.feedback_rule) for name, action in logic.actions.items()
        }
        """Sentences by the name of the action in the domain, in lower case."""

    def write(self, pattern: str, world: World, binding: Binding) -> str:
        """Return the text of a pattern such as ``#look.feedback#`` or ``take {o} from {r}``."""
        try:
            return "".join(self._derive(_symbols(pattern), world, binding))
        except RecursionError as error:
            raise InvalidInput(f"the grammar of a game never ends for {pattern!r}; break the circle.") from error

    def _derive(self, symbols: Sequence[Any], world: World, binding: Binding) -> Iterator[str]:
        for symbol in symbols:
            if isinstance(symbol, textgen.TerminalSymbol):
                yield symbol.symbol
            elif isinstance(symbol, textgen.NonterminalSymbol):
                yield from self._derive(self._choose(symbol.symbol, world, binding), world, binding)
            elif isinstance(symbol, textgen.EvalSymbol):
                yield str(_value(_expression(symbol.expression), world, binding))
            elif isinstance(symbol, textgen.ConditionalSymbol):
                yield from self._each(symbol, world, binding)
            else:
                yield from self._list(list(self._each(symbol.symbol, world, binding)), world, binding)

    def _choose(self, name: str, world: World, binding: Binding) -> Sequence[Any]:
        """Return the first rule of that name whose condition holds."""
        for rule in self._rules.get(name, ()):
            if not rule.condition or next(_matches(_query(str(rule.condition)), world, binding), None) is not None:
                return rule.rhs  # type: ignore[no-any-return]
        raise InvalidInput(f"the grammar of a game says nothing for {name!r} here; expected the one of alfworld.")

    def _each(self, symbol: Any, world: World, binding: Binding) -> Iterator[str]:
        """Yield one text for each way in which the condition holds."""
        found = list(_matches(_query(symbol.given), world, binding)) if symbol.given else [binding]
        for match in found:
            yield "".join(self._derive([symbol.expression], world, match))

    def _list(self, texts: list[str], world: World, binding: Binding) -> Iterator[str]:
        if not texts:
            yield from self._derive(self._choose("list_empty", world, binding), world, binding)
            return
        last = len(texts) - 1
        for number, text in enumerate(texts):
            if number:
                name = "list_last_separator" if number == last else "list_separator"
                yield from self._derive(self._choose(name, world, binding), world, binding)
            yield text


@lru_cache(maxsize=1024)
def _symbols(pattern: str) -> tuple[Any, ...]:
    return tuple(textgen._parse_and_convert(pattern, rule_name="symbols"))


@lru_cache(maxsize=1024)
def _query(condition: str) -> Sequence[Any]:
    """Parse ``openable(r:receptacle) & opened(r:receptacle)``."""
    try:
        return Rule.parse_conjunctive_query(condition).preconditions  # type: ignore[no-any-return]
    except Exception as error:  # noqa: BLE001 - parser and converter raise errors of their own
        raise InvalidInput(
            f"the grammar of a game has the condition {condition!r}, which cannot be parsed; expected predicates "
            "joined by '&'."
        ) from error


def _matches(query: Sequence[Any], world: World, binding: Binding) -> Iterator[Binding]:
    """Yield every completion of ``binding`` with which the query holds; two placeholders never share an entity."""
    if not query:
        yield binding
        return
    first, rest = query[0], query[1:]
    taken = set(binding.values())
    for arguments in sorted(world.facts.get(first.name, ())):
        if len(arguments) != len(first.parameters):
            continue
        new: Binding = {}
        for parameter, entity in zip(first.parameters, arguments, strict=True):
            placeholder = parameter.name
            bound = binding.get(placeholder) or new.get(placeholder)
            if parameter.type not in world.kinds[entity] or (bound is not None and bound != entity):
                break
            if bound is None:
                if entity in taken or entity in new.values():
                    break
                new[placeholder] = entity
        else:
            yield from _matches(rest, world, {**binding, **new})


@lru_cache(maxsize=1024)
def _expression(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise InvalidInput(f"the grammar of a game holds {text!r}, which is not an expression.") from error


def _value(node: ast.expr, world: World, binding: Binding) -> str:
    """Evaluate ``o.indefinite + ' ' + o.name`` or ``r.name or r.id``: the only forms in ALFWorld's grammars."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=placeholder) if placeholder in binding:
            return world.names[binding[placeholder]]
        case ast.Attribute(value=ast.Name(id=placeholder), attr=attribute) if placeholder in binding:
            entity = binding[placeholder]
            known = {"id": entity, "name": world.names[entity], "definite": "the", "indefinite": "a"}
            if attribute in known:
                return known[attribute]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left, world, binding) + _value(right, world, binding)
        case ast.BoolOp(op=ast.Or(), values=values):
            texts = [_value(value, world, binding) for value in values]
            return next(filter(None, texts), texts[-1])
    raise InvalidInput(
        f"the grammar of a game holds the expression {ast.unparse(node)!r}; expected names of entities, joined by '+' "
        "or 'or', as in alfworld's."
    )
