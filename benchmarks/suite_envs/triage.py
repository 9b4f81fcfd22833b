"""A helpdesk: ask a customer up to three questions, then name the cause; the answers stay in the text.

Kind: dialogue, hidden cause. Horizon: 8. Hard: all games begin alike, a wrong diagnosis ends the game, and each cause
needs its own questions; the expert reaches 100 %.
"""

from __future__ import annotations

import itertools

from reflectrl import NatLangEnv, Observation, Outcome, Task

QUESTIONS = {
    "ask about lights": ("The lights of the box are off.", "The lights of the box are on."),
    "ask about cable": ("The cable is loose.", "The cable is firm."),
    "ask about phone": ("The phone works.", "The phone is dead, too."),
    "ask about neighbours": ("The neighbours are offline, too.", "The neighbours are online."),
}
# The first answers that decide; None: either answer.
CAUSES = {
    "send a new box": (0, 1, None, None),
    "have the cable pushed in": (0, 0, None, None),
    "report an outage": (1, None, 1, 0),
    "send a technician": (1, None, 1, 1),
    "restart the computer": (1, None, 0, None),
}
CUSTOMERS = {"train": ("Ada", "Ben", "Cleo", "Dan", "Eve"), "validation": ("Finn", "Gil"), "test": ("Jo", "Kim", "Leo")}


class Triage(NatLangEnv):
    """A question costs 0.05; the right diagnosis brings 1, a wrong one costs 1."""

    name = "triage"
    instructions = "A customer is offline. Ask until you know the cause, then act on it."
    max_actions = 9

    def __init__(self) -> None:
        super().__init__(horizon=8)

    def tasks(self, split: str) -> list[Task]:
        worlds = [(cause, answers) for cause in CAUSES for answers in itertools.product((0, 1), repeat=4)]
        worlds = [(cause, answers) for cause, answers in worlds if _fits(answers, cause)]
        return [
            Task(f"{name}-{''.join(map(str, answers))}", {"cause": cause, "answers": list(answers)})
            for name in CUSTOMERS[split]
            for cause, answers in worlds
        ]

    def start(self, task: Task) -> None:
        self.cause: str = task.options["cause"]
        self.answers = task.options["answers"]
        self.asked: list[str] = []

    def observe(self) -> Observation:
        said = [QUESTIONS[question][self.answers[list(QUESTIONS).index(question)]] for question in self.asked]
        left = tuple(question for question in QUESTIONS if question not in self.asked)
        return Observation(" ".join(["The customer is offline.", *said]), (*left, *CAUSES))

    def act(self, action: str) -> Outcome:
        if action in QUESTIONS:
            self.asked.append(action)
            return Outcome(-0.05)
        right = action == self.cause
        return Outcome(1.0 if right else -1.0, ended=True, success=right)

    def expert(self) -> str:
        known = [a if q in self.asked else None for q, a in zip(QUESTIONS, self.answers, strict=True)]
        needed = (0, 1) if known[0] == 0 else (0, 2, 3) if known[2] != 0 else (0, 2)
        unknown = [list(QUESTIONS)[number] for number in needed if known[number] is None]
        return unknown[0] if unknown else self.cause

    def secrets(self) -> list[str]:
        return [self.cause] if self.expert() in QUESTIONS else []


def _fits(answers: tuple[int, ...], cause: str) -> bool:
    return all(wanted in (None, given) for given, wanted in zip(answers, CAUSES[cause], strict=True))
