"""``Shop``: buy what an instruction asks for, with WebShop's pages, search and graded reward (arXiv 2207.01206)."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task, nearest
from reflectrl.envs.shop.catalogue import KINDS, catalogue
from reflectrl.envs.shop.expert import HORIZON, goals, outlook, splits
from reflectrl.envs.shop.pages import State, after, menu, text


class Shop(NatLangEnv):
    """Search, open products, choose options, and buy: the purchase ends the episode and is rewarded from 0 to 1.

    A shop like WebShop (arXiv 2207.01206), in text only, with 1,152 products of 24 kinds made from lists of words. An
    instruction asks for a kind of product with attributes, options and a highest price. The search page offers 6 to 8
    queries from words of the instruction; results (BM25 over titles) show five products at a time; a product's page
    shows price and options, and has its description and features to read. Only ``buy now`` is rewarded, with WebShop's
    share of what was asked for, times the match of the type. A success is a reward of 1.

    The expert knows only what the pages have shown, and always succeeds; a random player does in 1 % of the test tasks.
    Test instructions are combinations that no training task asks for. ``shop/nano`` does not learn the task. Do not
    compare numbers with WebShop's: products are made, queries are chosen from a list, and only titles are searched.

    Args:
        department: play only the instructions for the products of one department, such as ``home``; absent: all. The
            search covers all departments.
        horizon: maximum number of steps of an episode, 15 as in RAP (arXiv 2402.03610).

    Raises:
        InvalidInput: a department that the shop does not have.
    """

    name = "shop"
    max_actions = 10
    instructions = (
        "You buy a product in a shop. Search for it, open results, and read on its page what it is like and what it "
        "comes in. Choose the options that you were asked for before you buy. The features list all that a product "
        "is. You can buy once only."
    )

    def __init__(self, department: str | None = None, horizon: int = HORIZON) -> None:
        departments = dict.fromkeys(kind.department for kind in KINDS)
        if department is not None and department not in departments:
            raise InvalidInput(
                f"department={department!r} of {self.name!r} is unknown; {nearest(str(department), departments)}"
            )
        super().__init__(horizon)
        self._splits = {
            split: tuple(task for task in tasks if department in (None, task.group))
            for split, tasks in splits().items()
        }

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the instructions of a split, in a fixed shuffled order."""
        return self._splits[split]

    def benchmark(self, split: str, tasks: int) -> str:  # noqa: ARG002 - the same for all splits
        """Return the label of results, which says that the products are not WebShop's."""
        return f"{len(catalogue()):,} self-generated products"

    def start(self, task: Task) -> None:
        goal = goals().get(task.id)
        if goal is None:
            raise InvalidInput(f"task {task.id!r} is not an instruction of {self.name!r}; use env.tasks(split).")
        self._state = self._before = State(goal)

    def observe(self) -> Observation:
        """Return the open page below the instruction, with its buttons and, on the search page, suggested queries."""
        return Observation(text(self._state), menu(self._state), self._state.goal.instruction)

    def act(self, action: str) -> Outcome:
        self._before, self._state = self._state, after(self._state, action)
        score = self._state.score
        return Outcome(score, ended=self._state.bought, success=score == 1)

    def expert(self) -> str | None:
        """Return the action of a careful customer, from what the pages have shown; ``None`` after the purchase."""
        return next(iter(outlook(self._state).actions), None)

    def reflection(self) -> str | None:
        """Judge the last action and describe the state, from what the pages have shown."""
        standing = outlook(self._state).standing
        if self.last_action is None:
            return standing
        return f"{'Mistake' if self.mistaken() else 'Good'}. {standing}"

    def mistaken(self) -> bool | None:
        """Return whether a careful customer would have acted otherwise."""
        return None if self.last_action is None else self.last_action not in outlook(self._before).actions
