"""``Team`` of a recipe: the environments that it makes for itself."""

from __future__ import annotations

from pathlib import Path

from reflectrl.config import load_recipe
from reflectrl.core import register_env
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
