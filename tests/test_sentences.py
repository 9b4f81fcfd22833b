"""Sentences with which the command line refuses its input, compared with ``sentences.txt``.

This is the only test of their wording. After a change of words write the file anew, and read what changed::

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
COMMANDS = f"""
run -r dangerous_taxi/nanoo
run -r gone.yaml
run -r broken.yaml
run -r list.yaml
run -r cycle.yaml
run -r wrong.yaml
rlft -r {NUMBERS} rlft.gama=0.9 promt.history=2 seed=x rlft.stages.7.iterations=1
rlft -r {NUMBERS} rlft
rlft -r {NUMBERS} seed=[
gen-data -r {NUMBERS} env.name=number_lin
gen-data -r dangerous_taxi/nano env.options.stage=pikup
gen-data -r {NUMBERS} --run a/b
eval -r {NUMBERS} eval.split=tets
gen-data -r {NUMBERS} data.teacher=openai
gen-data -r {NUMBERS} data.teacher=openai data.endpoint.base_url=localhost
gen-data -r {NUMBERS} data.teacher=openai data.endpoint.base_url=http://me:secret@host/v1
OPENAI_API_KEY=k gen-data -r {NUMBERS} data.teacher=openai --max-cost 1 data.endpoint.price=null
OPENAI_API_KEY=k gen-data -r {NUMBERS} data.teacher=openai --max-cost 0
OPENAI_API_KEY=schlüssel gen-data -r {NUMBERS} data.teacher=openai
OPENAI_API_KEY=k HTTP_PROXY=garbage gen-data -r {NUMBERS} data.teacher=openai
OPENAI_API_KEY=k SSL_CERT_FILE=missing.pem gen-data -r {NUMBERS} data.teacher=openai
OPENAI_API_KEY=k gen-data -r {NUMBERS} data.teacher=openai data.trajectory=oracle --run batch --batch collect
gen-data -r {NUMBERS} --run imitated data.demonstrations=[gone.jsonl]
gen-data -r {NUMBERS} --run imitated2 data.demonstrations=[broken.jsonl]
gen-data -r dangerous_taxi/nano --run imitated3 data.demonstrations=[other.jsonl]
gen-data -r {NUMBERS} --run begun seed=7
sft -r {NUMBERS} --run nothing
rlft -r {NUMBERS} --run nothing
play
play number_lin
play number_line siz=8
play number_line size
play number_line size=[
play number_line size=1
play number_line --task 0-to-11
play number_line --split tets
play number_line --expert --run x
play number_line --step
play number_line --sample
play number_line --episodes 0
play number_line --random --save x
play number_line --expert --split test --save x
play number_line size=9 --expert --save other.jsonl
play number_line --save .
play number_line --task 2-to-0 --split test
play number_line --expert --random
play number_line --random --step --watch 1
play number_line --random --hints
play number_line --policy policy
play number_line --random --watch nan
play --run runs/nothing
check-env number_lin
check-env number_line siz=4
report runs/none runs/neither
report runs/damaged
report runs/old
serve runs/edited
plot runs/none --out x.svg
plot runs/curves --out x.bmp
plot mine=runs/curves --out x.svg --figure 4
serve runs
serve runs/begun --policy policy-stf
serve runs/exchanged
SERVE_KEY= serve runs/begun --api-key-env SERVE_KEY
export runs/none
export runs/begun
export runs/exchanged
export runs/begun --private
export runs/begun --push-to-hub taxi
recipes show nope
recipes cp {NUMBERS} broken.yaml
recipes cp {NUMBERS} gone/mine.yaml
new-env my-env
new-env class
new-env granary --out runs
explore gone What?
explore runs ' '
explore empty What?
explore runs What? --page 1
explore runs What? --expert gone.md
explore runs What? --expert begun
explore runs What? --expert ../broken.yaml
explore runs What? --expert begun/recipe.yaml --run x
explore runs What? --expert begun/recipe.yaml --model x
explore runs What? --expert begun/recipe.yaml --steps 0
explore runs What? --base-url http://localhost:1/v1
explore runs What? --api-key-env X
explore runs What? --sample --expert begun/recipe.yaml
explore runs What? --seed 1
explore runs What? --model m
explore runs What? --model m --base-url localhost
explore runs What? --run gone
trian
sft -r {NUMBERS} --player critic
run
"""


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
    recipe, runs = load_recipe(NUMBERS), place / "runs"
    for name in ("begun", "edited", "exchanged"):
        run = RunFolder(runs / name)
        with run.locked():
            run.begin(recipe, "gen-data")
            (run / "policy-sft").mkdir()
            (run / "policy-sft" / "model.safetensors").write_text("whole")
            if name != "begun":
                run.finish(recipe, "gen-data", wall_seconds=1.0, cpu_seconds=1.0)
                run.begin(recipe, "sft")
                run.finish(recipe, "sft", wall_seconds=1.0, cpu_seconds=1.0)
    (runs / "exchanged" / "policy-sft" / "model.safetensors").write_text("other")
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
    """Exit code and sentence of a command; what differs between machines is replaced."""
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
    said = re.sub(r"Known: [^.]{60,}\.", "Known: <names>.", done.err.strip().replace(str(place), "<here>"))
    return f"$ {command}\n[{done.code}] {said}\n"


def test_every_sentence_is_the_one_that_was_agreed_on(place: Path) -> None:
    answers = [answer(command, place) for command in COMMANDS.strip().splitlines()]
    if os.environ.get("REFLECTRL_WRITE_SENTENCES"):
        GOLDEN.write_text("\n".join(answers), encoding="utf-8")
    assert GOLDEN.read_text(encoding="utf-8").split("\n\n") == "\n".join(answers).split("\n\n")
    assert all("\n[2] " in answer for answer in answers)
