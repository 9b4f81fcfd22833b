"""A new seat of the library is one file and one line: a copy of the library with these knows it everywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = '''
"""The seat ``tally``: counts the actions of the episode so far."""

from collections import Counter
from typing import ClassVar, Literal

from reflectrl.core import Utterance
from reflectrl.core.metric import metric
from reflectrl.core.settings import Count
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.prompts.views import Role
from reflectrl.seats.base import SeatKind, SeatSection


class TallySection(SeatSection):
    """The player that counts actions."""

    player: Literal["plain", "remote"] = "plain"
    """Who counts."""
    most: Count = 3
    """Number of actions to name at most."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of ``remote``."""

    used_by: ClassVar = {"most": ("plain",)}


class Tally:
    """Says how often each action was played."""

    misses = (0, 0)

    def __init__(self, most):
        self._most = most

    def say(self, views, draws):
        """Return one count a view."""
        self.misses = (self.misses[0] + len(views), self.misses[1])
        return [Utterance(", ".join(f"{a} {n}x" for a, n in Counter(v.past).most_common(self._most))) for v in views]


SEAT = SeatKind(
    role=Role("tally", reads=("reflector",), cue="Tally:"),
    section=TallySection,
    make=lambda section, bench: Tally(section.most + 0 * bench.seed("tally")),
    about="Tally of the actions; absent: none.",
    misses="tally_misses",
    metrics={name: metric(f"rollout/{name}", default=None) for name in ("tally_misses", "tally_words")},
    measure=lambda played: {"tally_words": 1.0 * ("tally" in played[0].turns[0].said)},
)
'''
PROGRAM = """
import json, sys
from pathlib import Path
from trained_runs import play_stages, small_recipe
from reflectrl.config import load_recipe
from reflectrl.config.spending import endpoints_of
from reflectrl.config.trust import asked_endpoints, wishes
from reflectrl.core import InvalidInput
from reflectrl.data_gen.rows import read_rows
from reflectrl.pipeline.agent import load_agent
from reflectrl.pipeline.inputs import changed_inputs, stage_inputs
from reflectrl.report import report
from reflectrl.rollout import policy_views
from reflectrl.rollout.record import read_trajectories
from reflectrl.seats.table import MOMENTS, SEEN_WORDS

run, plain = Path(sys.argv[1]), small_recipe()
assert MOMENTS["tally"] == "before_act" and SEEN_WORDS["policy"] == ("planner", "memory", "reflector", "tally")
recipe = small_recipe("players.tally={most: 2}")
assert load_recipe(recipe) == recipe and [*wishes(recipe)] == []
remote = load_recipe(recipe, ["players.tally={player: remote}", "players.tally.most=3"])
assert "tally" in endpoints_of(remote.model_dump()) and [*asked_endpoints(remote)] == ["players.tally.endpoint"]
for override, sentence in {
    "players.tally.mots=3": "did you mean 'most'",
    "players.tally.player=remote": "players.tally.most: it is used by player plain",
}.items():
    try:
        load_recipe(recipe, [override])
    except InvalidInput as error:
        assert sentence in str(error), error
    else:
        raise AssertionError(override)
begun = stage_inputs(recipe, "gen-data")
[(changed, _, _)] = changed_inputs(load_recipe(recipe, ["players.tally.most=1"]), "gen-data", begun)
assert changed == "players.tally.most"
play_stages(recipe, run)
assert all("Tally:" in row.prompt.said for row in read_rows(run / "sft" / "policy.jsonl"))
header, played = read_trajectories(run / "trajectories" / "eval-rlft-local-sampled.jsonl")
for episode in played:
    for view, turn in zip(policy_views(episode, header.prompt), episode.turns, strict=True):
        assert f"Tally: {turn.said['tally'].text}".rstrip() in view.prompt.said.splitlines()
assert any("x" in turn.said["tally"].text for episode in played for turn in episode.turns)
metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
assert [(each["tally_misses"], each["tally_words"]) for each in metrics] == [(0.0, 1.0)] * len(metrics)
agent = load_agent(run)
assert agent.act(played[0].turns[0].observation, ["add one"], before={}).said["tally"].text == "add one 1x"
report([run], run / "report.html")
"""


@pytest.mark.slow
def test_a_seat_is_one_file_and_one_line(tmp_path: Path) -> None:
    library = shutil.copytree(ROOT / "reflectrl", tmp_path / "reflectrl", ignore=shutil.ignore_patterns("__pycache__"))
    (library / "seats" / "tally.py").write_text(FILE)
    listed = (library / "seats" / "__init__.py").read_text()
    (library / "seats" / "__init__.py").write_text(
        listed.replace('    "reflector",\n', '    "reflector",\n    "tally",\n')
    )
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = os.pathsep.join([str(tmp_path), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, program, tmp_path / "run"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
