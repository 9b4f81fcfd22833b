"""Sentences with which the command line refuses its input, compared with ``sentences.txt``.

This is the only test of their wording. The file has a line ``$ COMMAND`` before each sentence. After changing a
sentence, or adding a command line at the end of the file, let the test rewrite the file, and check the difference::

    REFLECTRL_WRITE_SENTENCES=1 pytest tests/test_sentences.py
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from command_line import reflectrl
from run_folders import episode, iteration, make_run

from reflectrl.config import load_recipe
from reflectrl.core.jsonl import read_jsonl
from reflectrl.pipeline.folder import RunFolder

GOLDEN = Path(__file__).with_name("sentences.txt")
NUMBERS = "number_line/nano"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with files and run folders that are wrong in one way each."""
    place = tmp_path_factory.mktemp("place")
    (place / "empty" / "folder").mkdir(parents=True)
    (place / "empty" / ".hidden").touch()
    (place / "broken.yaml").write_text("name: [\n")
    (place / "list.yaml").write_text("- a\n")
    (place / "cycle.yaml").write_text("extends: ./cycle.yaml\n")
    (place / "wrong.yaml").write_text(f"extends: {NUMBERS}\nrlft: {{gamma: 3, epochs: none}}\nmodel: {{lora: 4}}\n")
    (place / "broken.jsonl").write_text('{"format": \n')
    for name, said in (("talk", "Hello."), ("moves", "Action: fly")):
        (place / f"{name}.json").write_text(json.dumps([{"messages": [{"role": "assistant", "content": said}]}]))
    recipe, runs = load_recipe(NUMBERS), place / "runs"
    for name in ("begun", "edited", "cut"):
        run = RunFolder(runs / name)
        with run.locked():
            run.begin(recipe, "gen-data")
            (run / "policy-sft").mkdir()
            (run / "policy-sft" / "model.safetensors").write_text("whole")
            (run / "data").mkdir()
            (run / "data" / "teacher.jsonl").touch()
            if name != "begun":
                run.finish(recipe, "gen-data")
                run.begin(recipe, "sft")
                run.finish(recipe, "sft")
    (runs / "cut" / "policy-sft" / "model.safetensors").write_text("cut")
    edited = runs / "edited" / "recipe.yaml"
    edited.write_text(edited.read_text().replace("seed: 0", "seed: 8"))
    played = {"sft": [episode()]}
    make_run(runs / "curves", metrics=[iteration(0), iteration(1)])
    make_run(runs / "damaged", played)
    with (runs / "damaged" / "eval.jsonl").open("a") as file:
        file.write('{"policy": \n{}\n')
    old = next((make_run(runs / "old", played) / "trajectories").iterdir())
    (_, header), *lines = read_jsonl(old)
    values = [header | {"version": 0}, *(value for _, value in lines)]
    old.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert reflectrl("play", "number_line", "size=8", "--expert", "--save", "other.jsonl").code == 0
        (place / "other.jsonl").write_text((place / "other.jsonl").read_text().replace('"size": 8', '"size": 7'))
    return place


def answer(command: str, place: Path) -> str:
    """Return the exit code and the sentence of a command; machine-dependent parts are replaced."""
    words = shlex.split(command)
    variables = [word.partition("=") for word in words if re.match(r"[A-Z_]+=", word)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        proxies = [name for name in os.environ if name.upper().endswith("_PROXY")]
        for name in ("OPENAI_API_KEY", "SSL_CERT_DIR", *proxies):
            patch.delenv(name, raising=False)
        patch.setenv("HF_HUB_OFFLINE", "1")
        for name, _, value in variables:
            patch.setenv(name, value)
        done = reflectrl(*words[len(variables) :])
    assert "Traceback" not in done.err
    said = re.sub(r"([Kk])nown: [^.]{60,}\.", r"\1nown: <names>.", done.err.strip().replace(str(place), "<here>"))
    said = re.sub(r"the \d+ known names", "the <number> known names", said)
    return f"$ {command}\n[{done.code}] {said}\n"


@pytest.mark.slow
def test_every_sentence_is_the_one_that_was_agreed_on(place: Path) -> None:
    commands = re.findall(r"^\$ (.+)$", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE)
    answers = [answer(command, place) for command in commands]
    assert len(answers) > 80
    if os.environ.get("REFLECTRL_WRITE_SENTENCES"):
        GOLDEN.write_text("\n".join(answers), encoding="utf-8")
    assert GOLDEN.read_text(encoding="utf-8").split("\n\n") == "\n".join(answers).split("\n\n")
    assert all("\n[2] " in answer for answer in answers)
