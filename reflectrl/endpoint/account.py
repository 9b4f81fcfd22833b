"""Tokens and cost of calls to chat endpoints, and the budget of a run folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.settings import NonNegative, settings

T = TypeVar("T")

BATCH_DISCOUNT = 0.5
"""Price of a reply in OpenAI's Batch mode as a fraction of the ordinary price."""


@settings()
class Price:
    """Price of an endpoint, in US dollars per million tokens."""

    prompt: NonNegative
    """US dollars per million prompt tokens."""
    completion: NonNegative
    """US dollars per million completion tokens."""
    cached: NonNegative | None = None
    """US dollars per million cached prompt tokens; absent: the same as ``prompt``."""


@dataclass(frozen=True)
class Usage:
    """Calls, tokens and cost of one client."""

    calls: int = 0
    """Requests sent, repeated ones included."""
    retries: int = 0
    """Requests that repeated an earlier one or asked for a correction of its reply."""
    kept: int = 0
    """Replies taken from an earlier process, or from an equal call of this process."""
    rejected: int = 0
    """Calls given up without a usable reply."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the endpoint had in its own cache."""
    completion_tokens: int = 0
    cost: float = 0.0
    """Cost in USD; 0 without a price."""
    cut: int = 0
    """Replies that ``max_tokens`` truncated, and that were requested again."""
    lenient: int = 0
    """Replies that were read leniently: a label in other words, or the whole sentences before ``max_tokens``."""
    unanswered: int = 0
    """Requests that got no reply but may have been charged; ``cost`` has the most that they may cost."""

    def sentence(self, spent: float) -> str:
        """Return a summary for the terminal; ``spent`` is the total cost of the run folder so far, in USD."""
        parts = (
            (self.retries, "of them again"),
            (self.kept, "known"),
            (self.cut, "cut off at max_tokens"),
            (self.lenient, "read leniently"),
            (self.unanswered, "without a reply"),
            (self.rejected, "set aside in rejected.jsonl"),
        )
        counts = ", ".join([f"{self.calls:,} sent", *(f"{count:,} {what}" for count, what in parts if count)])
        tokens = f"{self.prompt_tokens:,} tokens sent and {self.completion_tokens:,} received"
        cost = f"; {self.cost:.4f} dollars, {spent:.4f} in all" if spent else ""
        return f"{counts}; {tokens}{cost}"

    def __add__(self, other: Usage) -> Usage:
        """Return the sum of two usages, field by field."""
        return Usage(*(mine + its for mine, its in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True)
class Tokens:
    """Token counts of one reply, as the endpoint reports them; 0 where it does not."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def cost(self, price: Price | None, *, batch: bool = False) -> float:
        """Return the cost in USD; 0 without a price."""
        if price is None:
            return 0.0
        cached = price.prompt if price.cached is None else price.cached
        full = (self.prompt - self.cached) * price.prompt + self.cached * cached + self.completion * price.completion
        return full / 1e6 * (BATCH_DISCOUNT if batch else 1.0)


def of_role(known: Mapping[str, T], folder: str) -> T | None:
    """Return the entry of the role whose journal has this name; processes of a launch but the first add their rank."""
    return known.get(folder, known.get(folder.partition("-")[0]))


class Account:
    """Budget of one run folder, shared by several clients.

    Args:
        max_cost: limit in USD on the total spending, earlier processes included; ``None`` for no limit.
        keys: dotted keys of the endpoints in the recipe by role, for messages.

    Raises:
        InvalidInput: the limit is not above 0.
    """

    def __init__(self, max_cost: float | None = None, keys: Mapping[str, str] = MappingProxyType({})) -> None:
        if max_cost is not None and not max_cost > 0:
            raise InvalidInput(f"a limit of {max_cost} dollars was given; expected more than 0.")
        self.max_cost = max_cost
        self._keys = keys
        self.spent = 0.0
        """USD spent so far."""
        self._reserved = 0.0
        self._in_flight = 0

    def count(self, paid: Iterable[tuple[Tokens, bool]], price: Price | None) -> None:
        """Add the cost of earlier processes: the tokens of each, and whether they were used in Batch mode."""
        self.spent += sum(tokens.cost(price, batch=batch) for tokens, batch in paid)

    def divided(self, processes: int) -> Account:
        """Return the account of one of ``processes`` processes, with an equal part of the remaining budget."""
        part = None if self.max_cost is None else self.spent + (self.max_cost - self.spent) / processes
        account = Account(part, self._keys)
        account.spent = self.spent
        return account

    def check_price(self, who: str, price: Price | None, role: str = "") -> None:
        """Check that a limit can be enforced.

        Raises:
            InvalidInput: a limit is set, but ``who``, the endpoint of ``role``, has no price.
        """
        if self.max_cost is not None and price is None:
            raise InvalidInput(
                f"at most {self.max_cost:g} dollars were allowed, but the price of {who} is not known; set its price "
                f"in USD per million tokens, e.g. {of_role(self._keys, role) or 'endpoint'}.price={{prompt: 2.5, "
                "completion: 10}, or 0 for your own server."
            )

    def must_wait(self, call_cost: float) -> bool:
        """Return whether a call fits into the budget only if the calls in flight cost less than reserved."""
        if self.max_cost is None or not self._in_flight:
            return False
        return self.spent + call_cost <= self.max_cost < self.spent + self._reserved + call_cost

    def reserve(self, call_cost: float) -> None:
        """Reserve ``call_cost`` USD for a call that is about to be sent.

        Raises:
            WorkFailed: the call might exceed the limit.
        """
        if self.max_cost is not None and self.spent + self._reserved + call_cost > self.max_cost:
            raise WorkFailed(
                f"{self.spent:.4f} of at most {self.max_cost:g} dollars are spent, and the next call might exceed "
                "the limit; paid replies are kept: raise --max-cost, and the same command continues."
            )
        self._reserved += call_cost
        self._in_flight += 1

    def settle(self, call_cost: float, cost: float) -> None:
        """Replace the reservation ``call_cost`` of a finished call by its real ``cost``, both in USD."""
        self._in_flight -= 1
        self._reserved = self._reserved - call_cost if self._in_flight else 0.0  # no accumulated rounding errors
        self.spent += cost
