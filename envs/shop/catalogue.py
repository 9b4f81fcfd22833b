"""``Product`` and the catalogue of products, made from the words of ``KINDS`` with a fixed seed, and its search.

``Goal`` is what to buy, in words, with the score of a purchase and the queries that its words suggest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, combinations

from reflectrl.envs.auto_explore.bm25 import BM25

COLORS = ("black", "white", "red", "blue", "green")
SCENTS = ("rose", "lavender", "citrus", "almond", "vanilla")
SIZES = ("small", "medium", "large")
PRICES = (20, 79)
"""Lowest and highest price, in dollars."""
BRANDS = (
    ("Aldermoor", "Brindlow", "Corvane", "Dunmere", "Elkhorn", "Fennick"),
    ("Garrowby", "Hollinside", "Ivarre", "Jessamine", "Kestrow", "Lindqual"),
)
"""Invented brands of the first and the second kind in each pair of neighbours."""


@dataclass(frozen=True)
class Kind:
    """One kind of product."""

    department: str
    name: str
    """Two nouns, the last of which is shared with a neighbour."""
    parts: tuple[str, ...]
    """Two more nouns in each title."""
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    """All values by option; a product comes in some of them."""
    brands: tuple[str, ...]

    @property
    def nouns(self) -> frozenset[str]:
        """Nouns in every title of the kind."""
        return frozenset((*self.name.split(), *self.parts))


_PAIRS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "home": (
        ("desk lamp", "arm clamp", "dimmable foldable cordless adjustable wooden modern compact rechargeable"),
        ("floor lamp", "shade tripod", "dimmable wooden adjustable modern slim rustic tall sturdy"),
        ("wall clock", "pendulum frame", "silent wooden modern rustic round luminous unbreakable waterproof"),
        ("alarm clock", "button speaker", "silent digital luminous compact rechargeable wooden modern vibrating"),
    ),
    "kitchen": (
        ("frying pan", "handle lid", "nonstick lightweight ceramic ovenproof deep stackable scratchproof uncoated"),
        ("baking pan", "rack rim", "nonstick ceramic ovenproof stackable deep lightweight foldable scratchproof"),
        ("water bottle", "straw loop", "insulated leakproof lightweight foldable shatterproof slim odorless stackable"),
        ("baby bottle", "teat brush", "insulated leakproof lightweight shatterproof odorless soft washable ergonomic"),
    ),
    "clothing": (
        ("rain jacket", "hood zipper", "waterproof lightweight breathable packable windproof lined washable warm"),
        ("running jacket", "pocket collar", "lightweight breathable windproof stretchy packable slim washable hooded"),
        ("hiking backpack", "belt whistle", "waterproof lightweight breathable foldable padded ergonomic tall sturdy"),
        ("laptop backpack", "sleeve lock", "waterproof slim padded expandable lightweight ergonomic reflective modern"),
    ),
    "textiles": (
        ("yoga mat", "strap bag", "nonslip thick foldable washable odorless lightweight natural cushioned"),
        ("bath mat", "backing fringe", "nonslip thick washable absorbent soft natural quilted cushioned"),
        ("throw blanket", "tassel border", "soft thick washable warm knitted lightweight reversible natural"),
        ("picnic blanket", "buckle pouch", "waterproof foldable washable soft lightweight reversible thick padded"),
    ),
    "furniture": (
        ("office chair", "armrest wheel", "ergonomic adjustable breathable padded foldable swiveling sturdy modern"),
        ("camping chair", "cupholder footrest", "foldable lightweight sturdy padded breathable tall compact washable"),
        ("dog bed", "cushion bolster", "washable waterproof soft orthopedic foldable chewproof warm nonslip"),
        ("cat bed", "roof toy", "washable soft warm foldable round nonslip hooded natural"),
    ),
    "everyday": (
        ("face cream", "pump spatula", "vegan organic hydrating soothing lightweight unrefined natural refreshing"),
        ("hand cream", "tube cap", "vegan organic hydrating soothing natural refreshing protective unrefined"),
        ("phone case", "ring stand", "slim shockproof transparent magnetic waterproof washable lightweight ribbed"),
        ("guitar case", "latch lining", "padded waterproof lightweight lockable shockproof sturdy slim breathable"),
    ),
}


def _kind(department: str, name: str, parts: str, attributes: str, brands: tuple[str, ...]) -> Kind:
    look = {"scent": SCENTS} if name.endswith("cream") else {"color": COLORS}
    return Kind(department, name, tuple(parts.split()), tuple(attributes.split()), {**look, "size": SIZES}, brands)


KINDS = tuple(
    _kind(department, *row, brands=BRANDS[place % 2])
    for department, rows in _PAIRS.items()
    for place, row in enumerate(rows)
)
"""All kinds, in hand-written words, in pairs of neighbours that share the last word of their names. No two kinds share
another noun, brands included, so the words of a title show how close a product is."""


OF_A_KIND = 48
MAX_RESULTS = 50
"""Maximum number of products that a search finds, as in WebShop."""


@dataclass(frozen=True, eq=False)
class Product:
    """A product of the shop."""

    id: str
    kind: Kind
    brand: str
    attributes: tuple[str, ...]
    """Four attributes of the kind; the title shows the first two, the description the third, the features all."""
    options: Mapping[str, tuple[str, ...]]
    price: int
    """Price in dollars."""

    @property
    def title(self) -> str:
        """Brand, two attributes, name and parts of the product."""
        shown = " ".join(self.attributes[:2])
        return f"{self.brand} {shown} {self.kind.name} with {' and '.join(self.kind.parts)}"

    @property
    def description(self) -> str:
        """Sentence with a third attribute."""
        return f"{self.brand} makes this {self.attributes[2]} {self.kind.name} with care."

    @property
    def features(self) -> str:
        """All attributes in alphabetical order."""
        return ", ".join(sorted(self.attributes))

    @property
    def nouns(self) -> frozenset[str]:
        """Nouns in the title."""
        return self.kind.nouns | {self.brand}


def _products() -> Iterator[Product]:
    rng = random.Random(0)
    for number in range(OF_A_KIND * len(KINDS)):
        kind = KINDS[number // OF_A_KIND]
        yield Product(
            id=f"p{number}",
            kind=kind,
            brand=rng.choice(kind.brands),
            attributes=tuple(rng.sample(kind.attributes, 4)),
            # half of the values, rounded up, in their order
            options={
                name: tuple(sorted(rng.sample(values, (len(values) + 1) // 2), key=values.index))
                for name, values in kind.options.items()
            },
            price=rng.randint(*PRICES),
        )


@cache
def catalogue() -> Mapping[str, Product]:
    """Return all products by id, the same in every process."""
    return {product.id: product for product in _products()}


@cache
def _index() -> BM25:
    """Return the index over the titles; other properties of a product can only be read on its page."""
    return BM25({id: product.title for id, product in catalogue().items()})


@lru_cache(maxsize=4096)
def search(query: str) -> tuple[Product, ...]:
    """Return the products whose titles hold words of ``query``, best first."""
    return tuple(catalogue()[id] for id in _index().holding(query.split())[:MAX_RESULTS])


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
