"""``explore``: one question about any repository, played by any players (the copilot of the paper's appendix C.2)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reflectrl.config import Recipe
from reflectrl.config.prompts import prompt_format
from reflectrl.core import InvalidInput, Task, Turn
from reflectrl.envs.auto_explore import AutoExplore
from reflectrl.envs.auto_explore.libraries import Library, folder_library
from reflectrl.envs.auto_explore.sandbox import quote
from reflectrl.envs.auto_explore.sources import fetch
from reflectrl.pipeline.folder import last_policy, read_recipe
from reflectrl.players import ExpertPolicy, ExpertReflector, Policy, Reflector
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout

READ = ("horizon", "page", "output", "listing")
"""Options of the environment that shape what players read; the others are about training."""
HISTORY = 20
"""Past commands that a chat model is shown."""

Settings = Mapping[str, Any]
"""The environment's options."""


@dataclass(frozen=True)
class Explorers:
    """Who explores, and what they read."""

    who: str
    """In words, for the person who watches."""
    layout: PromptFormat
    enter: Callable[[Settings], tuple[Policy, Reflector | None]]
    """Makes the players; called when the repository is there, since models take long to load."""
    options: Settings = field(default_factory=dict)
    """Options of the environment that these players need."""
    file: str | None = None
    """The answer, if they are to know it."""


def explore(
    source: str,
    question: str,
    players: Explorers,
    *,
    options: Settings | None = None,
    seed: int = 0,
    show: Callable[[Turn], None] | None = None,
) -> str | None:
    """Let ``players`` look for the file that answers ``question``, for one episode in a private copy.

    Args:
        source: the repository, in any form that ``sources.fetch`` takes.
        question: what the file is to answer.
        players: who explores.
        options: of the environment, over those of the players: ``horizon``, ``page``.
        seed: of all that is drawn.
        show: told of each step once it is played.

    Returns:
        The file that was named, relative to the repository, or ``None``.

    Raises:
        InvalidInput: no question, no such source, nothing in it, a file for the expert that is not there, or a state
            that is too long for a local model.
        WorkFailed: the repository cannot be fetched or copied, or a chat endpoint failed.

    """
    if not question.strip():
        raise InvalidInput("the question is empty; say what the file that you look for should tell.")
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as folder:
        _, repository = fetch(source, Path(folder))
        library, name = folder_library(repository), repository.resolve().name
        settings = {**players.options, **(options or {}), "dataset": library}
        env = AutoExplore(**settings)
        if not any(path.is_file() for path in library.sandbox(name).root.rglob("*")):
            raise InvalidInput("this repository has no files, or hidden ones only; choose another one.")
        file = None if players.file is None else _file(library, name, players.file)
        policy, reflector = players.enter(settings)
        task = Task("explore", {"repository": name, "question": _sendable(question), "file": file})
        episode = Episode(task, seed)
        try:
            rollout([env], [episode], policy=policy, reflector=reflector, layout=players.layout, on_turn=show)
        except InvalidInput as error:  # a folder with long names
            raise InvalidInput(f"step {env.steps + 1} cannot be played: {error} A smaller --page may help.") from error
        return env.answer


def person() -> Explorers:
    """Somebody at the keyboard, who sees the entries of a folder in the menu and what was played on the screen."""
    from reflectrl.players.human import HumanPolicy

    layout = PromptFormat(AutoExplore.instructions, history=0)
    return Explorers("you", layout, lambda _: (HumanPolicy(), None), {"listing": False})


def expert(file: str) -> Explorers:
    """The environment's expert, who is told the answer and shows a shortest way to it."""
    layout = PromptFormat(AutoExplore.instructions)
    return Explorers(f"the expert, told {file}", layout, lambda _: (ExpertPolicy(), ExpertReflector()), file=file)


def chat_model(model: str, base_url: str | None = None, api_key_env: str | None = None) -> Explorers:
    """A model behind an OpenAI-compatible endpoint, which reflects and then chooses.

    Raises:
        InvalidInput: no key, or an address that cannot be one.

    """
    from reflectrl.endpoint.endpoint import Endpoint
    from reflectrl.players.remote import RemotePolicy, RemoteReflector

    endpoint = Endpoint(model, base_url, api_key_env=api_key_env or Endpoint.api_key_env)
    policy, reflector = RemotePolicy(endpoint), RemoteReflector(endpoint)
    layout = PromptFormat(AutoExplore.instructions, HISTORY)
    return Explorers(str(endpoint), layout, lambda _: (policy, reflector))


def trained(run: Path, *, greedy: bool = True) -> Explorers:
    """The players of a run, with the prompts they were trained on.

    Args:
        run: a run folder.
        greedy: play the most probable command; otherwise draw it.

    Raises:
        InvalidInput: no run folder, one of another environment, one without a policy yet, or one whose reflector is
            the expert.

    """
    recipe = read_recipe(run)
    if recipe.env.name != AutoExplore.name:
        raise InvalidInput(
            f"{run} was trained on {recipe.env.name!r}; expected a run of {AutoExplore.name!r}: choose another --run."
        )
    if recipe.players.reflector == "expert":
        raise InvalidInput(
            f"{run} was trained with the reflections of the expert, who does not know the answer here: choose another "
            "--run."
        )
    policy = last_policy(recipe, run)
    given = {**recipe.env.options, **recipe.eval.env}
    return Explorers(
        f"{policy} of {run}",
        prompt_format(recipe, AutoExplore.instructions),
        lambda settings: _enter(recipe, run, policy, settings, greedy=greedy),
        {name: given[name] for name in READ if name in given},
    )


def _enter(
    recipe: Recipe, run: Path, policy: str, settings: Settings, *, greedy: bool
) -> tuple[Policy, Reflector | None]:
    """The run's players, for the environment that is played here instead of the recipe's."""
    from reflectrl.pipeline.agent import load_agent  # torch takes seconds to import

    env = recipe.env.model_copy(update={"options": dict(settings)})
    here = recipe.model_copy(update={"env": env, "dataset": None})
    agent = load_agent(run, policy=policy, greedy=greedy, recipe=here)
    return agent.policy, agent.reflector


def _file(library: Library, repository: str, file: str) -> str:
    """``file`` as the environment names it."""
    done = library.sandbox(repository).run(f"id {quote(file)}")
    if done.answer is None:
        raise InvalidInput(f"the expert is to be told a file of the repository, but {done.output}")
    return done.answer


def _sendable(question: str) -> str:
    """What was typed may hold bytes that are no text, which no endpoint would take."""
    return question.encode(errors="replace").decode()
