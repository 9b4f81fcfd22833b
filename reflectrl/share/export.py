"""``export_run``: a run's agent as a folder whose players load without this library.

the policy's weights, configuration and tokenizer  reflector/  agent.json  recipe.yaml  README.md  example.py
example.json
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from huggingface_hub import metadata_load, try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from yaml import YAMLError

from reflectrl.config import Recipe, dump_recipe
from reflectrl.config.agent_file import AgentFile, read_agent_file, without_server, write_agent_file
from reflectrl.config.trust import remember
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.files import in_one_move, read_text, write_text
from reflectrl.core.run_files import (
    AGENT,
    PLAYER_FILES,
    POLICIES,
    POLICY,
    POLICY_SFT,
    RECIPE,
    REFLECTOR,
    REFLECTOR_RLFT,
    RESULTS,
    recorded_iterations,
    training_episodes_file,
)
from reflectrl.lm.chat import turn_of
from reflectrl.lm.load import BUILTIN, load_model, load_processor, save_model
from reflectrl.lm.safe_files import check_folder
from reflectrl.lm.section import ModelSection, package_of
from reflectrl.pipeline.folder import RunFolder, last_policy, read_recipe
from reflectrl.pipeline.team import Team
from reflectrl.prompts.views import MenuView, State
from reflectrl.report.card import Base, Card, model_card
from reflectrl.report.runs import read_runs
from reflectrl.rollout.loop import fixed_episodes
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import episodes_file, read_results, read_validated, write_validated
from reflectrl.rollout.turn import menu_of, policy_views
from reflectrl.seats.table import menu_view
from reflectrl.share.hub import is_hub_name
from reflectrl.share.scrub import Scrubber

_ADAPTER = "adapter_config.json"
_WRITTEN = (*PLAYER_FILES, REFLECTOR, AGENT, RECIPE, "README.md", "example.py", "example.json")
"""Patterns of the names that an export writes into its folder."""
_SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja", ".py")
"""Suffixes of the files that are copied from a player's folder; never a pickle."""


def export_run(
    run: Path,
    out: Path | None = None,
    *,
    merge: bool = False,
    replace: bool = False,
    license: str | None = None,
    datasets: Sequence[str] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the agent of a run folder to ``out``, and return that path.

    Args:
        run: the run folder; its latest policy is exported.
        out: a new folder; ``export`` in the run if absent.
        merge: merge adapters into their base; always done for a base that is neither on the hub nor in a package.
        replace: replace an earlier export at ``out``, in one move.
        license: the hub's identifier of the licence, such as ``mit``; that of the base if absent.
        datasets: datasets of the hub on which the players were trained, for the card.
        tell: receives a line for everything unusual about the export.

    Raises:
        InvalidInput: ``run`` is not a run folder, has no policy or a damaged part; ``out`` is not an export, or one
            that is not to be replaced; the licence or a dataset is none of the hub's names.
        WorkFailed: the disk refused to write.

    """
    out = run / "export" if out is None else out
    _check_place(out, replace=replace)
    if license is not None and not re.fullmatch("[a-z0-9][a-z0-9.-]{1,40}", license):
        raise InvalidInput(
            f"--license {license!r} was given; expected the hub's name of a licence, such as apache-2.0."
        )
    if wrong := [name for name in datasets if not is_hub_name(name)]:
        raise InvalidInput(f"--dataset {wrong[0]!r} was given; expected OWNER/NAME, such as me/taxi-rows.")
    recipe = read_recipe(run)
    if read_agent_file(run) is not None:
        raise InvalidInput(f"{run} is an exported agent already; give its run folder, or copy it.")
    if recipe.players.memory is not None:
        raise InvalidInput(
            f"the agent of {run} reads the teacher's episodes (players.memory), which an export does not hold; export "
            "a run without a memory, or use this one from its folder."
        )
    if recipe.model.images:
        raise InvalidInput(
            f"the agent of {run} reads pictures (model.images), which an export and its example do not show; use it "
            "from its folder, with reflectrl.load_agent."
        )
    policy = last_policy(recipe, run)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with in_one_move(out) as fresh:
            _Export(recipe, run, fresh, policy, merge, tell, Scrubber(run), license, datasets).write()
    except OSError as error:
        raise WorkFailed(
            f"the export cannot be written to {out}: {error.strerror or error}; make room or choose another --out."
        ) from error
    remember(out, recipe, read_text(out / RECIPE, "the recipe of this export"))  # it is the user's own
    return out


def _check_place(out: Path, *, replace: bool) -> None:
    if out.resolve() == Path.cwd():
        raise InvalidInput(f"--out {out} is the current folder, which cannot be replaced; choose another --out.")
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir() or out.is_symlink() or (not (out / AGENT).is_file() and any(out.iterdir())):
        raise InvalidInput(f"{out} exists and is not an export, so it is not replaced; choose another --out.")
    patterns = [*_WRITTEN, *(f"{REFLECTOR}/{name}" for name in PLAYER_FILES)]
    names = (path.relative_to(out).as_posix() for folder in (out, out / REFLECTOR) for path in folder.glob("*"))
    if others := sorted(name for name in names if not any(fnmatchcase(name, each) for each in patterns)):
        raise InvalidInput(
            f"{out} also holds {', '.join(others[:3])}{', ...' if others[3:] else ''}, which an export would remove; "
            "move that away, or choose another --out."
        )
    if read_agent_file(out) is not None and not replace:
        raise InvalidInput(
            f"{out} holds an earlier export, which is not replaced unasked; give --replace, or choose another --out."
        )


@dataclass
class _Export:
    """Writes one export to the folder ``to``."""

    recipe: Recipe
    run: Path
    to: Path
    policy: str
    merge: bool
    tell: Callable[[str], None]
    scrubber: Scrubber
    license: str | None
    datasets: Sequence[str]
    notes: list[str] = field(default_factory=list)
    """Lines for the model card, as reported to ``tell``."""

    def write(self) -> None:
        """Write all files of the export."""
        run_players, scrubber = Team(self.recipe, RunFolder(self.run)), self.scrubber
        if self.policy == POLICY_SFT and self.recipe.rlft is not None:
            self._note("RLFT is not finished, so this is the policy after supervised fine-tuning")
        self._player(self.to, self.policy, self.recipe.model)
        if self.recipe.players.reflector.fine_tuned:
            trained = self.recipe.players.reflector.trained and self.policy == POLICY
            frozen = REFLECTOR_RLFT if trained else REFLECTOR
            self._player(self.to / REFLECTOR, frozen, self.recipe.reflector_model or self.recipe.model)
        recipe = scrubber.recipe(without_server(self.recipe))
        options = {**recipe.env.options, **recipe.eval.env}
        layout = replace(run_players.layout, instructions=scrubber.text(run_players.layout.instructions))
        agent = AgentFile(recipe.env.name, options, layout, run_players.max_actions)
        adapter, reflecting = ((place / _ADAPTER).is_file() for place in (self.to, self.to / REFLECTOR))
        write_agent_file(self.to, agent)
        write_text(self.to / RECIPE, dump_recipe(recipe))
        if recipe.prompt.action_mode == "enumerated":  # other policies write a thought first
            write_example(self.to, run_players, self.policy, scrubber, base=recipe.model.name if adapter else None)
        run = read_runs([self.run])[0]
        run = replace(run, rows=tuple(replace(row, benchmark=scrubber.text(row.benchmark)) for row in run.rows))
        base = _base(self.recipe.model)
        card = Card(
            run,
            recipe,
            agent,
            self.policy,
            adapter,
            base,
            self.notes,
            reflector_adapter=reflecting,
            validated=read_validated(self.to),
            license=self.license or (None if base is None else base.license),
            datasets=self.datasets,
        )
        write_text(self.to / "README.md", model_card(card))

    def _player(self, place: Path, name: str, section: ModelSection) -> None:
        """Copy the player ``name`` of the run to ``place``, a new folder, or merge its adapter."""
        role = "policy" if place == self.to else "reflector"
        stage = "rlft" if name in (POLICY, REFLECTOR_RLFT) else "sft"
        source = RunFolder(self.run).verified(name, stage)
        _check_weights(source)
        if (source / _ADAPTER).is_file() and (self.merge or not _is_public(section.name)):
            why = "as asked" if self.merge else f"since its base {self.scrubber.value(section.name)} is not on the hub"
            self._note(f"the adapter of the {role} is merged into its base, {why}")
            if section.quantization != "none":
                self._note(
                    f"the {role} was trained on a base in {section.quantization}; merged into the base in float32, its "
                    "probabilities differ slightly from those in training and evaluation"
                )
            if section.dtype == "bfloat16":
                self._note(
                    f"the merged weights of the {role} are in float32; loaded in bfloat16, they lose a part of what "
                    "the adapter learned, which it keeps without --merge"
                )
            _merge(source, section, place)
        else:
            _copy(source, place)
        self.scrubber.configurations(place)
        if (validated := read_validated(source)) is not None:
            write_validated(place, validated)
        if (place / _ADAPTER).is_file():
            _name_base(place / _ADAPTER, section.name)
        if section.trust_remote_code:
            self._note(f"the base of the {role} comes with Python code: read it, then pass trust_remote_code=True")

    def _note(self, sentence: str) -> None:
        self.tell(sentence)
        self.notes.append(sentence)


def _is_on_hub(name: str) -> bool:
    """Return whether a base is on the hub; old models such as gpt2 have no owner."""
    return name != BUILTIN and not Path(name).exists() and is_hub_name(name if "/" in name else f"nobody/{name}")


def _is_public(name: str) -> bool:
    """Return whether others can get a base: from the hub, or in a package."""
    return package_of(name) is not None or _is_on_hub(name)


def _check_weights(folder: Path) -> None:
    """Check that a folder holds a complete player."""
    check_folder(folder)
    weights = sorted(folder.glob("*.safetensors"))
    try:
        if not weights or not any((folder / name).is_file() for name in (_ADAPTER, "config.json")):
            raise ValueError("weights in safetensors or their configuration are missing")
        for path in weights:
            with safe_open(path, framework="pt") as file:
                file.keys()
    except (OSError, ValueError, SafetensorError) as error:
        raise InvalidInput(f"{folder} is not a complete player ({error}); train that player again.") from error


def _copy(source: Path, place: Path) -> None:
    place.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix in _SUFFIXES:
            shutil.copyfile(path, place / path.name)


def _merge(source: Path, section: ModelSection, place: Path) -> None:
    # in bfloat16, the base would round away a part of what the adapter learned
    whole = {"dtype": "float32", "compute": "float32"}
    plain = {"quantization": "none", "compile": False, "attn_implementation": "sdpa", **whole}
    save_model(load_model(source, section.model_copy(update=plain), trainable=False), place)


def _name_base(path: Path, name: str) -> None:
    """Write the base's hub name, and its commit if known, into an adapter's configuration."""
    values = json.loads(path.read_text(encoding="utf-8"))
    revision = values.get("revision") or (_revision(name) if _is_on_hub(name) else None)
    values |= {"base_model_name_or_path": name, "revision": revision}
    write_text(path, json.dumps(values, indent=2) + "\n")


def _base(section: ModelSection) -> Base | None:
    return Base(section.name, _revision(section.name), _license(section.name)) if _is_on_hub(section.name) else None


def _revision(name: str) -> str | None:
    """Return the commit of a hub model in this machine's cache."""
    cached = try_to_load_from_cache(name, "config.json")
    return Path(cached).parent.name if isinstance(cached, str) else None


def _license(name: str) -> str | None:
    cached = try_to_load_from_cache(name, "README.md")
    try:
        known = metadata_load(cached) if isinstance(cached, str) else None
    except (OSError, ValueError, YAMLError):  # a malformed card
        known = None
    found = known.get("license") if known else None
    return found if isinstance(found, str) else None


# ---- the example: a state of the run's episodes, and a program that chooses its action with transformers -------------

_PROGRAM = '''\
"""One action of this agent, for the state in example.json."""
import json
{sys}from pathlib import Path

{imports}

here = Path(__file__).parent
state = json.loads((here / "example.json").read_text(encoding="utf-8"))
tokenizer = AutoTokenizer.from_pretrained(here)
{model}
read = {{"add_special_tokens": not tokenizer.chat_template}}  # a chat template has its own
labels = [tokenizer(state["prompt"] + label, **read)["input_ids"][-1] for label in state["labels"]]
logits = model(input_ids=tokenizer(state["prompt"], return_tensors="pt", **read)["input_ids"]).logits[0, -1]
print(state["actions"][logits[labels].argmax()])
'''
_OF_ADAPTER = (
    "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer",
    "model = AutoPeftModelForCausalLM.from_pretrained(here).eval()",
)
_OF_WEIGHTS = (
    "from transformers import AutoModelForCausalLM, AutoTokenizer",
    "model = AutoModelForCausalLM.from_pretrained(here).eval()",
)
_OF_PACKAGE = (
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
    prompt = scrubber.text(seen.prompt.text)
    _, tokenizer = load_processor(str(folder), run_players.recipe.model)
    if (turn := turn_of(tokenizer)) is not None:
        prompt = f"{turn.before}{prompt.rstrip()}{turn.after}"
    state = {
        "prompt": prompt,
        "labels": list(seen.menu.labels),
        "actions": [scrubber.text(action) for action in seen.menu.actions],
    }
    write_text(folder / "example.json", json.dumps(state, indent=1) + "\n")
    packaged = base is not None and package_of(base) is not None
    imports, model = _OF_PACKAGE if packaged else _OF_WEIGHTS if base is None else _OF_ADAPTER
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
