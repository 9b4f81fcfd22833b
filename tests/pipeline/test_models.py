"""``Team`` of a recipe: the environments and the base that it makes for itself."""

from __future__ import annotations

import shutil
from pathlib import Path

from trained_runs import TrainedRuns

from reflectrl.config import load_recipe, load_saved_recipe
from reflectrl.core import register_env
from reflectrl.core.run_files import BASE, RECIPE, STAGES
from reflectrl.envs.number_line import NumberLine
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.team import Team

OPEN: list[NumberLine] = []


class OpenLine(NumberLine):
    """Number line that is in ``OPEN`` until it is closed."""

    name = "open_line"

    def __init__(self, size: int = 10) -> None:
        super().__init__(size)
        OPEN.append(self)

    def close(self) -> None:
        OPEN.remove(self)


def test_environments_made_to_read_their_rules_and_labels_are_closed(tmp_path: Path) -> None:
    register_env(OpenLine.name, OpenLine)
    models = Team(load_recipe("number_line/nano", [f"env.name={OpenLine.name}"]), RunFolder(tmp_path))
    assert models.instructions == OpenLine.instructions
    assert models.layout.labels == "letters"
    assert len(models.labels) == OpenLine.max_actions
    assert OPEN == []
    [env] = models.env()  # this one belongs to its caller
    assert [env] == OPEN


def test_the_built_in_base_is_made_once_of_the_same_rows(trained_run: TrainedRuns, tmp_path: Path) -> None:
    shutil.copytree(trained_run(stages=STAGES[:1]), run := tmp_path / "run")
    recipe = load_saved_recipe(run / RECIPE)

    def made() -> tuple[int, str]:
        folder = Path(Team(recipe, RunFolder(run)).base("policy").name)
        return (folder / "model.safetensors").stat().st_mtime_ns, (folder / "tokenizer.json").read_text()

    first = made()
    assert made() == first
    rows = run / "sft" / "policy.jsonl"
    rows.write_text(rows.read_text().replace("Number", "Nomber"))  # of the same size, as if gen-data had run again
    (again, tokens) = made()
    assert again > first[0]
    assert "Nomber" in tokens
    shutil.rmtree(run / BASE)
    assert made()[1] == tokens
