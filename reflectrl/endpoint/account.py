"""What calls to chat endpoints come to: tokens, money, and the limit on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reflectrl.core import InvalidInput, WorkFailed

BATCH_DISCOUNT = 0.5
"""Fraction of the price that OpenAI asks for replies of its Batch mode."""


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens; the fields are those of the recipe's price section."""

    prompt: float
    completion: float
    cached: float | None = None
    """Of a prompt's tokens that the endpoint had in its own cache; ``None`` for the price of the others."""


@dataclass(frozen=True)
class Usage:
    """What calls came to."""

    calls: int = 0
    """Requests sent, repeated ones included."""
    retries: int = 0
    """How many of them were repetitions."""
    kept: int = 0
    """Replies that an earlier process had paid for, or another call of this one."""
    rejected: int = 0
    """Calls that were set aside without a usable reply."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """How many of them the endpoint had in its own cache."""
    completion_tokens: int = 0
    cost: float = 0.0
    """US dollars, as far as prices are known."""
    cut: int = 0
    """Replies that ``max_tokens`` ended before their end, and that were asked for again."""

    def sentence(self, spent: float) -> str:
        """For the person who pays; ``spent`` dollars are all that was ever spent in the folder."""
        told = [f"{self.calls:,} sent"]
        told += [
            f"{count:,} {what}" for count, what in ((self.retries, "of them again"), (self.kept, "known")) if count
        ]
        told += [f"{self.cut:,} cut off at max_tokens"] * bool(self.cut)
        told += [f"{self.rejected:,} set aside in rejected.jsonl"] * bool(self.rejected)
        tokens = f"{self.prompt_tokens:,} tokens sent and {self.completion_tokens:,} answered"
        cost = f"; {self.cost:.4f} dollars, {spent:.4f} in all" if spent else ""
        return f"{', '.join(told)}; {tokens}{cost}"

    def __add__(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(*(mine + its for mine, its in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True)
class Tokens:
    """Of one reply, as the endpoint counts them; 0 where it does not."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def cost(self, price: Price | None, *, batch: bool = False) -> float:
        """US dollars; 0 without a price."""
        if price is None:
            return 0.0
        cached = price.prompt if price.cached is None else price.cached
        dear = (self.prompt - self.cached) * price.prompt + self.cached * cached + self.completion * price.completion
        return dear / 1e6 * (BATCH_DISCOUNT if batch else 1.0)


class Account:
    """The money of one run folder, spent by several clients.

    Args:
        max_cost: US dollars that may be spent in all, by earlier processes too; ``None`` for no limit.

    Raises:
        InvalidInput: a limit that is not above 0.

    """

    def __init__(self, max_cost: float | None = None) -> None:
        if max_cost is not None and not max_cost > 0:
            raise InvalidInput(f"a cost of at most {max_cost} dollars was given; expected more than 0.")
        self.max_cost = max_cost
        self.spent = 0.0
        """US dollars so far."""
        self._promised = 0.0
        self._under_way = 0

    def count(self, paid: Iterable[tuple[Tokens, bool]], price: Price | None) -> None:
        """Add what earlier processes paid: of each reply its tokens, and whether it came in Batch mode."""
        self.spent += sum(tokens.cost(price, batch=batch) for tokens, batch in paid)

    def divided(self, processes: int) -> Account:
        """The account of one of so many processes, which may each spend an equal part of what is left."""
        part = None if self.max_cost is None else self.spent + (self.max_cost - self.spent) / processes
        account = Account(part)
        account.spent = self.spent
        return account

    def check_price(self, who: str, price: Price | None) -> None:
        """Refuse a limit that could not be kept.

        Raises:
            InvalidInput: there is a limit, and no price for ``who``.

        """
        if self.max_cost is not None and price is None:
            raise InvalidInput(
                f"at most {self.max_cost:g} dollars were allowed, but the price of {who} is not known; set the price "
                "of the endpoint, e.g. data.endpoint.price={prompt: 2.5, completion: 10}, in dollars a million tokens, "
                "or 0 for a server of your own."
            )

    def tight(self, most: float) -> bool:
        """Whether there is money for a call, but perhaps not for those under way as well: wait for what they cost."""
        if self.max_cost is None or not self._under_way:
            return False
        return self.spent + most <= self.max_cost < self.spent + self._promised + most

    def promise(self, most: float) -> None:
        """A call is about to be sent that costs ``most`` dollars at worst.

        Raises:
            WorkFailed: the limit might be passed by it.

        """
        if self.max_cost is not None and self.spent + self._promised + most > self.max_cost:
            raise WorkFailed(
                f"{self.spent:.4f} of at most {self.max_cost:g} dollars are spent, and the next call might pass the "
                "limit; what is paid for is kept: allow more with --max-cost, and the same command goes on."
            )
        self._promised += most
        self._under_way += 1

    def settle(self, most: float, cost: float) -> None:
        """A promised call has ended and cost ``cost`` dollars."""
        self._under_way -= 1
        self._promised = self._promised - most if self._under_way else 0.0  # sums of fractions leave crumbs
        self.spent += cost
