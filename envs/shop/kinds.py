"""``Kind``: the kinds of products, in hand-written words. Neighbours in ``KINDS`` share the last word of their names.

No two kinds share another noun, brands included, so the words of a title show how close a product is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
"""All kinds, in pairs of neighbours."""
