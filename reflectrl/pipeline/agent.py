"""``Agent``: the two trained players of a run, or of an export of one, for states from anywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.config.agent_file import AgentFile, exported_recipe, read_agent_file
from reflectrl.core import Decision, InvalidInput, Observation, nearest
from reflectrl.core.layout import POLICIES
from reflectrl.core.promises import wrong_observation
from reflectrl.pipeline.cast import Cast
from reflectrl.pipeline.folder import RunFolder, last_policy, read_recipe
from reflectrl.players import Policy, Reflector
from reflectrl.prompts import Menu, PromptFormat, labels


@dataclass(frozen=True)
class Move:
    """One step: what was said, what was possible, and what was chosen."""

    reflection: str | None
    menu: Menu
    decision: Decision


@dataclass(frozen=True)
class Agent:
    """Both players on stage."""

    who: str
    """In words: which policy of which folder."""
    recipe: Recipe
    """What they were trained with."""
    layout: PromptFormat
    """How they are shown a state."""
    max_actions: int
    """Length of the longest menu."""
    policy: Policy
    reflector: Reflector | None

    def act(
        self,
        observation: Observation,
        past: Sequence[str] = (),
        *,
        reflection: str | None = None,
        rng: random.Random | None = None,
    ) -> Move:
        """Reflect, then choose, as ``rollout`` does for each step of an episode.

        Args:
            observation: the state, with its legal actions.
            past: the actions that were played before it, oldest first.
            reflection: said instead of what the reflector would say.
            rng: draws what is not greedy; the generator of an episode, ``random.Random(seed)``, gives the steps that
                ``rollout`` plays with that seed. A new one, of seed 0, if absent.

        Raises:
            InvalidInput: a state that no environment may show, one that is too long for the model, or a reflector that
                only an environment can tell what to say (the expert).

        """
        if (wrong := wrong_observation(observation, self.max_actions, ended=False)) is not None:
            raise InvalidInput(f"the state cannot be played: it {wrong}.")
        rng = rng or random.Random(0)
        to_reflect, to_act = rng.random(), rng.random()
        if reflection is None and self.reflector is not None:
            if self.reflector.wants_hints:
                raise InvalidInput(
                    f"{self.who} was trained with the reflections of the expert, who knows nothing of a state from "
                    "elsewhere; give a reflection along with it."
                )
            asked = [self.layout.reflector(observation, past)]
            reflection = self.reflector.reflect(asked, [to_reflect])[0].text
        menu = self.layout.menu(observation, rng)
        prompt = self.layout.policy(observation, past, reflection, menu)
        return Move(reflection, menu, self.policy.act([prompt], [to_act])[0])


def load_agent(
    run: str | Path, *, policy: str | None = None, greedy: bool = True, recipe: Recipe | None = None
) -> Agent:
    """Load the players of a run folder, or of an exported agent.

    Args:
        run: the folder.
        policy: ``policy`` (after RLFT) or ``policy-sft``; the last that is there if absent.
        greedy: choose the most probable action; otherwise draw it.
        recipe: instead of the folder's, for an environment with other options.

    Raises:
        InvalidInput: no such folder, or one without that policy.

    """
    run = Path(run)
    wanted = recipe or read_recipe(run)
    if policy is not None and policy not in POLICIES:
        raise InvalidInput(f"policy {policy!r} was asked for; {nearest(policy, POLICIES)}")
    name = policy or last_policy(wanted, run)
    exported = read_agent_file(run)
    if exported is not None:
        wanted = exported_recipe(wanted, run)
    here = recipe is not None  # an environment for it can be made, and its menus may be longer
    cast = Cast(wanted, RunFolder(run)) if exported is None or here else _ExportedCast(wanted, run, exported)
    lm, player = cast.lm_policy(name)
    return Agent(f"{name} of {run}", wanted, cast.layout, len(cast.labels), player(greedy), cast.reflector(lm))


class _ExportedCast(Cast):
    """Players of an exported agent, whose environment need not be installed."""

    def __init__(self, recipe: Recipe, run: Path, file: AgentFile) -> None:
        super().__init__(recipe, RunFolder(run))
        self.layout = file.prompt
        self.labels = labels(file.prompt.labels, file.max_actions)
