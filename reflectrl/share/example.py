"""The example of an export: a state of the run's episodes, and a program that chooses its action with transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from reflectrl.core.files import write_text
from reflectrl.core.run_files import POLICIES, POLICY, RESULTS, recorded_iterations, training_episodes_file
from reflectrl.lm.section import package_of
from reflectrl.pipeline.team import Team
from reflectrl.prompts.views import MenuView, State
from reflectrl.rollout.fixed import fixed_episodes
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import episodes_file, read_results
from reflectrl.rollout.turn import menu_of, policy_views
from reflectrl.seats.table import menu_view
from reflectrl.share.scrub import Scrubber

_PROGRAM = '''\
"""One action of this agent, for the state in example.json."""
import json
{sys}from pathlib import Path

{imports}

here = Path(__file__).parent
state = json.loads((here / "example.json").read_text(encoding="utf-8"))
tokenizer = AutoTokenizer.from_pretrained(here)
{model}
labels = [tokenizer(state["prompt"] + label)["input_ids"][-1] for label in state["labels"]]
logits = model(input_ids=tokenizer(state["prompt"], return_tensors="pt")["input_ids"]).logits[0, -1]
print(state["actions"][logits[labels].argmax()])
'''
_ADAPTER = (
    "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer",
    "model = AutoPeftModelForCausalLM.from_pretrained(here).eval()",
)
_WEIGHTS = (
    "from transformers import AutoModelForCausalLM, AutoTokenizer",
    "model = AutoModelForCausalLM.from_pretrained(here).eval()",
)
_PACKAGE = (
    "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer",
    """\
if len(sys.argv) != 2:
    sys.exit("usage: python example.py FOLDER, with the folder that this prints: reflectrl models get '{base}'")
base = AutoModelForCausalLM.from_pretrained(sys.argv[1])
if len(tokenizer) > base.get_input_embeddings().num_embeddings:
    base.resize_token_embeddings(len(tokenizer))
model = PeftModel.from_pretrained(base, here).eval()""",
)
"""Imports, and the lines that load the policy."""


def write_example(folder: Path, run_players: Team, policy: str, scrubber: Scrubber, *, base: str | None) -> None:
    """Write ``example.py`` and ``example.json`` into ``folder``; ``base`` is the base of an adapter.

    Raises:
        InvalidInput: the run's trajectories are damaged, or its environment cannot be made.

    """
    seen = _own_view(run_players, policy) or _first_view(run_players)
    state = {
        "prompt": scrubber.text(seen.prompt.text),
        "labels": list(seen.menu.labels),
        "actions": [scrubber.text(action) for action in seen.menu.actions],
    }
    write_text(folder / "example.json", json.dumps(state, indent=1) + "\n")
    packaged = base is not None and package_of(base) is not None
    imports, model = _PACKAGE if packaged else _WEIGHTS if base is None else _ADAPTER
    program = _PROGRAM.format(sys="import sys\n" if packaged else "", imports=imports, model=model.format(base=base))
    write_text(folder / "example.py", program)


def _own_view(run_players: Team, policy: str) -> MenuView | None:
    """Return the first view of an episode of the policy, preferably one with several actions."""
    first = None
    for path in _episodes(run_players, policy):
        run_players.run.verified(path.relative_to(run_players.run.path).as_posix(), "eval")
        header, trajectories = read_trajectories(path)
        for trajectory in (played for played in trajectories if played.turns):
            [seen] = policy_views(replace(trajectory, turns=trajectory.turns[:1]), header.prompt)
            first = first or seen
            if len(seen.menu.actions) > 1:
                return seen
    return first


def _episodes(run_players: Team, policy: str) -> Iterator[Path]:
    """Yield files of episodes: first those of the evaluation, then the last iteration of training."""
    who, results = run_players.recipe.players.reflector.player, run_players.run / RESULTS
    rows = read_results(run_players.run.verified(results.name, "eval")) if results.is_file() else []
    splits = len({row.split for row in rows})
    for mode in ("greedy", "sampled"):
        for row in rows:
            path = run_players.run / episodes_file(row, splits)
            if (row.policy, row.reflections, row.mode) == (POLICIES[policy], who, mode) and path.is_file():
                yield path
    if policy == POLICY:
        yield from (
            run_players.run / training_episodes_file(last) for last in recorded_iterations(run_players.run.path)[-1:]
        )


def _first_view(run_players: Team) -> MenuView:
    """Return the policy's view of the first state of the evaluation, with the expert's reflection."""
    section = run_players.recipe.eval
    env = run_players.new_env(section.env)
    try:
        episode = fixed_episodes(env, section.splits[0], episodes=1, max_tasks=1, seed=run_players.recipe.seed)[0]
        env.reset(seed=episode.seed, options={"task": episode.task})
        said = None if run_players.recipe.players.reflector.player == "none" else env.hints().reflection
        observation = env.observation
    finally:
        env.close()
    state = State(observation, seed=episode.seed, said={} if said is None else {"reflector": said})
    return menu_view("policy", run_players.layout, state, menu_of(state, run_players.layout))
