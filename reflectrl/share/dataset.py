"""``export_rows``: the SFT rows of a run as a dataset for other trainers, with a card.

reflector.jsonl  policy.jsonl  policy-no-reflection.jsonl  README.md
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.addresses import with_texts
from reflectrl.core.files import in_one_move, write_text
from reflectrl.core.jsonl import write_jsonl
from reflectrl.core.run_files import sft_rows_file
from reflectrl.data_gen.rows import Row, read_rows
from reflectrl.pipeline.folder import RunFolder, read_recipe
from reflectrl.prompts.format import ActionMode
from reflectrl.report.card import RowsFile, dataset_card
from reflectrl.share.scrub import Scrubber

Form = Literal["trl", "sharegpt", "jsonl"]
"""Prompt and completion, as TRL's ``SFTTrainer`` takes them; conversations of two turns; or all that a row knows."""
_KINDS = ("reflector", "policy", "policy-no-reflection")


def export_rows(run: Path, out: Path, form: Form) -> list[RowsFile]:
    """Write the SFT rows of a run folder as plain text to the new folder ``out``, which ``load_dataset`` reads.

    Prompts are whole: they are not cut to the length of any model. Private data of this machine are removed from them.

    Raises:
        InvalidInput: an ``out`` that exists, a run folder without rows, or rows with pictures.
        WorkFailed: the disk refused to write.

    """
    if os.path.lexists(out):
        raise InvalidInput(f"{out} exists already and is not replaced; choose another --out.")
    recipe = read_recipe(run)
    folder = RunFolder(run)
    rows = {kind: read_rows(folder.verified(sft_rows_file(kind), "gen-data")) for kind in _KINDS}
    if any(row.prompt.images for of_kind in rows.values() for row in of_kind):
        raise InvalidInput(
            f"the rows of {run} show pictures (model.images), which a dataset of texts cannot hold; export a run whose "
            "states are shown in words."
        )
    mode = recipe.prompt.action_mode
    files = [
        RowsFile(kind, len(given), len({row.task for row in given}), sum(row.negative for row in given))
        for kind, given in rows.items()
    ]
    scrubber = Scrubber(run)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with in_one_move(out) as fresh:
            for kind, given in rows.items():
                texts = (with_texts(_FORMS[form](row, mode), scrubber.text) for row in given)
                write_jsonl(fresh / f"{kind}.jsonl", texts)
            write_text(fresh / "README.md", dataset_card(scrubber.recipe(recipe), files, _COLUMNS[form]))
    except OSError as error:
        raise WorkFailed(
            f"the dataset cannot be written to {out}: {error.strerror or error}; make room or choose another --out."
        ) from error
    return files


def _plain(row: Row, mode: ActionMode) -> dict[str, Any]:
    return {"prompt": row.prompt.text, "completion": row.written(mode)}


def _conversation(row: Row, mode: ActionMode) -> dict[str, Any]:
    turns = (("human", row.prompt.text), ("gpt", row.written(mode).strip()))
    return {"conversations": [{"from": speaker, "value": words} for speaker, words in turns]}


def _everything(row: Row, mode: ActionMode) -> dict[str, Any]:
    menu = row.prompt.menu
    return {
        **_plain(row, mode),
        "actions": list(menu.actions) if menu else [],
        "labels": list(menu.labels) if menu else [],
        "action": row.action if menu else "",
        "thought": row.thought,
        "task": row.task,
        "seed": row.seed,
        "step": row.step,
        "negative": row.negative,
    }


_FORMS: Mapping[Form, Callable[[Row, ActionMode], dict[str, Any]]] = {
    "trl": _plain,
    "sharegpt": _conversation,
    "jsonl": _everything,
}
_COLUMNS: Mapping[Form, str] = {
    "trl": "`prompt` and `completion`, plain texts for TRL's `SFTTrainer`, which adds the end of text",
    "sharegpt": "`conversations` of two turns, each with `from` (human, gpt) and `value`",
    "jsonl": (
        "`prompt` and `completion`; `actions` and `labels` of the menu, and the `action` that is right; the `thought` "
        "before it; `task`, `seed` and `step` of the episode; `negative` for a state after a deliberate mistake"
    ),
}
