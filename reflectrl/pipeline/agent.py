"""``Agent``: the trained players of a run, or of its export, for states from any source."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from reflectrl.config import Recipe
from reflectrl.config.agent_file import exported_recipe, read_agent_file
from reflectrl.core import InvalidInput, Observation, nearest
from reflectrl.core.promises import wrong_observation
from reflectrl.core.run_files import POLICIES, saved_player
from reflectrl.core.text import shown
from reflectrl.pipeline.folder import RunFolder, last_policy, read_recipe
from reflectrl.pipeline.team import Team
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import Player, Policy, ReadsHints
from reflectrl.prompts.views import State
from reflectrl.rollout import Move, play_turn
from reflectrl.rollout.results import Validated, read_validated, way_to_play
from reflectrl.seats.table import Seat, acting


@dataclass(frozen=True, repr=False)
class Agent:
    """The trained players of a run, which can play states from any source."""

    who: str
    """Name for messages: the policy and its folder."""
    recipe: Recipe
    """Recipe that the players were trained with; of an exported agent, what playing needs."""
    layout: PromptFormat
    max_actions: int
    name: str
    """Folder of the policy: ``policy`` (after RLFT) or ``policy-sft``."""
    greedy: bool
    """True if the policy plays its most probable action, False if it draws one."""
    validated: Validated | None
    """How its weights did in validation, which has decided ``greedy`` unless that was given; ``None`` if unknown."""
    policy: Policy
    seats: tuple[Seat, ...]
    """The frozen players."""

    def __repr__(self) -> str:
        """Return what a person needs to know."""
        return f"<Agent {self.who}: {self.way_to_play}>"

    def _repr_html_(self) -> str:
        from reflectrl.report.notebook import agent_html

        players = {seat.role: type(seat.player).__name__ for seat in acting(self.seats)}
        about = f"{self.who}, in {self.recipe.env.name}"
        return agent_html(about, self.way_to_play, {**players, "policy": type(self.policy).__name__})

    @property
    def way_to_play(self) -> str:
        """How the policy plays and how it did in validation: 'sampled actions (validation 84 % sampled, ...)'."""
        return way_to_play(greedy=self.greedy, validated=self.validated)

    def act(
        self,
        observation: Observation,
        past: Sequence[str] = (),
        *,
        said: Mapping[str, str] = MappingProxyType({}),
        seed: int = 0,
        visited: Sequence[Observation] = (),
        rewards: Sequence[float] = (),
        before: Mapping[str, str] = MappingProxyType({}),
    ) -> Move:
        """Let the frozen players speak, then choose, as ``rollout`` does for each step of an episode.

        With the seed of an episode, and after its first step the planner's words of that step in ``said``, an agent
        plays the steps of ``rollout``. A planner or memory knows less here: neither the id and group of the task nor
        the policy's thought at the step before.

        Args:
            observation: the state, with its legal actions.
            past: the actions that were played before it, oldest first.
            said: words by role, such as ``reflector`` or ``planner``; these players are not asked.
            seed: seed of every draw that is not greedy.
            visited: the states in which the actions of ``past`` were chosen, for an agent whose prompts show them
                (``prompt.history``); others do not read them.
            rewards: the rewards of these actions, likewise.
            before: words of the step before by role; needed of a reflector that carries them
                (``players.reflector.carry``).

        Raises:
            InvalidInput: a state that no environment may show or that is too long for the model, other numbers of
                actions, states and rewards before it, words of a role that the agent does not have, none of a player
                that only an environment can answer for (the expert), or none of the step before where they are needed.
        """
        state = self.state(observation, past, said=said, seed=seed, visited=visited, rewards=rewards, before=before)
        return self.play([state])[0]

    def state(
        self,
        observation: Observation,
        past: Sequence[str] = (),
        *,
        said: Mapping[str, str] = MappingProxyType({}),
        seed: int = 0,
        visited: Sequence[Observation] = (),
        rewards: Sequence[float] = (),
        before: Mapping[str, str] = MappingProxyType({}),
    ) -> State:
        """Check a state from outside and describe it to ``play``; arguments and errors are those of ``act``."""
        if not isinstance(observation, Observation):
            raise InvalidInput(f"the state {shown(observation)} was given; expected Observation(text, actions).")
        if (wrong := wrong_observation(observation, self.max_actions, ended=False)) is not None:
            raise InvalidInput(f"the state cannot be played: it {wrong}.")
        if isinstance(past, str) or not all(isinstance(action, str) for action in past):
            raise InvalidInput(f"past={past!r} was given; expected the actions before the state, a list of texts.")
        roles = [seat.role for seat in self.seats]
        if unknown := [role[:60] for role in (*said, *before) if role not in roles]:
            raise InvalidInput(f"words of the role {unknown[0]!r} were given; {nearest(unknown[0], roles)}")
        silent = [seat.role for seat in self.seats if isinstance(seat.player, ReadsHints) and seat.role not in said]
        if silent:
            raise InvalidInput(
                f"{self.who} was trained with the words of the expert as {' and '.join(silent)}, who knows nothing of "
                "a state from elsewhere; give these words along with it."
            )
        if self.layout.carry and past and not {"reflector"} & {*said, *before}:
            raise InvalidInput(
                f"the reflector of {self.who} reads its reflection of the step before, but none was given with "
                f"{len(past)} past actions; give it as before, by its role 'reflector'."
            )
        recent = self.layout.recent
        read = {"visited": recent.show == "transitions", "rewards": recent.reward}
        for name, given in {"visited": visited, "rewards": rewards}.items():
            if len(given) != len(past) and (read[name] or given):
                wanted = "one for each past action" + ("" if read[name] else ", or none: this agent does not read them")
                raise InvalidInput(f"{len(given)} {name} were given with {len(past)} past actions; expected {wanted}.")
        return State(
            observation,
            tuple(past),
            seed,
            dict(said),
            visited=tuple(visited),
            rewards=tuple(rewards),
            before=dict(before),
        )

    def play(self, states: Sequence[State]) -> list[Move]:
        """Play one turn in each state, side by side; raises as ``play_turn`` does."""
        return play_turn(states, policy=self.policy, seats=self.seats, layout=self.layout)

    @property
    def reflector(self) -> Player | None:
        """The player that reflects; ``None`` without one."""
        return next((seat.player for seat in self.seats if seat.role == "reflector"), None)


def load_agent(
    run: str | Path,
    *,
    policy: str | None = None,
    greedy: bool | None = None,
    recipe: Recipe | None = None,
    reuse_replies: bool = True,
    allow_hosts: Collection[str] = (),
) -> Agent:
    """Load the players of a run folder, or of an exported agent. Nothing is written into the folder.

    Args:
        run: the folder.
        policy: ``policy`` (after RLFT) or ``policy-sft``; if absent, the later one that exists.
        greedy: choose the most probable action, or, if false, draw it. If absent, what did better in validation: to
            draw it if that was more than 5 points better at the weights that were kept.
        recipe: replaces the folder's recipe, for an environment with other options.
        reuse_replies: answer repeated calls to chat endpoints by replies that the folder has or that came before. If
            false, as in a server, every call is sent and none is remembered, so any number of them may be rejected.
        allow_hosts: servers, other than this machine, that the players of a folder from elsewhere may send states to.

    Raises:
        InvalidInput: no such folder, one without that policy, or one from elsewhere whose recipe would run code, use
            a key, read files or send states to a server that the user has not allowed.
    """
    run = Path(run)
    exported = read_agent_file(run)
    given = None if exported is not None else ()
    wanted = recipe or read_recipe(run, hosts=allow_hosts, given=given)
    if policy is not None and policy not in POLICIES:
        raise InvalidInput(f"policy {policy!r} was asked for; {nearest(policy, POLICIES)}")
    name = policy or last_policy(wanted, run)
    if exported is not None:
        wanted = exported_recipe(wanted, run)
    players = Team(wanted, RunFolder(run), replies="reuse" if reuse_replies else "forget")
    if exported is not None and recipe is None:  # its environment need not be installed
        players.layout = exported.prompt
        players.max_actions = exported.max_actions
    lm, player = players.lm_policy(name)
    seats = players.seats(lm, name)
    who = f"{name} of {run}"
    validated = read_validated(saved_player(run, name))
    if greedy is None:
        greedy = validated is None or validated.plays_greedily
    return Agent(who, wanted, players.layout, players.max_actions, name, greedy, validated, player(greedy), seats)
