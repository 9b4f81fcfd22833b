"""``GymCards``: the card games of RL4VLM (arXiv 2405.10292) as one environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Reading, Task, nearest
from reflectrl.core.drawing import need_pillow
from reflectrl.envs.gym_cards.blackjack import Blackjack
from reflectrl.envs.gym_cards.game import Game, draw
from reflectrl.envs.gym_cards.number_line import NumberLine
from reflectrl.envs.gym_cards.points import EZPoints, Points24

GAMES: dict[str, Callable[[], Game]] = {
    "number_line": NumberLine,
    "ez_points": EZPoints,
    "points24": Points24,
    "blackjack": Blackjack,
}
MENUS = ("legal", "all")
ENDS = ("rules", "penalty", "unsolvable")
OBSERVATIONS = ("text", "image", "both")


@cache
def _splits(game: str) -> Mapping[str, tuple[Task, ...]]:
    return GAMES[game]().splits()


class GymCards(NatLangEnv):
    """The four card games of RL4VLM (arXiv 2405.10292) and GTR (arXiv 2503.08525), in words or in pictures.

    - ``number_line``: walk from one number of 0 to 5 to another by ``-`` and ``+``, in 10 steps. +1 on the target, -1
      for a move that leads no nearer.
    - ``ez_points``: write a formula of two cards that equals 12, from 1 to 10, ``+``, ``*`` and ``=``. +10 for ``=``
      after a right formula, -1 for any other ``=`` and for a number that no unused card has; the 7th step ends it.
    - ``points24``: the same with four cards and 24, also with ``-``, ``/``, ``(`` and ``)``; the 22nd step ends it.
    - ``blackjack``: gymnasium's own engine, with ``stand`` and ``hit``. +1 for a win, -1 for a loss.

    An episode is a success if its rewards add up to more than 0, so one wrong move loses ``number_line``. No two splits
    share a deal, in whatever order its cards come. The expert works out with exact fractions whether the target can
    still be reached; in ``blackjack`` it plays for the highest expected reward, and knows only the open cards.

    Unlike the authors' games: values are exact, digits side by side do not make a number, ``points24`` deals only hands
    with a solution, cards have no suits, and all randomness comes from the episode's seed.

    Args:
        game: ``number_line``, ``ez_points``, ``points24`` or ``blackjack``.
        observation: the state as ``text``, as an ``image`` of 300 by 300 pixels without any text, or ``both``.
        menu: ``legal`` shows what the rules allow; ``all`` shows all actions of the paper, and illegal ones get the
            paper's penalty.
        ends: with ``rules``, an episode ends by the rules of the game; with ``penalty``, also at the first reward of
            -1, as in GTR's code; with ``unsolvable``, also with a reward of -1 when nothing that could
            follow wins, however long it gets.

    Raises:
        InvalidInput: a value that is none of these, or pictures without Pillow.
    """

    name = "gym_cards"

    def __init__(self, game: str, observation: str = "text", menu: str = "legal", ends: str = "rules") -> None:
        for option, value, known in (
            ("game", game, GAMES),
            ("observation", observation, OBSERVATIONS),
            ("menu", menu, MENUS),
            ("ends", ends, ENDS),
        ):
            if value not in known:
                raise InvalidInput(f"{option}={value!r} of {self.name!r} is unknown; {nearest(str(value), known)}")
        if observation != "text":
            need_pillow(f"pictures of {self.name}", "play with observation=text")
        self._game = GAMES[game]()
        super().__init__(self._game.horizon)
        self.game = game
        self.instructions = self._game.instructions
        self.max_actions = len(self._game.actions)
        self._shows_text, self._shows_image = observation != "image", observation != "text"
        self._shows_all = menu == "all"
        self._ends = ENDS[: ENDS.index(ends) + 1]
        self._splits = _splits(game)
        self._tasks = {task.id: task for tasks in self._splits.values() for task in tasks}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the deals of a split, in a fixed shuffled order."""
        return self._splits[split]

    def start(self, task: Task) -> None:
        if self._tasks.get(task.id) != task:
            raise InvalidInput(
                f"task {task.id!r} is not a deal of {self.game!r} of {self.name!r}; use env.tasks(split)."
            )
        self._game.deal(task, self.np_random)
        self._total = 0.0

    def observe(self) -> Observation:
        game = self._game
        return Observation(
            game.text() if self._shows_text else "",
            game.actions if self._shows_all else game.legal(),
            images=(draw(game.sketch()),) if self._shows_image else (),
            common=game.actions if self._shows_all else game.common(),
        )

    def act(self, action: str) -> Outcome:
        outcome = self._game.play(action, self.np_random)
        if "penalty" in self._ends and outcome.reward < 0:
            outcome = replace(outcome, ended=True)
        elif "unsolvable" in self._ends and not outcome.ended and not self._game.is_hopeful:
            outcome = replace(outcome, reward=-1.0, ended=True)
        self._total += outcome.reward
        return replace(outcome, success=outcome.ended and self._total > 0)

    def expert(self) -> str | None:
        """Return the best action: it reaches each goal, and has the highest expected reward in Blackjack."""
        return self._game.best()

    def spoiler(self) -> str | None:
        """Return a complete solution, and the best action."""
        action = self.expert()
        return None if action is None else f"{self._game.standing()} The best next action is: {action}"

    def reflection(self) -> str | None:
        standing = self._game.standing()
        if self.last_action is None:
            return standing
        return f"{'Mistake' if self.mistaken() else 'Good'}. {standing}"

    def read_thought(self, thought: str) -> Reading:
        """Judge a thought's statement on the state: the side of the target, a formula, or totals."""
        return self._game.read(thought)

    def mistaken(self) -> bool | None:
        return None if self.last_action is None else self._game.mistaken()
