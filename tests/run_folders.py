"""Run folders for the tests of the report, written with the library's own writers."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import fields, replace

from records import chose, turn_of

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.core import Observation, Task, Trajectory
from reflectrl.core.jsonl import encode, write_jsonl
from reflectrl.core.origin import this_origin
from reflectrl.prompts import PromptFormat
from reflectrl.rollout.iteration import Iteration, Throughput
from reflectrl.rollout.record import Header, write_trajectories
from reflectrl.rollout.results import summarise, write_results

PACE = {"seconds": 0.5, "steps_per_second": 20.0, "reflection_hit_rate": 0.9, "prompt_reuse": 0.0}
PACE |= {"env_failures": 0, "env_recycled": 0}
HOSTILE = "</pre><script>alert('x')</script> & \x1b[31mred\x1b[0m \x00\x07 \u202egnp.exe"


def episode(task="t-0", *, success=True, text="Room 1.", reflection="Good.", menu=("left", "right"), odds=(0.25, 0.75)):
    """Return an episode of one step, in which the last action of the menu is chosen."""
    decision = chose(len(menu) - 1, menu[-1], -0.29, 0.56, tuple(odds))
    turn = turn_of(Observation(text, menu), menu, reflection, decision, 1.0 if success else -0.5, illegal=not success)
    return Trajectory(Task(task), 0, (turn,), terminated=success, truncated=not success, success=success)


def iteration(number, **changed):
    """Return the values of a line of metrics.jsonl; a metric that not every run has is ``None``."""
    line = {each.name: None for each in fields(Iteration)}
    line |= {"iteration": number, "lesson": "main", "success": 0.5, "episode_return": 0.1 * number, "length": 2.0}
    line |= {"illegal": 0.0, "entropy": 0.6, "loss": 0.1, "kl": 0.0, "clipped": 0.0, "replayed": 0}
    line |= {"grad_norm": 0.2, "learning_rate": 1e-3, "logprob_gap": 0.0}
    line |= {"success_by_group": {}, "validation_by_group": {}}
    return {**line, "env_steps": 10 * (number + 1), **changed}


def make_run(path, played=None, metrics=(), training=(), benchmark=""):
    """Write a run folder with each policy's evaluation episodes, ``played``, and each iteration's, ``training``."""
    path.mkdir(parents=True)
    (path / "recipe.yaml").write_text("name: nano\nenv:\n  name: corridor\n", encoding="utf-8")
    header, rows = Header("corridor", {}, PromptFormat()), []
    for policy, episodes in (played or {}).items():
        reflections = "none" if policy in ("random", "expert") else "local"
        row = summarise(policy, reflections, "sampled", "test", episodes)
        rows.append(replace(row, benchmark=benchmark))
        write_trajectories(path / "trajectories" / f"eval-{policy}-{reflections}-sampled.jsonl", header, episodes)
    if rows:
        write_results(path / "eval.jsonl", rows)
    for number, episodes in enumerate(training):
        write_trajectories(path / "trajectories" / f"rlft-{number:05d}.jsonl", header, episodes)
    if metrics:
        write_jsonl(path / "metrics.jsonl", metrics)
        paces = [Throughput(iteration=line["iteration"], **PACE) for line in metrics]
        write_jsonl(path / "throughput.jsonl", paces)
    return path


def evaluated(folder, success, sft, *overrides, blank=0.01, episodes=100, metrics=(), split="test"):
    """Write a run folder of number_line/nano with the given success before and after RLFT."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(dump_recipe(load_recipe("number_line/nano", overrides)))
    won = (("rlft", "blank", blank), ("sft", "local", sft), ("rlft", "local", success))
    silent = "players.reflector.player=none" in overrides
    rows = []
    for policy, reflections, rate in won[1:] if silent else won:
        played = [episode(f"t-{n}", success=n < round(rate * episodes)) for n in range(episodes)]
        row = summarise(policy, "none" if silent else reflections, "sampled", split, played)
        rows.append(replace(row, metrics=replace(row.metrics, success=rate)))
    write_results(folder / "eval.jsonl", rows)
    if metrics:
        write_jsonl(folder / "metrics.jsonl", metrics)
    return folder


def forget_digests(run):
    """Remove the sizes and digests from a run's ledger, so that a test may change files."""
    ledger = json.loads((run / "stages.json").read_text())
    for entry in ledger.values():
        for name in ("products", "policies", "recipe"):
            entry.pop(name, None)
    (run / "stages.json").write_text(json.dumps(ledger))
    return run


def write_ledger(run, **entries):
    """Write the ``stages.json`` of a run that this version began, with these entries."""
    (run / "stages.json").write_text(json.dumps({"written_by": encode(this_origin()), **entries}))


def unfinish(run, stage):
    """Mark a finished stage as not done in a run's ledger, as if it had been killed."""
    ledger = json.loads((run / "stages.json").read_text())
    ledger[stage] |= {"done": False, "products": {}}
    (run / "stages.json").write_text(json.dumps(ledger))


def blocks(page):
    """Return the contents of the page's data blocks by the keys of their sources."""
    index = json.loads(re.search('<script type="application/json" id="index">(.*?)</script>', page)[1])
    packed = re.findall('<script type="text/plain" id="source-\\d+">(.*?)</script>', page)
    keys = [source["key"] for source in index["sources"]]
    return dict(zip(keys, map(unpacked, packed), strict=True))


def pictures(page):
    """Return the PNG files in a page."""
    (found,) = re.findall('<script type="application/json" id="pictures">(.*?)</script>', page)
    return [base64.b64decode(picture) for picture in json.loads(found)]


def unpacked(block):
    """Return the content of a packed block as a browser reads it."""
    return json.loads(zlib.decompress(base64.b64decode(block)))


def tasks(block):
    """Return the names of the tasks of a block's episodes."""
    return [block["texts"][episode[0]] for episode in block["episodes"]]
