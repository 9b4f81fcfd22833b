"""SFT rows as a dataset for other trainers: it loads with ``datasets``, and TRL trains on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import reflectrl, refused
from datasets import load_dataset
from hub_server import TOKEN, HubServer
from quiet_trl import QUIET
from tiny import gpt2, tokenizer
from trl import SFTConfig, SFTTrainer

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.files import write_text
from reflectrl.data_gen import generate, read_rows
from reflectrl.pipeline.folder import RunFolder
from reflectrl.share.dataset import Form, export_rows

KINDS = ("reflector", "policy", "policy-no-reflection")
COLUMNS = {
    "trl": {"prompt", "completion"},
    "sharegpt": {"conversations"},
    "jsonl": {
        *("prompt", "completion", "actions", "labels", "action", "thought", "task", "seed", "step", "negative"),
    },
}


NAME = "a_b | <script>"


def taught(run: Path, *overrides: str) -> Path:
    recipe = load_recipe("number_line/nano", ("data.samples=24", *overrides))
    folder = RunFolder(run)
    with folder.locked():
        folder.begin(recipe, "gen-data")
        generate(recipe, run)
        folder.finish(recipe, "gen-data")
    return run


@pytest.fixture(scope="module")
def rows_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught(tmp_path_factory.mktemp("runs") / "run")


def loaded(folder: Path, kind: str, cache: Path) -> Any:
    return load_dataset(str(folder), kind, split="train", cache_dir=str(cache))


@pytest.mark.slow
@pytest.mark.parametrize("form", COLUMNS)
def test_the_hub_s_own_reader_finds_every_file_by_the_card(form: str, rows_of: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / form
    done = reflectrl("data", "export", rows_of, "--format", form, "--out", out)
    assert (done.code, done.out.splitlines()) == (0, [f"{out}/{kind}.jsonl: 24 rows" for kind in KINDS])
    for kind in KINDS:
        given, ours = loaded(out, kind, tmp_path / "cache"), read_rows(rows_of / "sft" / f"{kind}.jsonl")
        assert set(given.column_names) == COLUMNS[form]
        for row, mine in zip(given, ours, strict=True):
            if form == "sharegpt":
                turns = [(turn["from"], turn["value"]) for turn in row["conversations"]]
                assert turns == [("human", mine.prompt.text), ("gpt", mine.completion.strip())]
            else:
                assert (row["prompt"], row["completion"]) == (mine.prompt.text, mine.completion)
            if form == "jsonl":
                assert (row["task"], row["step"], row["negative"]) == (mine.task, mine.step, mine.negative)
                assert row["action"] == (mine.action if mine.prompt.menu else "")


@pytest.mark.slow
def test_trl_trains_on_the_rows_as_they_are(rows_of: Path, tmp_path: Path) -> None:
    export_rows(rows_of, tmp_path / "rows", "trl")
    trainer = SFTTrainer(
        model=gpt2(),
        args=SFTConfig(
            output_dir=str(tmp_path / "out"),
            max_steps=2,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            max_length=128,
            **QUIET,
        ),
        train_dataset=loaded(tmp_path / "rows", "reflector", tmp_path / "cache"),
        processing_class=tokenizer(),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[1] < losses[0]


def test_the_card_says_what_it_is_and_how_it_was_made(tmp_path: Path) -> None:
    run = taught(tmp_path / "run", "env.options={size: 12}", f"name='{NAME}'")
    export_rows(run, tmp_path / "rows", "jsonl")
    _, metadata, text = (tmp_path / "rows" / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    card = yaml.safe_load(metadata)
    assert [(each["config_name"], each["data_files"]) for each in card["configs"]] == [
        (kind, f"{kind}.jsonl") for kind in KINDS
    ]
    assert (card["size_categories"], "number_line" in card["tags"]) == (["n<1K"], True)
    assert "| policy | 24 | " in text
    assert "reflections by the environment's expert" in text
    assert r"# a\_b \| &lt;script&gt;: rows" in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize("form", COLUMNS)
def test_keys_and_folders_of_this_machine_are_in_no_row(
    form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAULT_TOKEN", "tok-1234567890")
    run = taught(tmp_path / "run", "env.name=leaky:Leaky", "data.samples=2")
    assert "tok-1234567890" in (run / "sft" / "policy.jsonl").read_text(encoding="utf-8")
    export_rows(run, tmp_path / "rows", form)
    for kind in KINDS:
        text = (tmp_path / "rows" / f"{kind}.jsonl").read_text(encoding="utf-8")
        assert "The key is [secret], in ~/keys." in text
        assert "tok-1234567890" not in text
        assert str(Path.home() / "keys") not in text


def test_written_answers_are_what_the_policy_writes(tmp_path: Path) -> None:
    run = taught(
        tmp_path / "run",
        "prompt.action_mode=thought_text",
        "sft.policy.label_smoothing=0",
        "players.reflector.player=none",
    )
    export_rows(run, tmp_path / "rows", "sharegpt")
    line = (tmp_path / "rows" / "policy.jsonl").read_text(encoding="utf-8").splitlines()[0]
    assert '"value": "<think>' in line
    assert line.endswith('one"}]}')


def test_nothing_is_replaced(rows_of: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    write_text(tmp_path / "file", "mine")
    (tmp_path / "link").symlink_to("nowhere")
    for out in (mine, tmp_path / "file", tmp_path / "link"):
        assert str(out) in refused("data", "export", rows_of, "--format", "trl", "--out", out)
    assert [*mine.iterdir()] == []
    assert (tmp_path / "file").read_text() == "mine"


def test_what_has_no_rows_of_texts_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "not a run folder" in refused("data", "export", tmp_path / "nothing", "--format", "trl", "--out", out)
    begun = RunFolder(tmp_path / "begun")
    with begun.locked():
        begun.begin(load_recipe("number_line/nano"), "gen-data")
    with pytest.raises(InvalidInput, match="gen-data"):
        export_rows(begun.path, out, "trl")
    shown = ("env.name=pictured:Pictured", "model.name=some/model", "model.images=true", "model.prefix_reuse=false")
    with pytest.raises(InvalidInput, match="pictures"):
        export_rows(taught(tmp_path / "pictured", *shown), out, "trl")
    assert not out.exists()


@pytest.mark.slow
def test_a_push_makes_a_repository_of_a_dataset(rows_of: Path, tmp_path: Path, online: pytest.MonkeyPatch) -> None:
    out = tmp_path / "rows"
    push = ("data", "export", rows_of, "--format", "trl", "--out", out, "--push-to-hub", "me/rows")
    with HubServer() as hub, HubServer() as broken:
        online.setenv("HF_ENDPOINT", hub.url)
        done = reflectrl(*push, "--private")
        online.setenv("HF_ENDPOINT", broken.url)
        broken.status = {"api/repos/create": 500}
        failed = reflectrl(*(tmp_path / "again" if word == out else word for word in push))
    assert (done.code, done.out.splitlines()[-1]) == (0, f"hub: {hub.url}/me/rows")
    assert (hub.datasets, hub.private) == ({"me/rows"}, {"me/rows": True})
    assert hub.files["me/rows"] == {path.name: path.read_bytes() for path in out.iterdir()}
    assert TOKEN not in done.out + done.err
    assert failed.code == 1
    assert f"`hf upload me/rows {tmp_path}/again --repo-type dataset`" in failed.err
    assert "--private was given without --push-to-hub" in refused(
        "data", "export", rows_of, "--format", "trl", "--out", out, "--private"
    )
