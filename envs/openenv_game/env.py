"""``OpenEnvGame``: an environment of OpenEnv, on a server elsewhere or on one that is started here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task, seed_tasks
from reflectrl.core.registry import foreign_code
from reflectrl.core.text import shown
from reflectrl.envs.gymnasium_game import check_seeds


class OpenEnvGame(NatLangEnv):
    """An environment of OpenEnv. ``openenv:SERVER`` names it wherever an environment is named.

    A task is a seed, which the server gets with ``reset``. Many servers ignore it: then a task begins anywhere,
    ``check-env`` says so, and no episode can be copied or replayed (``env.on_failure=drop``).

    An episode stays in the session that it began in. If that ends, or an answer is late, the environment has failed;
    only ``reset`` is asked for a second time. A missing reward (NaN is sent as one) counts 0, but an episode that ends
    without one has failed too. Text that is no action costs ``penalty`` and changes nothing. A truncation by the server
    counts as the end. Needs the extra ``openenv``.

    Args:
        server: address, ``https://...``; or an installed package, whose ``server.app:app`` runs in a process that the
            environments of this one share until the last is closed, or in as many as they need sessions; or
            ``module:app``.
        success_reward: an episode is a success if it ends with a reward of at least this, unless the server says
            ``success`` in its observation or metadata.
        actions: names of a menu's actions; absent: what ``TextMap`` finds.
        menu: length of the longest menu, where states list their actions.
        text_map: ``module:Class`` of a subclass of ``TextMap``.
        variables: environment variables for a package's server; a value ``$NAME`` is that of your variable NAME.
        key: ``$NAME``, the environment variable with the bearer key for an address.
        timeout_s: seconds for an answer; a server that is started here has longer for its first one.
        penalty: cost of a text that is no action.
        horizon: maximum number of steps of an episode.
        seeds: number of tasks for training; validation and test have 200 each, or as many if these are fewer.

    Raises:
        InvalidInput: no such server, an address with a login, a class that is no ``TextMap``, or a variable that is
            not set.
    """

    name = "openenv"
    observable = False

    def __init__(
        self,
        server: str,
        success_reward: float = 1.0,
        actions: Sequence[str] = (),
        menu: int = 40,
        text_map: str = "reflectrl.envs.openenv_game:TextMap",
        variables: Mapping[str, str] | None = None,
        key: str | None = None,
        timeout_s: float = 30.0,
        penalty: float = 0.1,
        horizon: int = 50,
        seeds: int = 10_000,
    ) -> None:
        super().__init__(horizon)
        if find_spec("openenv") is None:
            raise InvalidInput("environments of OpenEnv need its package; run pip install 'reflectrl[openenv]'.")
        from reflectrl.envs.openenv_game.session import Session

        check_seeds(seeds)
        self._success_reward, self._penalty, self._seeds = success_reward, penalty, seeds
        self._session = Session(server, variables or {}, key, timeout_s)
        if ":" not in text_map:
            raise InvalidInput(f"text_map={text_map!r} was given; expected module:Class, a subclass of TextMap.")
        with foreign_code(f"{server!r} cannot be played with text_map={text_map!r}"):
            self._map = resolve_name(text_map)(self._session.schema, self._session.tools(), actions, menu)
            self.max_actions, self.instructions = self._map.max_actions, self._map.instructions

    def tasks(self, split: str) -> Sequence[Task]:
        """Return seeds, each of which belongs to one split."""
        return seed_tasks(split, self.splits, self._seeds)

    def start(self, task: Task) -> None:
        """Begin an episode with the task's seed; after a failure, in a new session."""
        self._seen: Mapping[str, Any] = {}
        self._show(self._session.reset(task.options["seed"]).observation)

    def observe(self) -> Observation:
        return self._shown

    def act(self, action: str) -> Outcome:
        from reflectrl.envs.openenv_game.session import Refused

        try:
            given = self._map.action(action)
        except ValueError as error:
            return self._refuse(str(error))
        try:
            result = self._session.step(given)
        except Refused:
            return self._refuse("the server takes no such action")
        if result.done and result.reward is None:
            raise ValueError("the server ended the episode without a reward")
        self._show(result.observation)
        success = {**(result.metadata or {}), **result.observation}.get("success")
        if success not in (None, True, False):
            raise ValueError(f"the server says success={shown(success)}; expected true or false")
        reward = 0.0 if result.reward is None else float(result.reward)
        won = reward >= self._success_reward if success is None else bool(success)
        return Outcome(reward, ended=result.done, success=result.done and won)

    def close(self) -> None:
        self._session.close()

    def _show(self, seen: Mapping[str, Any]) -> None:
        self._shown = self._plain = self._map.observation(seen, self._seen)
        self._seen = seen

    def _refuse(self, why: str) -> Outcome:
        self._shown = replace(self._plain, text=f"That was no action: {why}.\n{self._plain.text}")
        return Outcome(-self._penalty, illegal=True)
