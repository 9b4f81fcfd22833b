"""``AlfWorld``: find, clean, heat, cool and place things in a house made of text (section 5 and appendix D.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Reading, Task, nearest
from reflectrl.core.env import Snapshot
from reflectrl.envs.alfworld.catalogue import OWN, full_name, open_catalogue
from reflectrl.envs.alfworld.expert import progress
from reflectrl.envs.alfworld.games import FAMILIES, Game
from reflectrl.envs.alfworld.reflection import NOISE, Moment, Seen, is_mistake, read, reflect
from reflectrl.envs.alfworld.scenes import INSTALL

if TYPE_CHECKING:
    from reflectrl.envs.alfworld.engine import Engine

NOTHING_YET = "You have done nothing yet."
ANYWHERE = ("go", "help", "inventory", "look")
"""Verbs of commands that are nearly always admissible: every "go to", except to the present place."""
ENDS = ("rules", "stuck")
REWARDS = ("win", "progress")
WIN = 50.0
"""Reward for the win in addition to that for progress (GTR, equation 6)."""
STUCK = -3.0
"""Reward of the command that ends the episode of a stuck player, as in GTR's code."""
MAX_COMMANDS, MAX_EQUAL = 40, 4
"""Number of commands, and of equal commands in a row, that a player may give without being stuck."""

T = TypeVar("T")


@dataclass(frozen=True)
class EngineSnapshot(Snapshot):
    """Snapshot of an episode with the engine's own state."""

    now: Moment
    before: Moment | None
    path: tuple[str, ...]
    """Past steps, as shown to the player."""
    ended: bool


class AlfWorld(NatLangEnv):
    """Fulfil a household task with the commands of the real ALFWorld engine.

    Completing the task ends the episode. Ids of tasks begin with the task's family, so a lesson selects
    families by ``tasks: [pick_heat]``. Games are made by seed from ALFWorld's own rules, goals and floor plans, or are
    the published ones. Texts and commands equal those of the stock stack byte for byte. Needs the extra ``alfworld``,
    which installs jericho (GPL-2) and fast-downward-textworld (GPL-3), with g++ and make.

    The expert knows what the texts have shown and nothing else: it searches the places that its reflection names. No
    test game is in training; its floor plans are, if ``scenes`` lists them. Tables of results say "ALFWorld engine,
    self-generated games" or name the published split. Episodes are slow enough for ``env.workers``. Translated games
    are kept in ``~/.cache/reflectrl``.

    Args:
        dataset: ``alfworld:tomato`` (put a tomato in the microwave, as in the paper) or ``alfworld:all`` (six
            families), generated here; ``alfworld:published`` (the downloaded games in ALFWORLD_DATA); or a folder of
            games.
        count: number of games generated for training; validation and test get a quarter of it each. ``None`` is 200.
        seed: seed of the generated games; ``None`` is 0.
        families: the families to play; absent: all families of the dataset.
        scenes: numbers of the floor plans of generated games, the same in all splits; absent: separate floor plans for
            each split.
        households: number of households. In a household, things of one kind are always kept at the same place, in all
            splits. The expert knows the place; no text tells the household, but the task's group, which a memory
            compares, names it. If absent, every game places its things anew, and the expert searches for them.
        horizon: steps of an episode; ``None`` is 15 for the tomato task and 50 for the others.
        noise: keep the commands that change nothing (examine, help, inventory, look) on the menu.
        path: past steps shown in the text, 1 or more, newest last; ``None`` is all of them, as in the paper.
        reward: ``win`` is the engine's score, 1 for the win and 0 otherwise; ``progress`` is the fraction of the task's
            conditions that hold after the step, and 50 more for the win (GTR, equation 6).
        ends: with ``rules``, an episode ends with the win or after ``horizon`` steps; with ``stuck``, also at the fifth
            equal command in a row or at the 41st command, which is rewarded with -3, as in GTR's code.
        menu: maximum number of commands in a menu, "go to" commands included, and so the number of labels. A game that
            offers more commands is refused. ``prompt.labels=letters`` needs a maximum of 52 or less.
    """

    name = "alfworld"
    observable = False
    instructions = (
        "You are in a house and fulfil a task with your hands. Go to furniture to see what is there, open what is "
        "closed, and take one thing at a time. A thing is cleaned at a sinkbasin, heated at a microwave and cooled at "
        "a fridge while you hold it, and seen in the light of a lamp that is on. The task is done when everything is "
        "as it says; use as few steps as you can."
    )

    def __init__(
        self,
        dataset: str = OWN + "tomato",
        count: int | None = None,
        seed: int | None = None,
        families: Sequence[str] | None = None,
        scenes: Sequence[int] | None = None,
        households: int | None = None,
        horizon: int | None = None,
        noise: bool = False,
        path: int | None = None,
        reward: str = "win",
        ends: str = "rules",
        menu: int = 150,
    ) -> None:
        if not isinstance(dataset, str):
            raise InvalidInput(f"dataset={dataset!r} was given to {self.name!r}; expected a folder or name, as text.")
        dataset = full_name(dataset)
        super().__init__((15 if dataset == OWN + "tomato" else 50) if horizon is None else horizon)
        for option, value, least in (
            ("count", count, 1),
            ("seed", seed, 0),
            ("path", path, 1),
            ("households", households, 1),
            ("menu", menu, 2),
        ):
            absent = value is None and option != "menu"
            if not absent and (not isinstance(value, int) or value < least):
                raise InvalidInput(f"{option}={value!r} was given to {self.name!r}; expected {least} or more.")
        for option, chosen, known in (("reward", reward, REWARDS), ("ends", ends, ENDS)):
            if chosen not in known:
                raise InvalidInput(f"{option}={chosen!r} of {self.name!r} is unknown; {nearest(str(chosen), known)}")
        played = FAMILIES if families is None else _listed("families", families, str, "names")
        plans = None if scenes is None else _listed("scenes", scenes, int, "numbers of floor plans")
        self.max_actions = menu
        self._engine = _new_engine()
        self._catalogue = open_catalogue(dataset, count, seed, played, plans, households)
        self._noise = noise
        self._shown = path
        self._rewards_progress, self._stops_stuck = reward == "progress", ends == "stuck"
        self._game: Game | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        return self._catalogue.tasks(split)

    def benchmark(self, split: str, tasks: int) -> str:
        """Return ALFWorld's name of the split for published games, and a label for generated ones."""
        return self._catalogue.benchmark(split, tasks)

    def start(self, task: Task) -> None:
        """Load the game of a task, or restart it if it was the last one.

        Raises:
            InvalidInput: a task of another dataset, or a game that the engine cannot use.
        """
        game = self._catalogue.game(task)
        if game is self._game:
            reply = self._engine.reset()
        else:
            self._game = None  # not restarted if the load fails
            reply = self._engine.load(game)
            self._game = game
        self._room = _room(reply.text)
        self._common = tuple(each for each in self._listed(reply.commands) if each.split()[0] in ANYWHERE)
        known = Seen().read(self._room).knowing(_kept(game, self._engine.names))
        self._now = Moment(game, self._engine.names, self._engine.snapshot(), known)
        self._before: Moment | None = None
        self._path: list[str] = []

    def observe(self) -> Observation:
        """Return the path so far, below the task and the room, with the engine's admissible commands.

        Raises:
            InvalidInput: more commands than a menu may have.
        """
        shown = self._path if self._shown is None else self._path[-self._shown :]
        commands = self._listed(self._now.position.reply.commands)
        if (count := len({*commands, *self._common})) > self.max_actions:
            raise InvalidInput(
                f"{self.task.id!r} offers {count} commands, but menu={self.max_actions}; give {self.name!r} the option "
                f"menu={count} or more."
            )
        stable = f"Your task is to: {self._now.game.goal}.\n{self._room}"
        return Observation("\n".join(shown) or NOTHING_YET, commands, stable, common=self._common)

    def _listed(self, commands: Sequence[str]) -> tuple[str, ...]:
        return tuple(command for command in commands if self._noise or command.split()[0] not in NOISE)

    def act(self, action: str) -> Outcome:
        self._before = self._now
        reply = self._engine.step(action)
        self._now = replace(self._now, position=self._engine.snapshot(), seen=self._now.seen.read(reply.text))
        self._path.append(f"> {action}\n{' '.join(reply.text.split())}")
        if self._stops_stuck and self._is_stuck and not reply.won:
            return Outcome(STUCK, ended=True)
        reward = float(reply.won)
        if self._rewards_progress:
            reward = WIN * reward + progress(self._now.game, self._engine.names, self._now.position)
        return Outcome(reward, ended=reply.won, success=reply.won)

    @property
    def _is_stuck(self) -> bool:
        latest = self._actions[-MAX_EQUAL - 1 :]
        return self.steps > MAX_COMMANDS or (len(latest) > MAX_EQUAL and len({*latest}) == 1)

    def snapshot(self) -> Snapshot:
        plain = super().snapshot()
        return EngineSnapshot(
            plain.task, plain.seed, plain.actions, self._now, self._before, tuple(self._path), self._ended
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot: at once while the engine has not loaded another game, else by a replay."""
        self._begin(snapshot.task, snapshot.seed)
        if not isinstance(snapshot, EngineSnapshot) or not self._engine.knows(snapshot.now.position):
            super().restore(snapshot)
            return
        self._engine.restore(snapshot.now.position)
        self._now = snapshot.now
        self._before = snapshot.before
        self._path = list(snapshot.path)
        self._actions.extend(snapshot.actions)
        self._ended = snapshot.ended
        self._observe()

    def expert(self) -> str | None:
        """Return the best command for a player who knows what the texts have shown; ``None`` when the task is done.

        It is the first command of a shortest plan with the things seen so far. While one is missing, it looks at the
        first place that the reflection names. Hidden facts are used only after all places were searched in vain.
        """
        if (command := self._now.outlook.command) is not None:
            return command
        plan = self._now.plan
        return plan.commands[0] if plan else None

    def reflection(self) -> str | None:
        """Return a judgement of the last command and a description of the state, from what the texts have shown."""
        return reflect(self._now, self.last_action, self._before)

    def read_thought(self, thought: str) -> Reading:
        """Judge a thought's statements on things, places and hands by what the texts have shown."""
        return read(thought, self._now)

    def spoiler(self) -> str | None:
        """Return the next command and the present state, without anything that no text has shown."""
        best = super().spoiler()
        return None if best is None else f"{best}. {self._now.outlook.standing}"

    def mistaken(self) -> bool | None:
        """Return whether the last command brought the player no nearer, by what could be known."""
        if self.last_action is None or self._before is None:
            return None
        return is_mistake(self._now, self.last_action, self._before)

    def secrets(self) -> Sequence[str]:
        """Return the names of the things that no text of the episode has shown."""
        now = self._now
        there = {now.names[thing].strip() for thing, _ in now.position.facts.get("inreceptacle", ())}
        return sorted(there - now.seen.names)


def _listed(option: str, given: Sequence[T], kind: type[T], expected: str) -> tuple[T, ...]:
    if not isinstance(given, list | tuple) or not given or not all(isinstance(one, kind) for one in given):
        raise InvalidInput(f"{option}={given!r} was given to {AlfWorld.name!r}; expected a list of {expected}.")
    return tuple(given)


def _kept(game: Game, names: Mapping[str, str]) -> Iterable[str]:
    """Return the names of the things that the goal is about, whose places the members of a household know."""
    if game.household is None:
        return ()
    kinds = {game.targets["object_target"].lower(), game.targets["toggle_target"].lower()}
    return (name.strip() for name in names.values() if name.strip().rpartition(" ")[0] in kinds)


def _new_engine() -> Engine:
    """Import the engine of the extra; if it is missing, say how to install it."""
    try:
        from reflectrl.envs.alfworld.engine import Engine
    except ImportError as error:
        raise InvalidInput(
            f"environment 'alfworld' needs packages that are not installed ({error}); run {INSTALL}, which compiles "
            "two of them: where g++ or make is missing, run apt-get install build-essential first."
        ) from error
    return Engine()


def _room(intro: str) -> str:
    """Return the engine's first text without its banner and the task, which is shown separately."""
    _, _, rest = intro.partition("\n\n")
    return rest.partition("\n\n")[0] or intro
