"""``Product`` and the catalogue of products, made from the words of ``KINDS`` with a fixed seed, and its search."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

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
"""Number of products of each kind."""
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
