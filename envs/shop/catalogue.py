"""``Product`` and the catalogue of products, made from the words of ``kinds`` with a fixed seed, and its search."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from reflectrl.envs.auto_explore.bm25 import BM25
from reflectrl.envs.shop.kinds import KINDS, PRICES, Kind

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
