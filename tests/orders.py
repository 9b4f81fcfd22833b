"""``Orders``: an environment without menus. It takes any text, and asks for an order to be said in two words."""

from __future__ import annotations

from reflectrl import NatLangEnv, Observation, Outcome, Task

COLOURS, THINGS = ("red", "blue", "green", "white"), ("cat", "dog", "bird", "fish")
EVERY = [(colour, thing) for colour in COLOURS for thing in THINGS]


class Orders(NatLangEnv):
    """The right two words bring 1, other known words 0, and anything else a message and a penalty."""

    name = "orders"
    instructions = "Say what is wanted: a colour and an animal."
    max_actions = 0

    def __init__(self, horizon: int = 2) -> None:
        super().__init__(horizon)

    def tasks(self, split: str) -> list[Task]:
        chosen = {"train": EVERY[::2], "validation": EVERY[1::4], "test": EVERY[3::4]}[split]
        return [Task(" ".join(words), {"words": list(words)}) for words in chosen]

    def start(self, task: Task) -> None:
        self.wanted: str = " ".join(task.options["words"])
        self.unknown = ""

    def observe(self) -> Observation:
        said = f" Nobody knows {self.unknown!r}." if self.unknown else ""
        return Observation(f"Wanted: the {self.wanted}.{said}")

    def act(self, action: str) -> Outcome:
        known = action.split()[:1] != [] and action.split()[0] in COLOURS
        self.unknown = "" if known else action[:20]
        done = action == self.wanted
        return Outcome(float(done) if known else -0.1, ended=done, success=done, illegal=not known)

    def expert(self) -> str:
        return self.wanted
