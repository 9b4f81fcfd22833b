from __future__ import annotations

import json
import os
import re
import runpy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command_line import reflectrl, refused
from hub_server import TOKEN, HubServer
from huggingface_hub import ModelCard, constants
from peft import AutoPeftModelForCausalLM
from records import policy_prompt_of
from run_folders import forget_digests
from tiny_models import CHAT, save_tiny
from trained_runs import TrainedRuns, play_stages, small_recipe
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from reflectrl.config import load_recipe
from reflectrl.config.agent_file import read_agent_file
from reflectrl.core import InvalidInput, Observation, ReflectRLError, WorkFailed
from reflectrl.core.origin import VERSION
from reflectrl.lm.plain_text import PlainText
from reflectrl.pipeline import STAGES
from reflectrl.pipeline.agent import load_agent
from reflectrl.rollout.results import read_results
from reflectrl.share.export import export_run
from reflectrl.share.hub import push
from reflectrl.share.scrub import Scrubber

ADAPTED = (
    *("model.lora={r: 4, alpha: 8}", "sft.policy.learning_rate=0.05"),
    *("prompt.labels=added", "prompt.known_actions=[subtract one, add one]"),
)
STATE = Observation("Number 3, target 6.", ("add one", "subtract one"))


@pytest.fixture(scope="module")
def trained(trained_run: TrainedRuns) -> Path:
    return trained_run()


@pytest.fixture(scope="module")
def adapted(trained_run: TrainedRuns) -> Path:
    """Overrides with LoRA and added menu labels, which known actions keep, on the built-in base."""
    return trained_run(*ADAPTED)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run that a test may change."""
    return forget_digests(shutil.copytree(trained, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def chances(policy: Path, prompt: str, labels: Sequence[str], kind: Any = AutoModelForCausalLM) -> list[float]:
    """Return the probabilities of the labels, computed with transformers only."""
    tokenizer, model = AutoTokenizer.from_pretrained(policy), kind.from_pretrained(policy).eval()
    ids = [tokenizer(prompt + label)["input_ids"][-1] for label in labels]
    with torch.no_grad():
        logits = model(input_ids=tokenizer(prompt, return_tensors="pt")["input_ids"]).logits[0, -1]
    return logits[ids].softmax(-1).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["trained", "adapted"])
def test_an_export_acts_as_the_run_does_in_this_library_and_in_plain_transformers(kind, tmp_path, request):
    run = request.getfixturevalue(kind)
    said: list[str] = []
    folder = export_run(run, tmp_path / "out", tell=said.append)
    agent = load_agent(run)
    ours, theirs = agent.act(STATE), load_agent(folder).act(STATE)
    prompt = policy_prompt_of(agent.layout, STATE, (), ours.reflection, ours.menu).text
    assert abs(ours.decision.choice.probabilities[0] - 0.5) > 1e-3  # the distribution is not uniform
    found = chances(folder, prompt, ours.menu.labels)
    assert found == pytest.approx(ours.decision.choice.probabilities, abs=1e-5)
    assert (theirs.reflection, theirs.menu) == (ours.reflection, ours.menu)
    assert theirs.decision.action == ours.decision.action
    assert theirs.decision.choice.probabilities == pytest.approx(ours.decision.choice.probabilities, abs=1e-5)
    assert contents(export_run(run, tmp_path / "again")) == contents(folder)  # to the byte
    card = (folder / "README.md").read_text()
    [shown] = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    names: dict[str, Any] = {}
    exec(shown.replace("FOLDER", str(folder)), names)
    assert names["move"].decision.action in ("one action", "another action")
    merged = "merged into its base" in card
    assert merged == (kind == "adapted") == any("builtin/nano" in line for line in said)
    assert not list(folder.rglob("adapter*"))


def test_the_players_of_an_export_load_as_its_card_says(trained, tmp_path):
    folder = export_run(trained, tmp_path / "out")
    card = (folder / "README.md").read_text()
    shown = yaml.safe_load(card.split("---\n")[1])
    assert (shown["library_name"], shown["pipeline_tag"]) == ("transformers", "text-generation")
    players = re.findall(r'`(AutoModelForCausalLM\.from_pretrained\("FOLDER".*?\))`', card)
    assert len(players) == 2
    names = {"AutoModelForCausalLM": AutoModelForCausalLM}
    for shown_call, original in zip(players, ("policy", "reflector"), strict=True):
        model = eval(shown_call.replace("FOLDER", str(folder)), names)
        there = AutoModelForCausalLM.from_pretrained(trained / original).state_dict()
        assert all(torch.equal(weight, there[name]) for name, weight in model.state_dict().items())
    text = AutoTokenizer.from_pretrained(folder, subfolder="reflector").decode([5, 6])
    assert text == AutoTokenizer.from_pretrained(trained / "reflector").decode([5, 6])
    state = json.loads((folder / "example.json").read_text())
    writer = pipeline(shown["pipeline_tag"], model=str(folder))
    [written] = writer(state["prompt"], max_new_tokens=1, do_sample=False, return_full_text=False)
    assert written["generated_text"].strip()


def test_a_policy_that_thinks_is_exported_without_an_example(trained_run, tmp_path):
    thinks = ("prompt.action_mode=thought_choice", "players.policy.max_new_tokens=8", "players.reflector.player=none")
    folder = export_run(trained_run(*thinks, stages=STAGES[:3]), tmp_path / "out")
    card = (folder / "README.md").read_text()
    assert "writes more than a label" in card
    assert "answers with the label" not in card
    assert "example.py" not in card
    assert not list(folder.glob("example*"))


def test_the_folder_holds_what_others_need_and_no_pickle_and_its_example_plays(trained, tmp_path, capsys):
    folder = export_run(trained, tmp_path / "out")
    names = {path.name for path in folder.iterdir()}
    saved = {path.name for path in (trained / "policy").iterdir()}
    ours = {"reflector", "agent.json", "recipe.yaml", "README.md", "example.py", "example.json"}
    assert names == saved | ours
    assert {path.suffix for path in folder.rglob("*.*")} <= {".json", ".safetensors", ".yaml", ".md", ".py"}
    assert load_recipe(str(folder / "recipe.yaml")) == load_recipe(str(trained / "recipe.yaml"))
    agent = read_agent_file(folder)
    assert agent is not None
    assert (agent.env, agent.options, agent.max_actions) == ("number_line", {"size": 8}, 2)
    assert agent.prompt == load_agent(trained).layout
    program = (folder / "example.py").read_text()
    assert len(program.splitlines()) <= 16
    assert "reflectrl" not in program
    runpy.run_path(str(folder / "example.py"))
    state = json.loads((folder / "example.json").read_text())
    probabilities = chances(folder, state["prompt"], state["labels"])
    assert len(state["actions"]) == 2
    assert capsys.readouterr().out == state["actions"][probabilities.index(max(probabilities))] + "\n"
    own = (trained / "trajectories" / "eval-rlft-local-greedy.jsonl").read_text()
    assert json.dumps(re.search(r"Number .*", state["prompt"])[0]) in own


@pytest.mark.slow
def test_the_example_of_a_chat_model_reads_what_the_policy_reads_at_play(tmp_path, capsys):
    base, run = save_tiny("llama", tmp_path / "base", max_length=128, template=CHAT), tmp_path / "run"
    given = (f"model.name={base.name}", "model.max_length=128", "players.reflector.player=none", "data.samples=60")
    play_stages(small_recipe(*given, "eval.controls=[]"), run, "gen-data", "sft")
    folder = export_run(run, tmp_path / "out")
    state = json.loads((folder / "example.json").read_text())
    prompt, tokenizer = state["prompt"], AutoTokenizer.from_pretrained(folder)
    assert prompt.startswith("<|im_start|>user\n")
    assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
    [seen] = [line for line in prompt.splitlines() if line.startswith("Number")]
    agent, here = load_agent(folder), Observation(seen, tuple(state["actions"]))
    move = agent.act(here)
    read = policy_prompt_of(agent.layout, here, (), None, move.menu)
    assert PlainText(tokenizer).prompt(read) == tokenizer(prompt, add_special_tokens=False)["input_ids"]
    runpy.run_path(str(folder / "example.py"))
    best = max(range(2), key=move.decision.choice.probabilities.__getitem__)
    assert capsys.readouterr().out == move.menu.actions[best] + "\n"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks transformers for an old name
def test_an_adapter_on_a_base_of_the_hub_stays_one_unless_merging_is_asked_for(trained, tmp_path, monkeypatch, capsys):
    commit = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    cached = tmp_path / "hub" / "models--owner--tiny"
    shutil.copytree(trained / "base", cached / "snapshots" / commit)
    (cached / "snapshots" / commit / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    run = tmp_path / "run"
    play_stages(small_recipe("model.name=owner/tiny", *ADAPTED, "players.reflector.player=none"), run, *STAGES[:3])
    folder = export_run(run, tmp_path / "adapter")
    merged = export_run(run, tmp_path / "merged", merge=True)
    agent = load_agent(run)
    move = agent.act(STATE)
    prompt = policy_prompt_of(agent.layout, STATE, (), None, move.menu).text
    for found in (
        chances(folder, prompt, move.menu.labels, AutoPeftModelForCausalLM),
        chances(merged, prompt, move.menu.labels),
        *(load_agent(each).act(STATE).decision.choice.probabilities for each in (folder, merged)),
    ):
        assert found == pytest.approx(move.decision.choice.probabilities, abs=1e-5)
    assert len((folder / "example.py").read_text().splitlines()) <= 16
    runpy.run_path(str(folder / "example.py"))
    assert capsys.readouterr().out in ("add one\n", "subtract one\n")
    adapter = json.loads((folder / "adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("owner/tiny", commit)
    assert adapter["target_modules"] == sorted(adapter["target_modules"])
    assert (folder / "README.md").read_text().count("\n# ") == 1  # peft's own card is left out
    assert not list(merged.rglob("adapter*"))
    for each, relation, library in ((folder, "adapter", "peft"), (merged, "finetune", "transformers")):
        card = (each / "README.md").read_text()
        shown = yaml.safe_load(card.split("---\n")[1])
        assert (shown["library_name"], shown["base_model"], shown["license"]) == (library, "owner/tiny", "apache-2.0")
        assert shown["base_model_relation"] == relation
        assert commit in card
        assert f'`{"AutoPeftModel" if each == folder else "AutoModel"}ForCausalLM.from_pretrained("FOLDER")`' in card
        assert not [name for name, content in contents(each).items() if str(tmp_path).encode() in content]
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))  # the base is not in the cache
    again = export_run(run, tmp_path / "adapter", replace=True)
    assert json.loads((again / "adapter_config.json").read_text())["revision"] is None


def test_nothing_private_of_the_machine_is_exported(run, tmp_path, monkeypatch):
    home = tmp_path / "home" / "jane"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    values = yaml.safe_load((run / "recipe.yaml").read_text())
    values["description"] = f"Made in {home}/secret project from {run}/data with {TOKEN}, see file://{home}/notes.md"
    values["description"] += " and http://jane:password@model.example/v1?key=0123"
    (run / "recipe.yaml").write_text(yaml.safe_dump(values))
    for name, added in (
        ("tokenizer_config.json", {"name_or_path": str(run / "base")}),
        ("config.json", {"_name_or_path": "x", "made_from": f"{home}/model"}),
    ):
        path = run / "policy" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | added))
    folder = export_run(run, tmp_path / "out")
    for name, content in contents(folder).items():
        for private in (str(tmp_path), "jane", "password", "key=0123", TOKEN, os.path.realpath(tmp_path)):
            assert private.encode() not in content, f"{name} holds {private}"
    assert "model.example/v1" in (folder / "recipe.yaml").read_text()
    assert load_agent(folder).act(STATE).decision.action in STATE.actions


def test_the_last_part_of_a_path_is_left(tmp_path):
    scrubber = Scrubber(tmp_path)
    for given, left in {
        "/data/my games/house.z8": "house.z8",
        "look into /data/docs/a.txt, and/or b.txt": "look into a.txt, and/or b.txt",
        "https://user:token@host.example/team/project.git": "https://host.example/team/project.git",
        "../relative/folder": "../relative/folder",
        "file:///data/project": "project",
        "pypi:requests==2.32.0": "pypi:requests==2.32.0",
        "http://[::1]:8080/v1": "http://[::1]:8080/v1",
        "/": "/",
        "</s>": "</s>",
    }.items():
        assert scrubber.value({"repositories": [given], "size": 8}) == {"repositories": [left], "size": 8}
    recipe = load_recipe("number_line/nano", ["env.name=textworld:/data/my games/house.z8"])
    assert scrubber.recipe(recipe).env.name == "textworld:house.z8"


def test_an_unfinished_run_exports_its_last_policy_and_says_so(run, tmp_path):
    shutil.rmtree(run / "policy")
    (run / "eval.jsonl").unlink()
    shutil.rmtree(run / "trajectories")
    said: list[str] = []
    folder = export_run(run, tmp_path / "out", tell=said.append)
    assert contents(folder)["model.safetensors"] == contents(run / "policy-sft")["model.safetensors"]
    card = (folder / "README.md").read_text()
    assert "RLFT" in said[0]
    assert said[0] in card
    assert "Not evaluated yet" in card
    state = json.loads((folder / "example.json").read_text())
    assert state["prompt"].startswith("Past: none\nNumber ")
    assert "Reflection: The target is" in state["prompt"]


DAMAGE = {
    "policy/model.safetensors": "damaged",
    "policy/config.json": "[]",
    "recipe.yaml": "[",
    "eval.jsonl": "{}\n",
    "trajectories/eval-rlft-local-greedy.jsonl": "{}\n",
    "policy policy-sft": None,
    "reflector": None,
}
"""Damage by file: its new content, or the missing players."""


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_or_missing_part_is_named_and_nothing_is_left_behind(name, run):
    if DAMAGE[name] is None:
        for player in name.split():
            shutil.rmtree(run / player)
        fact = "`reflectrl sft`"
    else:
        (run / name).write_text(DAMAGE[name])
        fact = "policy is" if "safetensors" in name else Path(name).name
    with pytest.raises(InvalidInput, match=fact):
        export_run(run)
    assert not list(run.glob("*export*"))


def test_the_folder_in_which_one_is_cannot_be_replaced(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in (Path(), tmp_path):
        with pytest.raises(InvalidInput, match="is the current folder"):
            export_run(run, out)


def test_only_a_run_is_exported_and_only_an_export_is_replaced_as_a_whole(run, tmp_path):
    with pytest.raises(InvalidInput, match=r"recipe\.yaml"):
        export_run(tmp_path)
    folder = export_run(run)
    assert folder == run / "export"
    with pytest.raises(InvalidInput, match="export is an export"):
        export_run(folder)
    before = contents(folder)
    (folder / "reflector" / "vocab.json").write_text("{}")
    (folder / "vocab.json").write_text("{}")
    assert "holds an earlier export, which is not replaced unasked; give --replace" in refused("export", run)
    assert (folder / "vocab.json").exists()
    assert reflectrl("export", run, "--replace").code == 0
    assert contents(folder) == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "agent.json").write_text('{"name": "another agent"}\n')
    for out in (tmp_path / "notes", tmp_path / "file", run, run / "policy", tmp_path / "foreign"):
        with pytest.raises(InvalidInput, match=out.name):
            export_run(run, out, replace=True)
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "years of work"
    with pytest.raises(WorkFailed, match="file/out"):
        export_run(run, tmp_path / "file" / "out")


def test_the_card_says_licence_and_datasets_and_versions_and_the_hub_s_library_reads_its_results(trained, tmp_path):
    out = tmp_path / "agent"
    done = reflectrl("export", trained, "--out", out, "--license", "mit", "--dataset", "me/rows")
    assert done.code == 0, done.err
    card = ModelCard.load(out / "README.md")
    assert (card.data.license, card.data.datasets, card.data.model_name) == ("mit", ["me/rows"], "number_line-nano")
    assert "No licence is stated" not in card.text
    assert f"- Made with reflectrl {VERSION}, Python " in card.text.replace("\\", "")
    rows = [row for row in read_results(trained / "eval.jsonl") if row.policy == "rlft"]
    told = {result.metric_name: result for result in card.data.eval_results}
    assert {name.partition("reflections: ")[2] for name in told} <= {"local", "none"}
    for row in (row for row in rows if row.reflections == "local"):
        result = told[f"success with {row.mode} actions; reflections: local"]
        assert (result.dataset_type, result.dataset_split, result.metric_value) == (
            "number_line",
            row.split,
            row.metrics.success,
        )
        interval = [row.metrics.success_low, row.metrics.success_high]
        assert result.metric_args == {
            "interval_95": interval,
            "episodes": row.metrics.episodes,
            "tasks": row.tasks,
            "training_seeds": [0],
        }
    assert "such as apache-2.0" in refused("export", trained, "--out", tmp_path / "b", "--license", "MIT License")
    assert "such as me/taxi-rows" in refused("export", trained, "--out", tmp_path / "b", "--dataset", "rows")


def test_files_of_others_in_an_export_are_not_removed_with_it(run: Path, tmp_path: Path) -> None:
    out = export_run(run, tmp_path / "agent")
    (out / ".git").mkdir()
    (out / "LICENSE").write_text("mine")
    (out / "reflector" / "my-notes.md").write_text("mine")
    with pytest.raises(
        InvalidInput, match=r"holds \.git, LICENSE, reflector/my-notes\.md, which an export would remove"
    ):
        export_run(run, out, replace=True)
    assert (out / "LICENSE").read_text() == "mine"


def test_no_stage_works_on_an_export(run: Path, tmp_path: Path) -> None:
    before = contents(out := export_run(run, tmp_path / "agent"))
    for stages in (STAGES, STAGES[-1:]):
        with pytest.raises(InvalidInput, match="is an exported agent"):
            play_stages(small_recipe(), out, *stages)
    assert contents(out) == before


def test_an_export_without_its_run_s_questions_is_not_played(run: Path, tmp_path: Path) -> None:
    out = export_run(run, tmp_path / "agent")
    recipe = yaml.safe_load((out / "recipe.yaml").read_text())
    recipe |= {"env": {"name": "auto_explore"}, "dataset": {"repositories": ["company:nano"]}}
    (out / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert "does not hold the questions" in refused("play", "--run", str(out))


def test_a_push_leaves_the_whole_folder_on_the_hub_and_no_token_anywhere(trained, tmp_path, online):
    out = tmp_path / "out"
    with HubServer() as hub:
        online.setenv("HF_ENDPOINT", hub.url)
        own = {"notes.md": b"mine", "data/config.json": b"{}"}
        hub.files["me/agent"] = {"adapter_config.json": b"{}", **own}  # left by an earlier push
        done = reflectrl("export", trained, "--out", out, "--push-to-hub", "me/agent")
    assert done.code == 0, done.err
    assert done.out.splitlines() == [f"export: {out}", f"hub: {hub.url}/me/agent"]
    assert hub.files["me/agent"] == contents(out) | own
    assert TOKEN not in done.out + done.err
    assert not [name for name, content in contents(tmp_path).items() if TOKEN.encode() in content]


def test_a_push_leaves_no_example_of_another_agent(tmp_path, online):
    (tmp_path / "README.md").write_text("An agent without an example.")
    with HubServer() as hub:
        online.setenv("HF_ENDPOINT", hub.url)
        hub.files["me/agent"] = {"example.py": b"of another", "example.json": b"{}", "notes.md": b"mine"}
        push(tmp_path, "me/agent")
    assert hub.files["me/agent"] == {"README.md": b"An agent without an example.", "notes.md": b"mine"}


def test_a_push_that_cannot_work_is_refused_before_any_work(tmp_path, trained, online):
    push_it = ("export", trained, "--out", tmp_path / "out", "--push-to-hub", "me/agent")
    online.setenv("HF_TOKEN", "")
    assert "HF_TOKEN" in refused(*push_it)
    online.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refused(*push_it)
    assert not (tmp_path / "out").exists()


def test_a_refusal_of_the_hub_is_a_sentence(tmp_path, online):
    (tmp_path / "file.txt").write_text("fine")
    with HubServer() as gone:
        pass
    with HubServer() as hub, HubServer() as broken:
        hub.files |= {"401/agent": {}, "403/agent": {}}  # so that they break while files are listed
        hub.status = {"401/agent/tree": 401, "403/agent/tree": 403}
        broken.status = {"api/repos/create": 500}
        online.setenv("HF_ENDPOINT", hub.url)
        assert push(tmp_path, "me/fine", private=True) == f"{hub.url}/me/fine"
        assert hub.private == {"me/fine": True}
        assert push(tmp_path, "me/fine", private=True) == f"{hub.url}/me/fine"
        push(tmp_path, "me/open")
        hub.files["me/open"].clear()
        with pytest.raises(InvalidInput, match="'me/open' is on the hub already and public; nothing was uploaded"):
            push(tmp_path, "me/open", private=True)
        assert hub.files["me/open"] == {}
        for server, name, code, fact in (
            (hub, "401/agent", 2, "401"),
            (hub, "403/agent", 2, "403"),
            (broken, "me/new", 1, "500"),
            (gone, "me/new", 1, "ConnectError"),
        ):
            online.setenv("HF_ENDPOINT", server.url)
            with pytest.raises(ReflectRLError, match=fact) as caught:
                push(tmp_path, name)
            assert (caught.value.exit_code, TOKEN in str(caught.value)) == (code, False)
