"""The lessons of a run that is not finished: each is written as it ends, so nothing paid for is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput
from reflectrl.data_gen.samples import Lesson
from reflectrl.rollout.jsonl import append_jsonl, decode, mend_tail, read_jsonl

FORMAT = "reflectrl-lessons"
VERSION = 1
NEUTRAL = {
    "samples": True,
    "concurrency": True,
    "endpoint": {"concurrency", "timeout_s", "max_attempts", "api_key_env"},
}
"""Settings of the data section that do not change what a lesson says."""


class UnfinishedRun:
    """Finished lessons of one run, in order of finishing, in one file."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        """Use ``path`` for the lessons of ``recipe``."""
        self._path = path
        self._head: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "seed": recipe.seed,
            "env": recipe.env.model_dump(mode="json", include={"name", "options"}),
            "prompt": recipe.prompt.model_dump(mode="json"),
            "data": recipe.data.model_dump(mode="json", exclude=NEUTRAL),  # type: ignore[arg-type]
        }

    def lessons(self) -> dict[int, Lesson]:
        """What an earlier process finished, by number.

        Raises:
            InvalidInput: the file belongs to other settings.

        """
        mend_tail(self._path)
        lines = list(read_jsonl(self._path)) if self._path.exists() else []
        if lines and lines[0][1] != self._head:
            raise InvalidInput(
                f"{self._path} holds finished episodes of other settings; expected those of this recipe: delete "
                "the file to begin anew, or use another run folder."
            )
        found = [decode(Lesson, value, where) for where, value in lines[1:]]
        return {lesson.number: lesson for lesson in found}

    def add(self, lesson: Lesson) -> None:
        """Write one finished lesson."""
        begun = self._path.exists() and self._path.stat().st_size > 0
        append_jsonl(self._path, (lesson,) if begun else (self._head, lesson))

    def close(self) -> None:
        """The run is finished and its data written elsewhere."""
        self._path.unlink(missing_ok=True)
