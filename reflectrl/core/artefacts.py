"""``Artefacts``: the products of the stages of a run folder, with size and SHA-256 from the ledger ``stages.json``.

Readers verify a file here before they use it, so a damaged or replaced file is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from reflectrl.core.errors import InvalidInput
from reflectrl.core.files import open_regular
from reflectrl.core.jsonl import decode, read_json
from reflectrl.core.layout import BASE, LEDGER, LOOSE_FOLDERS, MADE_AGAIN, PRODUCTS, RECIPE
from reflectrl.core.origin import WRITTEN_BY, check_format


@dataclass(frozen=True)
class Digest:
    """Size in bytes and SHA-256 of a file, or of all files of a folder with their names, except hidden ones."""

    size: int
    sha256: str


def digest(path: Path) -> Digest:
    """Return the digest of a file or folder; raises ``OSError`` for anything else in it."""
    if not path.is_dir():
        with open_regular(path) as file:
            return Digest(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
    inside = [(entry.name, digest(entry)) for entry in sorted(path.iterdir()) if not entry.name.startswith(".")]
    names = "".join(f"{part.size} {part.sha256} {name}\0" for name, part in inside)
    return Digest(sum(part.size for _, part in inside), hashlib.sha256(names.encode(errors="replace")).hexdigest())


def digest_text(text: str) -> Digest:
    """Return the digest of a file that holds ``text`` in UTF-8."""
    content = text.encode()
    return Digest(len(content), hashlib.sha256(content).hexdigest())


def products(run: Path, stage: str) -> Iterator[tuple[str, Path]]:
    """Yield the products of ``stage`` that exist in ``run``: the path relative to the folder, and the full path."""
    for pattern in PRODUCTS[stage]:
        for path in sorted(run.glob(pattern)):
            if not path.name.startswith("."):
                yield path.relative_to(run).as_posix(), path


class Artefacts:
    """The recorded digests of a run folder.

    Args:
        run: the folder.
        ledger: contents of its ``stages.json``.

    Raises:
        InvalidInput: a digest in the ledger is malformed.

    """

    def __init__(self, run: Path, ledger: Mapping[str, Any]) -> None:
        self._run = run
        self._recorded: dict[str, tuple[str, Digest]] = {}
        self._recipes: list[Digest] = []
        self._all_done = True
        where = f"{run / LEDGER}, a digest"
        for stage, entry in ledger.items():
            if not isinstance(entry, Mapping):
                continue
            self._all_done = self._all_done and entry.get("done") is True
            if "recipe" in entry:
                self._recipes.append(decode(Digest, entry["recipe"], where))
            given = entry.get("artefacts", {})
            for name, value in given.items() if isinstance(given, Mapping) else ():
                self._recorded[name] = (stage, decode(Digest, value, where))

    def __contains__(self, name: str) -> bool:
        """Return whether a file or folder, or something in it, is recorded."""
        return any(True for _ in self._under(name))

    def deleted(self, stage: str) -> list[str]:
        """Return the products of ``stage`` that were deleted and that the stage can make again."""
        units = dict.fromkeys(_unit(name) for name, (made_by, _) in self._recorded.items() if made_by == stage)
        return [unit for unit in units if _is_made_again(unit) and not (self._run / unit).exists()]

    def verify(self, name: str) -> Path:
        """Return the path of ``name``, a file or folder of the run, after verifying each recorded file in it.

        Raises:
            InvalidInput: a file was damaged, replaced, removed or added.

        """
        path, recorded = self._run / name, dict(self._under(name))
        if recorded and not path.exists():
            stage = next(stage for stage, _ in recorded.values())
            cure = f", or run `reflectrl {stage}` for this run, which makes it again" if _is_made_again(name) else ""
            raise InvalidInput(f"{path}, which the stage {stage!r} wrote, is gone; put it back{cure}.")
        for known, (stage, then) in recorded.items():
            self._compare(known, stage, then)
        if recorded and name not in recorded:
            self._refuse_additions(path, {known.removeprefix(f"{name}/").partition("/")[0] for known in recorded})
        return path

    def verify_recipe(self) -> Path:
        """Return the path of ``recipe.yaml``, after verifying that a stage wrote its content.

        While a stage is unfinished, the file may be that of the previous command, because the ledger is written first.

        Raises:
            InvalidInput: the file was changed.

        """
        path = self._run / RECIPE
        if self._recipes and self._all_done and path.is_file() and digest(path) not in self._recipes:
            raise InvalidInput(
                f"{path} does not hold the recipe that the stages of this run were done with: it was damaged or edited "
                "since. Put back the file that was there (`reflectrl recipes show NAME KEY=VALUE ...`, with what was "
                "given to the run, prints it); to change a setting, run the stages again in another --run."
            )
        return path

    def _under(self, name: str) -> Iterator[tuple[str, tuple[str, Digest]]]:
        for known, recorded in self._recorded.items():
            if known == name or known.startswith(f"{name}/"):
                yield known, recorded

    def _compare(self, name: str, stage: str, then: Digest) -> None:
        path, cure = self._run / name, _cure(name, stage)
        try:
            now = digest(path)
        except OSError as error:
            raise InvalidInput(
                f"{path}, which the stage {stage!r} wrote, cannot be read ({error.strerror}); put it back, or {cure}."
            ) from error
        if now != then:
            what = f"has {now.size:,} bytes instead of {then.size:,}" if now.size != then.size else "has other bytes"
            raise InvalidInput(
                f"{path} is not what the stage {stage!r} wrote: it {what}, so it was damaged or exchanged. Put back "
                f"the file that was there, or {cure}."
            )

    def _refuse_additions(self, folder: Path, written: Collection[str]) -> None:
        """Refuse files that no stage has written to ``folder``: they may change how a model is loaded."""
        for path in sorted(folder.iterdir()):
            if path.name not in written and not path.name.startswith("."):
                raise InvalidInput(f"{path} was put there after a stage had written that folder; take it away.")


def read_artefacts(run: Path) -> Artefacts:
    """Return the recorded artefacts of ``run``; none where there is no ledger.

    Raises:
        InvalidInput: the ledger is damaged.

    """
    return Artefacts(run, read_ledger(run))


def read_ledger(run: Path) -> dict[str, Any]:
    """Return the entries of ``stages.json`` of ``run``, by stage; empty where there is no such file.

    Raises:
        InvalidInput: the file cannot be read, is not a ledger, or was written in another format.

    """
    path = run / LEDGER
    if not path.exists():
        return {}
    ledger = read_json(path, "the ledger of a run folder: delete the folder to start over, or put back the file")
    if not isinstance(ledger, dict):
        raise no_ledger(run, "expected an object with the stages")
    check_format(run, ledger.pop(WRITTEN_BY, None))
    return ledger


def no_ledger(run: Path, why: str) -> InvalidInput:
    """Return the error that reports a damaged ``stages.json``."""
    return InvalidInput(
        f"{run / LEDGER} is not the ledger of a run folder ({why}); delete the folder to start over, or put back the "
        "file that was there."
    )


def _unit(name: str) -> str:
    """Return the unit that is deleted as a whole: a top-level file or folder, or one file of ``LOOSE_FOLDERS``."""
    top = name.partition("/")[0]
    return name if top in LOOSE_FOLDERS else top


def _is_made_again(unit: str) -> bool:
    return any(PurePosixPath(unit).match(pattern) for pattern in MADE_AGAIN)


def _cure(name: str, stage: str) -> str:
    unit = _unit(name)
    if _is_made_again(unit):
        return f"delete {unit} in that folder and run `reflectrl {stage}` for it, which makes it again"
    if unit.startswith(BASE):
        return "train in another --run"
    return "delete it, and nothing of it is shown"
