"""``explore``: a question about a source of the user, played by any players in an environment with a copilot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput, NatLangEnv, Turn
from reflectrl.core.extras import Ask, Copilot
from reflectrl.core.messages import Messages
from reflectrl.core.registry import DEFAULT_COPILOT, env_class
from reflectrl.pipeline.folder import last_policy, read_recipe
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import Policy
from reflectrl.rollout import Episode, rollout
from reflectrl.seats.others import ExpertPolicy
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import Seat, reflecting

T = TypeVar("T")

HISTORY = 20
"""Number of past commands that a chat model is shown."""
MAX_TOKENS = 4096
"""Maximum number of tokens in the reply of a chat model that does a whole task; a reply may hold a file."""
TIMEOUT_S = 300.0
"""Time limit of such a reply by another's server, in seconds; one's own has the endpoint's default, which is longer."""

Options = Mapping[str, Any]


@dataclass(frozen=True)
class ExplorePlayers:
    """Players of one question, with their prompts and environment."""

    who: str
    """Name of the players, for the person who watches."""
    layout: PromptFormat
    enter: Callable[[Options], tuple[Policy, Sequence[Seat]]]
    """Makes the players for an environment with these options; called late, since models take long to load."""
    env: str = DEFAULT_COPILOT
    """Name of the environment, which brings a copilot."""
    options: Options = field(default_factory=dict)
    """Options of the environment that these players need."""
    answer: str | None = None
    """The answer, for players that are allowed to know it."""


def copilot(env: str = DEFAULT_COPILOT) -> Copilot:
    """Return the copilot that the environment ``env`` has.

    Raises:
        InvalidInput: the environment has none.
    """
    found = env_class(env).extras().copilot
    if found is None:
        raise InvalidInput(f"environment {env!r} has no copilot; expected one that has, such as {DEFAULT_COPILOT!r}.")
    return found


def explore(
    source: str,
    question: str,
    players: ExplorePlayers,
    *,
    options: Options | None = None,
    seed: int = 0,
    show: Callable[[Turn], None] | None = None,
) -> str | None:
    """Let ``players`` look for the answer to ``question`` in ``source``, for one episode; return it, if one was given.

    ``options`` of the environment override those of the players; ``show`` is called with each step once it is played.

    Raises:
        InvalidInput: no question, no such source, nothing in it, an answer for the expert that is not there, or a state
            that is too long for a local model.
        WorkFailed: the source cannot be fetched or copied, or a chat endpoint failed.
    """
    settings = {**players.options, **(options or {})}
    with copilot(players.env).open_task(source, question, settings, players.answer) as opened:
        policy, seats = players.enter(opened.options)
        layout = players.layout
        if layout.instructions:  # the options may change the instructions
            layout = replace(layout, instructions=opened.env.instructions)
        episode = Episode(opened.task, seed)
        try:
            rollout([opened.env], [episode], policy=policy, seats=seats, layout=layout, on_turn=show)
        except InvalidInput as error:  # a folder with long names
            step = opened.env.steps + 1
            raise InvalidInput(f"step {step} cannot be played: {error} A smaller --page may help.") from error
        return opened.answer()


def person() -> ExplorePlayers:
    """Return a person at the keyboard, who sees the menu, and on the screen what was played."""
    from reflectrl.seats.others import HumanPolicy

    layout = PromptFormat(_env().instructions, history=0)
    return ExplorePlayers("you", layout, lambda _: (HumanPolicy(), ()), options=copilot().person_options)


def expert(answer: str) -> ExplorePlayers:
    """Return the environment's expert, which is given the answer and follows a shortest path to it."""
    layout = PromptFormat(_env().instructions)
    seats = reflecting(ExpertReflector())
    return ExplorePlayers(f"the expert, given {answer}", layout, lambda _: (ExpertPolicy(), seats), answer=answer)


def chat_model(model: str, base_url: str | None = None, api_key_env: str | None = None) -> ExplorePlayers:
    """Return a model behind an OpenAI-compatible endpoint, which reflects and then chooses.

    Raises:
        InvalidInput: no key, or an address that cannot be one.
    """
    from reflectrl.endpoint.client import ChatClient
    from reflectrl.endpoint.endpoint import Endpoint
    from reflectrl.seats.others import RemotePolicy
    from reflectrl.seats.reflector import RemoteReflector

    endpoint = Endpoint(model, base_url, api_key_env=api_key_env)
    policy = RemotePolicy(ChatClient(endpoint))
    reflector = RemoteReflector(ChatClient(endpoint), is_sampled=endpoint.is_sampled)
    layout, seats = PromptFormat(_env().instructions, history=HISTORY), reflecting(reflector)
    return ExplorePlayers(str(endpoint), layout, lambda _: (policy, seats))


def chat_ask(model: str, base_url: str | None = None, api_key_env: str | None = None) -> Ask:
    """Return a function that asks a model behind an OpenAI-compatible endpoint, for ``Copilot.work_on``.

    Raises:
        InvalidInput: no key, or an address that cannot be one.
    """
    from reflectrl.endpoint.client import ChatClient
    from reflectrl.endpoint.endpoint import Endpoint

    endpoint = Endpoint(model, base_url, api_key_env=api_key_env, max_tokens=MAX_TOKENS)
    client = ChatClient(endpoint if endpoint.is_own else replace(endpoint, timeout_s=TIMEOUT_S))

    def ask(chat: Messages, read: Callable[[str], T], /) -> T:
        [reply] = client.ask_many([chat], [read])
        return reply.value

    return ask


def trained(run: Path, *, greedy: bool | None = None, hosts: Collection[str] = ()) -> ExplorePlayers:
    """Return the players of a run, with the prompts they were trained on; ``greedy`` as in ``load_agent``.

    ``hosts`` are servers that the players of a folder from elsewhere may send states to.

    Raises:
        InvalidInput: no run folder, one of an environment without a copilot, one without a policy yet, one whose
            reflector is the expert, or one from elsewhere that asks for more than was allowed.
    """
    recipe = read_recipe(run, hosts=hosts, given=None)
    cls = env_class(recipe.env.name)
    brought = cls.extras().copilot
    if brought is None:
        raise InvalidInput(
            f"{run} was trained on {recipe.env.name!r}; expected a run of an environment with a copilot, such as "
            f"{DEFAULT_COPILOT!r}: choose another --run."
        )
    if recipe.players.reflector.player == "expert":
        raise InvalidInput(
            f"{run} was trained with the reflections of the expert, who does not know the answer here: choose another "
            "--run."
        )
    policy = last_policy(recipe, run)
    given = {**recipe.env.options, **recipe.eval.env}
    return ExplorePlayers(
        f"{policy} of {run}",
        recipe.layout(cls.instructions),
        lambda options: _enter(recipe, run, policy, options, greedy=greedy),
        recipe.env.name,
        {name: given[name] for name in brought.player_options if name in given},
    )


def _enter(
    recipe: Recipe, run: Path, policy: str, options: Options, *, greedy: bool | None
) -> tuple[Policy, Sequence[Seat]]:
    """Load the run's players for the environment that is played here instead of the recipe's."""
    from reflectrl.pipeline.agent import load_agent  # torch takes seconds to import

    env = replace(recipe.env, options=dict(options))
    afresh = {"prefix_reuse": False}  # the check of a prefix cache takes longer than the few prompts of one question
    model, other = recipe.model.model_copy(update=afresh), recipe.reflector_model
    reflector = None if other is None else other.model_copy(update=afresh)
    here = recipe.model_copy(update={"env": env, "dataset": None, "model": model, "reflector_model": reflector})
    agent = load_agent(run, policy=policy, greedy=greedy, recipe=here)
    return agent.policy, agent.seats


def _env() -> type[NatLangEnv]:
    return env_class(DEFAULT_COPILOT)
