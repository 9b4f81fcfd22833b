"""``check_env``: tests whether an environment has the properties that training relies on, one small check for each."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, SupportsFloat

import gymnasium
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import EnvFailed, InvalidInput, passes
from reflectrl.core.foreign import message_of
from reflectrl.core.registry import check_constructed
from reflectrl.core.text import holds
from reflectrl.core.types import SPLITS, Observation, Outcome, Task


def _need(ok: bool, sentence: str) -> None:
    if not ok:
        raise InvalidInput(sentence)


def _check_author(env: NatLangEnv) -> None:
    _need(bool(env.name), f"{type(env).__name__} has no name; set the class attribute name.")
    check_constructed(env)
    _need(env.horizon >= 1, f"{env.name}: horizon is {env.horizon}; expected 1 or more steps.")
    _need(isinstance(env.instructions, str), f"{env.name}: instructions are {env.instructions!r}; expected a text.")
    _need(
        type(env.max_actions) is int and env.max_actions >= 1,
        f"{env.name}: max_actions is {env.max_actions!r}; expected the length of the longest menu.",
    )
    further = env.further_splits
    _need(
        isinstance(further, tuple)
        and all(isinstance(split, str) and split.isidentifier() for split in further)
        and len({*SPLITS, *further}) == len(SPLITS) + len(further),
        f"{env.name}: further_splits are {further!r}; expected a tuple of different names in letters, digits and _, "
        f"none of them {', '.join(SPLITS)}.",
    )


def _check_splits(env: NatLangEnv) -> None:
    seen: dict[str, str] = {}
    drawn = _ids_of_another(env)
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
            drawn.get(split, ids) == ids,
            f"{env.name}: tasks({split!r}) differs between two environments with the same options; derive tasks from "
            "constants only.",
        )
        env.split_benchmark(split, len(tasks))


def _ids_of_another(env: NatLangEnv) -> dict[str, list[str]]:
    """Return the ids of each split's tasks in a second environment; none for one in a worker process."""
    try:
        another = copy(env)
    except InvalidInput:
        return {}
    with contextlib.closing(another):
        return {split: [task.id for task in another.any_tasks(split)] for split in env.splits}


def _check_observation(env: NatLangEnv) -> Observation:
    observation = env.observation
    _need(env.observe() == observation, f"{env.name}: observe() changed without an action; it must not move the state.")
    return observation


def _check_hints(env: NatLangEnv) -> None:
    hints, shown = env.hints(), env.observation.full_text
    _need(
        env.hints() == hints,
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
            reading.right is not False and reading.action in (None, *env.observation.actions),
            f"{env.name}: read_thought() makes {reading} of the expert's own {hints.reflection!r}; expected that it is "
            "right and calls for a legal action or none.",
        )


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


def _play(env: NatLangEnv, task: Task, seed: int, *, hinted: bool) -> Iterator[tuple[Observation, str, Outcome]]:
    """Play one random episode, checking each step; ``hinted`` if hints are asked for, too."""
    rng = random.Random(seed)
    env.reset(seed=seed, options={"task": task})
    for count in range(env.horizon + 1):
        _need(count < env.horizon, f"{env.name}: an episode outlived its horizon of {env.horizon} steps.")
        before = _check_observation(env)
        if hinted:
            _check_hints(env)
        action = rng.choice(before.actions)
        _, reward, terminated, truncated, info = env.step(action)
        _need(
            {"success", "illegal"} <= info.keys(),
            f"{env.name}: step() reports no success; write start() and act(), and leave reset() and step() alone.",
        )
        yield before, action, Outcome(reward, terminated, info["success"], info["illegal"])
        if terminated or truncated:
            return


def _check_episodes(env: NatLangEnv, task: Task, seed: int) -> None:
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


def _check_snapshot(env: NatLangEnv, task: Task) -> None:
    env.reset(seed=0, options={"task": task})
    here, observation = env.snapshot(), env.observation
    env.step(observation.actions[0])
    env.restore(here)
    _need(env.observation == observation, f"{env.name}: restore(snapshot()) of task {task.id!r} shows another state.")


class _LegalActions(gymnasium.Wrapper[str, str, str, str]):
    """Wrapper that replaces an action which gymnasium's checker sampled in another state by a legal one."""

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        legal = self.get_wrapper_attr("observation").actions
        return super().step(action if action in legal else legal[0])


def check_env(env: NatLangEnv, *, episodes: int = 3) -> list[str]:
    """Check ``env`` on up to ``episodes`` random tasks of each split, then with gymnasium's own checker.

    Returns:
        Remarks on an expert that fails, or does not always act; both are allowed.

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
    _check_splits(env)
    rng = random.Random(0)
    expert = []
    for split in env.splits:
        tasks = list(env.any_tasks(split))
        for number, task in enumerate(rng.sample(tasks, min(episodes, len(tasks)))):
            _check_episodes(env, task, seed=number)
            _check_snapshot(env, task)
            expert.append(_check_expert(env, task))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns about text spaces; only its errors matter
            gymnasium_check_env(_LegalActions(env), skip_render_check=True)
    except BaseException as error:  # whatever gymnasium finds is the environment's fault
        if passes(error):
            raise
        raise InvalidInput(f"{env.name}: gymnasium's check_env says: {message_of(error)}") from error
    return _remarks(expert)


def _remarks(expert: Sequence[bool | None]) -> list[str]:
    """Return remarks on the successes of the expert in the episodes that it played; ``None``: it stopped acting."""
    silent, failed = expert.count(None), expert.count(False)
    remarks = []
    if 0 < silent < len(expert):
        remarks.append(
            f"The expert stops acting in {silent} of {len(expert)} episodes; data.teacher=expert needs an action in "
            "every state."
        )
    if failed:
        remarks.append(f"The expert succeeds in {len(expert) - silent - failed} of {len(expert) - silent} episodes.")
    return remarks
