"""A doctor's practice: ask about a patient, then decide; there is no expert.

Kind: dialogue, hidden cause, no teacher. Horizon: 6. Hard: asking has to be discovered, since it costs at once and pays
only if both questions that matter are asked and the answers understood; random play reaches 25 %.
"""

from __future__ import annotations

import itertools

from reflectrl import NatLangEnv, Observation, Outcome, Task

QUESTIONS = ("fever", "rash", "cough", "headache")
# By fever and rash; the other two questions say nothing.
TREATMENTS = {
    "treat measles": (True, True),
    "treat flu": (True, False),
    "treat allergy": (False, True),
    "send home": (False, False),
}
PATIENTS = {"train": "ABCDEFGH", "validation": "IJ", "test": "KLMN"}


class TriageFree(NatLangEnv):
    """A question costs 0.05, the right treatment brings 1, a wrong one costs 0.5."""

    name = "triage_free"
    instructions = "Find out what the patient has, then treat it."
    max_actions = len(QUESTIONS) + len(TREATMENTS)

    def __init__(self) -> None:
        super().__init__(horizon=6)

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(f"{patient}-{number}", {"signs": dict(zip(QUESTIONS, signs, strict=True))})
            for patient in PATIENTS[split]
            for number, signs in enumerate(itertools.product((True, False), repeat=4))
        ]

    def start(self, task: Task) -> None:
        self.signs: dict[str, bool] = task.options["signs"]
        self.asked: list[str] = []

    def observe(self) -> Observation:
        known = [f"{sign}: {'yes' if self.signs[sign] else 'no'}." for sign in self.asked]
        questions = (f"ask about {sign}" for sign in QUESTIONS if sign not in self.asked)
        return Observation(" ".join(["A patient is here.", *known]), (*questions, *TREATMENTS))

    def act(self, action: str) -> Outcome:
        if action not in TREATMENTS:
            self.asked.append(action.removeprefix("ask about "))
            return Outcome(-0.05)
        right = TREATMENTS[action] == (self.signs["fever"], self.signs["rash"])
        return Outcome(1.0 if right else -0.5, ended=True, success=right)
