"""Gather materials and make things out of them until the thing that is wanted has been made.

Kind: chains of subgoals. Horizon: 16. Hard: eleven actions are always offered, most of them useless or impossible, and
what is missing depends on what is there; the expert reaches 100 %.
"""

from __future__ import annotations

import random

from reflectrl import NatLangEnv, Observation, Outcome, Task

# What an action makes, and what it uses up; tools are needed, but kept.
ACTIONS = {
    "chop wood": ("wood", ()),
    "pick stone": ("stone", ()),
    "shear wool": ("wool", ()),
    "saw plank": ("plank", ("wood",)),
    "carve stick": ("stick", ("plank",)),
    "make pickaxe": ("pickaxe", ("stick", "stone")),
    "mine iron": ("iron", ("pickaxe",)),
    "spin thread": ("thread", ("wool",)),
    "make bow": ("bow", ("stick", "thread")),
    "make bed": ("bed", ("plank", "wool")),
    "forge sword": ("sword", ("iron", "stick")),
}
TOOLS = ("pickaxe",)
MADE_BY = {made: action for action, (made, _) in ACTIONS.items()}
GOALS = ("pickaxe", "iron", "bow", "bed", "sword")


class Crafting(NatLangEnv):
    """The wanted thing brings 1; what cannot be done costs 0.05."""

    name = "crafting"
    instructions = "Make the thing that is wanted."
    max_actions = len(ACTIONS)

    def __init__(self) -> None:
        super().__init__(horizon=16)
        rng, every = random.Random(5), {}
        while len(every) < 220:
            goal = rng.choice(GOALS)
            others = [thing for thing in MADE_BY if thing not in (goal, "sword")]
            bag = sorted(rng.sample(others, rng.choice((0, 1, 2))))
            every["-".join((goal, *bag))] = {"goal": goal, "bag": bag}
        tasks = [Task(name, options) for name, options in every.items()]
        self._splits = {"train": tasks[:130], "validation": tasks[130:160], "test": tasks[160:]}

    def tasks(self, split: str) -> list[Task]:
        return self._splits[split]

    def start(self, task: Task) -> None:
        self.goal: str = task.options["goal"]
        self.bag: list[str] = list(task.options["bag"])

    def observe(self) -> Observation:
        return Observation(
            f"Wanted: {self.goal}. You have: {', '.join(sorted(self.bag)) or 'nothing'}.", tuple(ACTIONS)
        )

    def act(self, action: str) -> Outcome:
        made, used = ACTIONS[action]
        if made in self.bag or any(thing not in self.bag for thing in used):
            return Outcome(-0.05, illegal=True)
        self.bag = [thing for thing in self.bag if thing not in used or thing in TOOLS] + [made]
        done = made == self.goal
        return Outcome(float(done), ended=done, success=done)

    def expert(self) -> str:
        return self._towards(self.goal)

    def reflection(self) -> str:
        made, used = ACTIONS[self._towards(self.goal)]
        return f"Next comes {made}" + (f", out of {' and '.join(used)}." if used else ".")

    def _towards(self, thing: str) -> str:
        action = MADE_BY[thing]
        missing = [part for part in ACTIONS[action][1] if part not in self.bag]
        return self._towards(missing[0]) if missing else action
