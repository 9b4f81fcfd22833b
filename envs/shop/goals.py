"""``Goal``: what to buy, in words, with the score of a purchase and the queries that its words suggest."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations

from reflectrl.envs.shop.catalogue import KINDS, Kind, Product, catalogue

TEMPLATES = (
    "I am looking for a {thing} with {options}, and price at most {limit} dollars.",
    "Find me a {thing}, {options}, for up to {limit} dollars.",
    "I need a {thing}. It should have {options} and cost no more than {limit} dollars.",
    "With {limit} dollars at most to spend, I want a {thing} in {options}.",
    "Please order a {thing} for me: {options}, not above {limit} dollars.",
)


@dataclass(frozen=True)
class Goal:
    """Description of the product that an instruction asks for."""

    kind: str
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    limit: int
    """Maximum price in dollars."""
    product: str
    """Id of a product that meets the goal; others may meet it, too."""
    template: int

    @property
    def instruction(self) -> str:
        """The goal in a customer's words."""
        thing = f"{' '.join(self.attributes)} {self.kind}"
        options = " and ".join(f"{name} {value}" for name, value in self.options.items())
        said = TEMPLATES[self.template].format(thing=thing, options=options, limit=self.limit)
        return said.replace(" a ", " an ", 1) if thing[0] in "aeiou" else said

    @property
    def query(self) -> str:
        """The best query: every attribute and the kind."""
        return " ".join((*self.attributes, self.kind))

    @property
    def queries(self) -> tuple[str, ...]:
        """The best query and worse ones, all in words of the instruction, in alphabetical order.

        Some leave out attributes, some contain an option, which no index knows, and some do not name the kind.
        """
        look = next(iter(self.options.values()))
        fewer = (f"{attribute} {self.kind}" for attribute in self.attributes)
        vague = (self.kind.split()[-1], " ".join(self.attributes), f"{look} {self.attributes[0]}")
        return tuple(sorted({self.query, self.kind, f"{look} {self.kind}", *fewer, *vague}))


def score(bought: Product, chosen: Mapping[str, str], goal: Goal) -> float:
    """Return WebShop's reward of a purchase, from 0 to 1: fulfilled share of the goal times match of the type.

    Args:
        bought: the product.
        chosen: chosen values by option.
        goal: goal of the episode.

    """
    attributes = len(set(bought.attributes) & set(goal.attributes))
    options = len(chosen.items() & goal.options.items())
    right = attributes + options + (bought.price <= goal.limit)
    return type_match(bought, catalogue()[goal.product]) * right / (len(goal.attributes) + len(goal.options) + 1)


def type_match(bought: Product, wanted: Product) -> float:
    """Return 1 for the same kind, and else 1, 0.5, 0.1 or 0, by the share of the wanted title's nouns."""
    if bought.kind is wanted.kind:
        return 1.0
    share = len(bought.nouns & wanted.nouns) / len(wanted.nouns)
    return 1.0 if share > 0.2 else 0.5 if share >= 0.1 else 0.1 if share > 0 else 0.0


def all_goals() -> Iterator[Goal]:
    """Yield a goal for each kind and each combination of one or two attributes of a product."""
    rng = random.Random(0)
    for kind in KINDS:
        for wanted in chain(combinations(kind.attributes, 1), combinations(kind.attributes, 2)):
            having = [it for it in catalogue().values() if it.kind is kind and {*wanted} <= {*it.attributes}]
            if having:
                yield _goal(kind, wanted, rng.choice(having), rng)


def _goal(kind: Kind, wanted: tuple[str, ...], product: Product, rng: random.Random) -> Goal:
    asked = rng.sample(wanted, len(wanted))
    options = {name: rng.choice(values) for name, values in product.options.items()}
    if rng.random() < 0.5:  # half of the instructions leave the size open
        del options["size"]
    limit = 10 * (product.price // 10 + rng.choice((1, 2)))
    return Goal(kind.name, tuple(asked), options, limit, product.id, rng.randrange(len(TEMPLATES)))
