"""``State``: the open page of the shop, as text and as a menu, and the transition by an action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from reflectrl.envs.shop.catalogue import Goal, Product, score, search

A_PAGE = 5
"""Number of results on a page."""
SEARCH, OPEN, CHOOSE = "search ", "open ", "choose "
NEXT, PREVIOUS = "next page", "previous page"
TO_SEARCH, TO_RESULTS = "back to search", "back to results"
READ = {"description": "read the description", "features": "read the features"}
BUY = "buy now"


@dataclass(frozen=True)
class State:
    """The open page and what was opened before."""

    goal: Goal
    query: str = ""
    """Query of the search; empty on the search page."""
    page: int = 0
    """Number of the page of results, from 0."""
    product: Product | None = None
    """The product whose page is open."""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Chosen values of the open product, by option."""
    opened: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Parts that were read of each opened product, by id."""
    bought: bool = False

    @property
    def results(self) -> tuple[Product, ...]:
        """Products on the page of results."""
        return search(self.query)[self.page * A_PAGE : (self.page + 1) * A_PAGE]

    @property
    def pages(self) -> int:
        """Number of pages of results."""
        return -(-len(search(self.query)) // A_PAGE)

    @property
    def score(self) -> float:
        """Score of the purchase, from 0 to 1; 0 before the purchase."""
        return score(self.product, self.chosen, self.goal) if self.bought and self.product else 0.0

    @property
    def read(self) -> frozenset[str]:
        """Parts of the open product that were read."""
        return self.opened[self.product.id] if self.product else frozenset()


def menu(state: State) -> tuple[str, ...]:
    """Return the legal actions."""
    if state.bought:
        return ()
    if state.product is not None:
        values = [value for values in state.product.options.values() for value in values]
        choices = (CHOOSE + value for value in values if value not in state.chosen.values())
        unread = (action for part, action in READ.items() if part not in state.read)
        return (*choices, *unread, TO_RESULTS, TO_SEARCH, BUY)
    if not state.query:
        return tuple(SEARCH + query for query in state.goal.queries)
    opening = (f"{OPEN}{number}" for number in range(1, len(state.results) + 1))
    turning = (NEXT,) * (state.page + 1 < state.pages) + (PREVIOUS,) * (state.page > 0)
    return (*opening, *turning, TO_SEARCH)


def after(state: State, action: str) -> State:
    """Return the state to which a legal action leads."""
    if action.startswith(SEARCH):
        return replace(state, query=action.removeprefix(SEARCH), page=0)
    if action.startswith(OPEN):
        product = state.results[int(action.removeprefix(OPEN)) - 1]
        opened = {product.id: frozenset[str](), **state.opened}
        return replace(state, product=product, chosen={}, opened=opened)
    if action in (NEXT, PREVIOUS):
        return replace(state, page=state.page + (1 if action == NEXT else -1))
    if action == TO_SEARCH:
        return replace(state, query="", product=None)
    if action == TO_RESULTS:
        return replace(state, product=None)
    if action == BUY:
        return replace(state, bought=True)
    return _on_product(state, action)


def _on_product(state: State, action: str) -> State:
    product = state.product
    assert product is not None  # noqa: S101 - the menu offers these actions only on a product's page
    if action.startswith(CHOOSE):
        value = action.removeprefix(CHOOSE)
        option = next(name for name, values in product.options.items() if value in values)
        return replace(state, chosen={**state.chosen, option: value})
    part = next(part for part, label in READ.items() if label == action)
    return replace(state, opened={**state.opened, product.id: state.read | {part}})


def text(state: State) -> str:
    """Describe the open page in words."""
    if state.bought:
        return "Thank you for your order."  # its score is the reward, which no rater may see
    if state.product is not None:
        return _product_text(state.product, state)
    if not state.query:
        return "Search page."
    lines = [f"Results for {state.query}, page {state.page + 1} of {state.pages}:"]
    for number, product in enumerate(state.results, start=1):
        opened = " (opened before)" if product.id in state.opened else ""
        lines.append(f"{number}: {product.title}, ${product.price}{opened}")
    return "\n".join(lines)


def _product_text(product: Product, state: State) -> str:
    lines = [f"{product.title}, ${product.price}."]
    lines += [f"{name}: {', '.join(values)}." for name, values in product.options.items()]
    if "description" in state.read:
        lines.append(product.description)
    if "features" in state.read:
        lines.append(f"Features: {product.features}.")
    lines.append(f"Chosen: {', '.join(state.chosen.values()) or 'nothing'}.")
    return "\n".join(lines)
