"""``Ledger``: ``stages.json`` of a run folder, with the inputs of each stage and the sizes of what it made.

A file that is gone or has another size is refused when it is read, and so is an edited recipe. Another file of the same
size is not noticed, except in a policy that was evaluated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reflectrl.core.errors import InvalidInput
from reflectrl.core.files import fingerprint, size
from reflectrl.core.jsonl import decode, read_json
from reflectrl.core.origin import WRITTEN_BY, check_format
from reflectrl.core.run_files import LEDGER, MADE_AGAIN, RECIPE, STAGES


class Ledger:
    """The ledger of ``run``, empty if there is none; raises ``InvalidInput`` if it is damaged or of another format."""

    def __init__(self, run: Path) -> None:
        self._run, self.stages = run, dict[str, Any]()
        if (run / LEDGER).exists():
            self.stages = read_json(run / LEDGER, "the ledger of a run folder: put it back, or delete the folder")
            if not isinstance(self.stages, dict):
                raise self.damaged("expected an object with the stages")
            check_format(run, self.stages.pop(WRITTEN_BY, None))
        made = {stage: self._part(stage, "products", dict[str, int]) for stage in reversed(STAGES)}  # the first maker
        self.made = {name: (stage, then) for stage, sizes in made.items() for name, then in sizes.items()}

    def damaged(self, why: str) -> InvalidInput:
        """Return the error that reports a damaged ledger."""
        return InvalidInput(f"{self._run / LEDGER} is not a ledger ({why}); put it back, or delete the folder.")

    def deleted(self, stage: str) -> list[str]:
        """Return the products of ``stage`` that were deleted and that the stage can make again."""
        made = [name for name, (by, _) in self.made.items() if by == stage and name in MADE_AGAIN]
        return [name for name in made if not (self._run / name).exists()]

    def exchanged(self) -> list[str]:
        """Return the policies that are not those that were evaluated."""
        then = self._part("eval", "policies", dict[str, str])
        return [name for name in then if fingerprint(self._run / name) not in (None, then[name])]

    def verify(self, name: str) -> Path:
        """Return the path of ``name``; raises ``InvalidInput`` for a product that is gone or has another size."""
        path, (stage, then) = self._run / name, self.made.get(name, ("", None))
        now = size(path) if path.exists() else None
        if then not in (None, now):
            what = "is gone" if now is None else f"has {now:,} bytes instead of {then:,}"
            cure = "train in another --run"
            if name in MADE_AGAIN:
                cure = f"{'' if now is None else 'delete it and '}run `reflectrl {stage}`, which makes it again"
            raise InvalidInput(f"{path}, which the stage {stage!r} wrote, {what}; put it back, or {cure}.")
        return path

    def recipe(self) -> Path:
        """Return the path of ``recipe.yaml``; raises ``InvalidInput`` if no stage was done with what it holds.

        While a stage is open, it may be that of the previous command, because the ledger is written first.
        """
        path, entries = self._run / RECIPE, [each for each in self.stages.values() if isinstance(each, dict)]
        known = [each.get("recipe") for each in entries]
        if all(each.get("done") for each in entries) and any(known) and fingerprint(path) not in (None, *known):
            raise InvalidInput(
                f"{path} is not the recipe that the stages of this run were done with: it was edited since. Put back "
                "what was there, or run the stages again in another --run."
            )
        return path

    def _part(self, stage: str, name: str, kind: Any) -> Any:
        entry = self.stages.get(stage)
        given = entry.get(name, {}) if isinstance(entry, dict) else {}
        return decode(kind, given, f"{self._run / LEDGER}, {name} of {stage}")
