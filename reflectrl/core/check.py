"""``check_env``: tests whether an environment has the properties that training relies on; states that look alike."""

from __future__ import annotations

import contextlib
import random
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, SupportsFloat

import gymnasium
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from reflectrl.core.env import NatLangEnv, Recreated
from reflectrl.core.errors import EnvFailed, InvalidInput, called, passes
from reflectrl.core.foreign import message_of
from reflectrl.core.registry import check_constructed
from reflectrl.core.text import counted, holds, shortened, shown
from reflectrl.core.types import SPLITS, Observation, Outcome, Task

COMPARED = 48
"""Maximum number of tasks of a split whose first states are compared: a reset may take a second."""
ODD_TEXTS = ("", "\x07", "\u53f3\u3078", "word " * 20_000)
"""Actions that an environment without menus has to answer: none, a control character, Japanese, 100 kB."""


Key = tuple[str, ...]

REMEDY = (
    "Results on such tasks say little about new states: begin more tasks differently, list them in tasks() so that "
    "those that begin alike are in one split or, if what differs is hidden at first, set observable = False."
)


def spread(tasks: Sequence[Task], most: int = COMPARED) -> list[Task]:
    """Return ``most`` of the tasks at equal distances, or all if they are fewer."""
    count = min(len(tasks), most)
    return [tasks[number * len(tasks) // count] for number in range(count)]


def shared_starts(env: NatLangEnv, most: int = COMPARED) -> list[str]:
    """Return a sentence for each split with tasks that begin like a training task, and one on what to do.

    Up to ``most`` tasks of each split are compared; none of an environment in which equal texts may mean different
    states.
    """
    if not env.observable:
        return []
    trained = spread(env.split_tasks("train"), most)
    known: dict[tuple[Key, Key], str] = {}
    for task in trained:
        known.setdefault(_start(env, task), task.id)
    said = []
    for split in env.splits[1:]:
        tasks = spread(env.any_tasks(split), most)
        alike = [(task.id, known[start]) for task in tasks if (start := _start(env, task)) in known]
        if alike:
            held_out, like = alike[0]
            said.append(
                f"{len(alike)} of {len(tasks)} {split} tasks that were compared begin like one of {len(trained)} "
                f"training tasks, which have {counted(len(known), 'first state')}; {held_out!r} like {like!r}."
            )
    return [*said, REMEDY] if said else []


def _start(env: NatLangEnv, task: Task) -> tuple[Key, Key]:
    """Return what the first state of a task shows, and its menu."""
    env.reset(seed=0, options={"task": task})
    return env.observation.shown, env.observation.actions


@dataclass(frozen=True)
class Ambiguity:
    """Two states with equal texts and menus, different pasts, and different actions of the expert."""

    text: str
    """What both states show."""
    tasks: tuple[str, str]
    """Ids of their tasks."""
    pasts: tuple[tuple[str, ...], tuple[str, ...]]
    """Actions that led to them."""
    actions: tuple[str, str]
    """The expert's actions in them."""
    share: float
    """Fraction of the states played, from 0 to 1, whose text also needs another action."""
    unexplained: float
    """Fraction in which even equal texts and actions since the start do, so that a memory would not help."""
    privileged: float
    """Fraction of the states met with equal pasts in several tasks in which the expert acts differently among them."""

    def __str__(self) -> str:
        """Return a remark for the author of the environment: the finding, an example, and what to do."""
        first, second = (
            f"{action!r} in task {task!r} after {list(past)}"
            for task, past, action in zip(self.tasks, self.pasts, self.actions, strict=True)
        )
        remembered = (
            "Show past states (prompt.history.show=transitions), let the reflector carry notes "
            "(players.reflector.carry=true), or put"
        )
        known = f" In {self.unexplained:.0%}, equal pasts do too: there the expert knows what no player can."
        return (
            f"Equal texts need different actions in {self.share:.0%} of the states played, such as "
            f"{shortened(self.text, 80)!r}: the expert plays {first}, and {second}. "
            f"{remembered if self.share > self.unexplained else 'Put'} what is needed into the text."
            f"{known if self.unexplained else ''}"
        )


@dataclass(frozen=True)
class _Visit:
    task: Task
    past: tuple[str, ...]
    text: str
    shown: tuple[Key, Key]
    """What the state shows, and its menu."""
    history: tuple[Key, ...]
    """What the states before it showed, and the actions chosen in them."""
    action: str
    """The expert's."""


def ambiguous_states(env: NatLangEnv, *, episodes: int, seed: int) -> Ambiguity | None:
    """Play ``env`` and look for states that show the same after different pasts, but need different actions.

    Args:
        env: an environment with an expert; its episode is replaced.
        episodes: number of training tasks, drawn with ``seed``, each played by the expert, at random, and by both in
            turns.
        seed: seed of tasks, episodes and random actions.

    Returns:
        An example and how frequent such states are; ``None`` if there is none, or no expert.

    Raises:
        EnvFailed: the environment failed.
    """
    rng = random.Random(f"{seed} ambiguous states")
    tasks = list(env.split_tasks("train"))
    visits = [
        visit
        for task in rng.sample(tasks, min(episodes, len(tasks)))
        for noise in (0.0, 0.5, 1.0)
        for visit in _played(env, task, rng, noise)
    ]
    groups: dict[tuple[Key, Key], list[_Visit]] = defaultdict(list)
    for visit in visits:
        groups[visit.shown].append(visit)
    example: dict[bool, tuple[_Visit, _Visit]] = {}  # of states in which the past tells more, or does not
    unclear, unexplained, met, privileged = 0, 0, 0, 0
    for group in groups.values():
        alike: dict[tuple[Key, ...], list[_Visit]] = defaultdict(list)
        for visit in group:
            alike[visit.history].append(visit)
        split = {past: len({visit.action for visit in same}) > 1 for past, same in alike.items()}
        for past, same in alike.items():
            if len({visit.task.id for visit in same}) > 1:
                met, privileged = met + len(same), privileged + len(same) * split[past]
        if len({visit.action for visit in group}) == 1:
            continue
        unclear += len(group)
        unexplained += sum(split[visit.history] for visit in group)
        for known in (True, False):
            same = [visit for visit in group if split[visit.history] != known]
            other = next((visit for visit in same if visit.action != same[0].action), None)
            if other is not None:
                example.setdefault(known, (same[0], other))
    if not example:
        return None
    one, two = example.get(True) or example[False]
    return Ambiguity(
        one.text,
        (one.task.id, two.task.id),
        (one.past, two.past),
        (one.action, two.action),
        unclear / len(visits),
        unexplained / len(visits),
        privileged / max(met, 1),
    )


def _played(env: NatLangEnv, task: Task, rng: random.Random, noise: float) -> Iterator[_Visit]:
    """Play an episode with random actions at the rate ``noise``, up to a state in which the expert says nothing."""
    env.reset(seed=rng.randrange(2**31), options={"task": task})
    past: tuple[str, ...] = ()
    history: tuple[Key, ...] = ()
    over = False
    while not over and (action := env.hints().action) is not None:
        here = env.observation
        yield _Visit(task, past, here.full_text, (here.shown, here.actions), history, action)
        played = rng.choice(here.tries) if rng.random() < noise else action
        _, _, terminated, truncated, _ = env.step(played)
        past, history, over = (*past, played), (*history, here.shown, (played,)), terminated or truncated


PASTS = 4
"""Number of tasks played to find equal texts that need different actions, for each episode played of a split."""
STARTS = 16
"""Number of tasks of each split whose first states are compared, for each episode played of it."""
SLOW = 0.2
"""Seconds of a processor that it may take to make an environment."""


def _need(ok: bool, sentence: str) -> None:
    if not ok:
        raise InvalidInput(sentence)


def _check_author(env: NatLangEnv) -> None:
    _need(bool(env.name), f"{type(env).__name__} has no name; set the class attribute name.")
    check_constructed(env)
    _need(env.horizon >= 1, f"{env.name}: horizon is {env.horizon}; expected 1 or more steps.")
    _need(isinstance(env.instructions, str), f"{env.name}: instructions are {env.instructions!r}; expected a text.")
    _need(
        type(env.max_actions) is int and env.max_actions >= 0,
        f"{env.name}: max_actions is {env.max_actions!r}; expected the length of the longest menu, or 0 if the "
        "environment takes any text.",
    )
    further = env.further_splits
    _need(
        isinstance(further, tuple)
        and all(isinstance(split, str) and split.isidentifier() for split in further)
        and len({*SPLITS, *further}) == len(SPLITS) + len(further),
        f"{env.name}: further_splits are {further!r}; expected a tuple of different names in letters, digits and _, "
        f"none of them {', '.join(SPLITS)}.",
    )


def _check_splits(env: NatLangEnv, twin: NatLangEnv | None) -> None:
    seen: dict[str, str] = {}
    for split in env.splits:
        # training needs tasks; an environment may have none to validate or test, such as a single game
        tasks = env.split_tasks(split) if split == "train" else env.any_tasks(split)
        for task in tasks:
            where = seen.setdefault(task.id, split)
            _need(
                where == split, f"{env.name}: task {task.id!r} is in {where} and in {split}; splits must be disjoint."
            )
        ids = [task.id for task in tasks]
        again = [task.id for task in env.any_tasks(split)]
        _need(again == ids, f"{env.name}: tasks({split!r}) differs when asked twice; derive tasks from constants only.")
        _need(
            twin is None or [task.id for task in twin.any_tasks(split)] == ids,
            f"{env.name}: tasks({split!r}) differs between two environments with the same options; derive tasks from "
            "constants only.",
        )
        env.split_benchmark(split, len(tasks))


@contextlib.contextmanager
def _twin(env: NatLangEnv) -> Iterator[NatLangEnv | None]:
    """Make another environment with the same arguments; ``None`` for one in a worker process, which refuses copies."""
    if type(env).__reduce__ is not Recreated.__reduce__:
        yield None
        return
    with contextlib.closing(_copied(env)) as twin:
        yield twin


def _copied(env: NatLangEnv) -> NatLangEnv:
    def failed(what: str) -> InvalidInput:
        return InvalidInput(f"{env.name}: it cannot be made again with the same options: it {what}; fix __init__().")

    twin: NatLangEnv = called(copy, env, wrong=lambda _: None, failed=failed)
    return twin


def _check_observation(env: NatLangEnv) -> Observation:
    observation = env.observation
    _need(env.observe() == observation, f"{env.name}: observe() changed without an action; it must not move the state.")
    return observation


def _check_hints(env: NatLangEnv, previous: str | None) -> str | None:
    """Check the hints after the ``previous`` reflection; return the present one."""
    hints, shown = env.hints(previous), f"{env.observation.full_text}\n{previous or ''}"
    _need(
        env.hints(previous) == hints,
        f"{env.name}: expert(), reflection(), spoiler(), mistaken() or secrets() differs when asked twice in a state; "
        "draw no random numbers there.",
    )
    leaked = [secret for secret in hints.secrets if holds(hints.reflection or "", secret) and not holds(shown, secret)]
    _need(
        not leaked,
        f"{env.name}: reflection() says {leaked[:1]}, which secrets() calls hidden and the text does not show; reflect "
        "on what a player can know.",
    )
    if hints.reflection is not None:
        reading = env.reading(hints.reflection)
        _need(
            reading.right is not False and (env.max_actions == 0 or reading.action in (None, *env.observation.actions)),
            f"{env.name}: read_thought() makes {reading} of the expert's own {hints.reflection!r}; expected that it is "
            "right and calls for a legal action or none.",
        )
    return hints.reflection


def _check_expert(env: NatLangEnv, task: Task) -> bool | None:
    """Check that the expert does not call its own actions mistakes; return its success, ``None`` if it stops acting."""
    env.reset(seed=0, options={"task": task})
    while (action := env.hints().action) is not None:
        _, _, terminated, truncated, info = env.step(action)
        _need(
            env.hints().mistaken is not True,
            f"{env.name}: mistaken() says True after expert()'s own {action!r} in task {task.id!r}; expected False.",
        )
        if terminated or truncated:
            return bool(info["success"])
    return None


def _falls_silent(env: NatLangEnv, task: Task, seed: int) -> bool:
    """Return whether the expert says nothing in an episode of which half of the actions are random."""
    rng = random.Random(seed)
    env.reset(seed=seed, options={"task": task})
    while (action := env.hints().action) is not None:
        _, _, terminated, truncated, _ = env.step(action if rng.random() < 0.5 else rng.choice(env.observation.tries))
        if terminated or truncated:
            return False
    return True


def _play(env: NatLangEnv, task: Task, seed: int, *, hinted: bool) -> Iterator[tuple[Observation, str, Outcome]]:
    """Play one random episode, checking each step; ``hinted`` if hints are asked for, too."""
    rng = random.Random(seed)
    env.reset(seed=seed, options={"task": task})
    reflection: str | None = None
    for count in range(env.horizon + 1):
        _need(count < env.horizon, f"{env.name}: an episode outlived its horizon of {env.horizon} steps.")
        before = _check_observation(env)
        if hinted:
            reflection = _check_hints(env, reflection)
        action = rng.choice(before.tries)
        _, reward, terminated, truncated, info = env.step(action)
        _need(
            {"success", "illegal"} <= info.keys(),
            f"{env.name}: step() reports no success; write start() and act(), and leave reset() and step() alone.",
        )
        yield before, action, Outcome(reward, terminated, info["success"], info["illegal"])
        if terminated or truncated:
            return


def _check_episodes(env: NatLangEnv, twin: NatLangEnv | None, task: Task, seed: int) -> None:
    first, second, hinted = (list(_play(env, task, seed, hinted=asked)) for asked in (False, False, True))
    _need(
        first == second,
        f"{env.name}: task {task.id!r} played twice with one seed differs; start() must set the whole state, "
        "and all randomness must come from self.np_random.",
    )
    _need(
        first == hinted,
        f"{env.name}: task {task.id!r} goes on otherwise after hints were asked for; expert(), reflection(), "
        "spoiler(), mistaken() and secrets() must not change the state, nor draw from self.np_random.",
    )
    if twin is not None:
        _check_same(env, first, list(_play(twin, task, seed, hinted=False)), task)
    for _, action, outcome in first:
        _need(
            outcome.ended or not outcome.success,
            f"{env.name}: {action!r} reported success without ending the episode; success must end it.",
        )
    try:
        env.step(first[-1][1])
    except InvalidInput:
        return
    raise InvalidInput(f"{env.name}: step after the end was accepted; do not override step().")


_Episode = Sequence[tuple[Observation, str, Outcome]]


def _check_same(env: NatLangEnv, here: _Episode, there: _Episode, task: Task) -> None:
    """Check that an episode is the same in two environments with the same options."""
    steps = enumerate(zip_longest(here, there))
    step, different = next(((number, pair) for number, pair in steps if pair[0] != pair[1]), (0, None))
    if different is not None:
        states = [(state[0].full_text, state[0].actions) if state else "the end" for state in different]
        raise InvalidInput(
            f"{env.name}: task {task.id!r} differs between two environments with the same options and seed, after step "
            f"{step}: {shown(states[0])} or {shown(states[1])}. Other processes and resumed runs would play another "
            "task: draw nothing in __init__(); derive it from the task, or draw from self.np_random in start()."
        )


def _check_copies(env: NatLangEnv, task: Task) -> None:
    env.reset(seed=0, options={"task": task})
    *_, terminated, truncated, _ = env.step(env.observation.tries[0])
    ended = terminated or truncated
    with contextlib.closing(_copied(env)) as twin:
        there = twin._observation
        _need(
            (there, twin.steps, twin.last_action) == (env.observation, env.steps, env.last_action)
            and (ended or twin.hints() == env.hints()),
            f"{env.name}: a copy in task {task.id!r} shows {shown(there and there.full_text)}, and the original "
            f"{shown(env.observation.full_text)}; a copy is made with the same arguments and replays the actions: "
            "leave __reduce__(), __getstate__() and __setstate__() alone.",
        )


def _check_snapshot(env: NatLangEnv, task: Task) -> None:
    env.reset(seed=0, options={"task": task})
    here, observation = env.snapshot(), env.observation
    env.step(observation.tries[0])
    env.restore(here)
    _need(env.observation == observation, f"{env.name}: restore(snapshot()) of task {task.id!r} shows another state.")


class _LegalActions(gymnasium.Wrapper[str, str, str, str]):
    """Wrapper that replaces an action which gymnasium's checker sampled in another state by a legal one."""

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        legal = self.get_wrapper_attr("observation").actions
        return super().step(legal[0] if legal and action not in legal else action)


def check_env(env: NatLangEnv, *, episodes: int = 3) -> list[str]:
    """Check ``env`` on up to ``episodes`` random tasks of each split, then with gymnasium's own checker.

    Returns:
        Remarks on what is allowed: an expert that fails or does not always act, splits with tasks that begin like
        training tasks, of which up to 16 times ``episodes`` are compared, and texts that need a memory.

    Raises:
        InvalidInput: a check failed; the message describes the first fault that was found.
    """
    if not isinstance(env, NatLangEnv):
        raise InvalidInput(f"check_env was given {env!r}; expected an environment, such as make_env('number_line').")
    try:
        return _check(env, episodes)
    except EnvFailed as failed:
        raise InvalidInput(f"{failed.where}: it {failed.what}; fix the environment.") from failed


def _check(env: NatLangEnv, episodes: int) -> list[str]:
    _check_author(env)
    rng = random.Random(0)
    expert, astray = [], 0
    began = time.process_time()
    with _twin(env) as twin:
        making = time.process_time() - began
        _check_splits(env, twin)
        for split in env.splits:
            tasks = list(env.any_tasks(split))
            for number, task in enumerate(rng.sample(tasks, min(episodes, len(tasks)))):
                _check_episodes(env, twin, task, seed=number)
                _check_snapshot(env, task)
                if not env.max_actions:
                    for text in ODD_TEXTS:
                        env.reset(seed=0, options={"task": task})
                        env.step(text)
                expert.append(_check_expert(env, task))
                astray += _falls_silent(env, task, number)
        if twin is not None:
            _check_copies(env, env.split_tasks("train")[0])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns about text spaces; only its errors matter
            gymnasium_check_env(_LegalActions(env), skip_render_check=True)
    except BaseException as error:  # whatever gymnasium finds is the environment's fault
        if passes(error):
            raise
        raise InvalidInput(f"{env.name}: gymnasium's check_env says: {message_of(error)}") from error
    ambiguity = ambiguous_states(env, episodes=PASTS * episodes, seed=0)
    remarks = [*_remarks(expert, astray), *shared_starts(env, STARTS * episodes)]
    if making > SLOW:
        remarks.append(
            f"It takes {making:.1f} s to make one, and training plays dozens side by side: make what all have in "
            "common once, for example in a function with functools.cache."
        )
    return remarks if ambiguity is None else [*remarks, str(ambiguity)]


def _remarks(expert: Sequence[bool | None], astray: int) -> list[str]:
    """Return remarks on the successes of the expert in the episodes that it played; ``None``: it stopped acting.

    ``astray`` is the number of further episodes in which it stopped acting after random actions.
    """
    silent, failed = expert.count(None), expert.count(False)
    remarks = []
    if 0 < silent < len(expert):
        remarks.append(
            f"The expert stops acting in {silent} of {len(expert)} episodes; data.teacher=expert needs an action in "
            "every state."
        )
    elif astray and not silent:
        remarks.append(
            f"The expert stops acting after random actions in {astray} of {len(expert)} episodes; data.teacher=expert "
            "needs an action in every state, also where all is lost."
        )
    if failed:
        remarks.append(f"The expert succeeds in {len(expert) - silent - failed} of {len(expert) - silent} episodes.")
    return remarks
