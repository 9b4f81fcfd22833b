from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hub_server import TOKEN, HubServer
from records import policy_prompt_of
from run_folders import forget_digests
from trained_runs import TrainedRuns
from transformers import AutoModelForCausalLM, AutoTokenizer

from reflectrl.config import load_recipe
from reflectrl.config.agent_file import read_agent_file
from reflectrl.core import InvalidInput, Observation, WorkFailed
from reflectrl.pipeline.agent import load_agent
from reflectrl.sharing.export import export_run
from reflectrl.sharing.scrub import Scrubber

ADAPTED = ("model.lora={r: 4, alpha: 8}", "prompt.labels=added", "sft.policy.learning_rate=0.05")
STATE = Observation("Number 3, target 6.", ("add one", "subtract one"))


@pytest.fixture(scope="module")
def trained(trained_run: TrainedRuns) -> Path:
    return trained_run()


@pytest.fixture(scope="module")
def adapted(trained_run: TrainedRuns) -> Path:
    """LoRA and menu labels of its own on the built-in base."""
    return trained_run(*ADAPTED)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run, to be changed."""
    return shutil.copytree(trained, tmp_path / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def chances(policy: Path, prompt: str, labels: Sequence[str]) -> list[float]:
    """As somebody would compute them who has transformers only."""
    tokenizer, model = AutoTokenizer.from_pretrained(policy), AutoModelForCausalLM.from_pretrained(policy).eval()
    ids = [tokenizer(prompt + label)["input_ids"][-1] for label in labels]
    with torch.no_grad():
        logits = model(input_ids=tokenizer(prompt, return_tensors="pt")["input_ids"]).logits[0, -1]
    return logits[ids].softmax(-1).tolist()


@pytest.mark.parametrize("kind", ["trained", "adapted"])
def test_an_export_acts_as_the_run_does_in_this_library_and_in_plain_transformers(kind, tmp_path, request):
    run = request.getfixturevalue(kind)
    said: list[str] = []
    folder = export_run(run, tmp_path / "out", tell=said.append)
    agent = load_agent(run)
    ours, theirs = agent.act(STATE), load_agent(folder).act(STATE)
    prompt = policy_prompt_of(agent.layout, STATE, (), ours.reflection, ours.menu).text
    assert abs(ours.decision.choice.probabilities[0] - 0.5) > 1e-3  # it is no coin
    found = chances(folder / "policy", prompt, ours.menu.labels)
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


def test_the_folder_holds_what_others_need_and_no_pickle(trained, tmp_path):
    folder = export_run(trained, tmp_path / "out")
    names = {path.name for path in folder.iterdir()}
    assert names == {"policy", "reflector", "agent.json", "recipe.yaml", "README.md", "example.py", "example.json"}
    assert {path.suffix for path in folder.rglob("*.*")} <= {".json", ".safetensors", ".yaml", ".md", ".py"}
    assert load_recipe(str(folder / "recipe.yaml")) == load_recipe(str(trained / "recipe.yaml"))
    agent = read_agent_file(folder)
    assert agent is not None
    assert (agent.env, agent.options, agent.max_actions) == ("number_line", {"size": 8}, 2)
    assert agent.prompt == load_agent(trained).layout


def rebased(run: Path, name: str) -> Path:
    """Say of a run that its base was another one."""
    path = forget_digests(run) / "recipe.yaml"
    path.write_text(path.read_text().replace("name: builtin/nano", f"name: {name}"))
    return run


def test_an_adapter_on_a_base_of_the_hub_is_copied_and_names_it(adapted, tmp_path):
    run = rebased(shutil.copytree(adapted, tmp_path / "run"), "owner/never-downloaded")
    said: list[str] = []
    folder = export_run(run, tmp_path / "out", tell=said.append)
    assert said == []
    adapter = json.loads((folder / "policy" / "adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("owner/never-downloaded", None)
    assert adapter["target_modules"] == sorted(adapter["target_modules"])
    assert "from peft import AutoPeftModelForCausalLM" in (folder / "example.py").read_text()
    assert len((folder / "example.py").read_text().splitlines()) <= 15
    (run / "reflector" / "adapter_config.json").write_text("[]")
    with pytest.raises(InvalidInput, match=r"adapter_config\.json"):
        export_run(run, tmp_path / "again")


def test_an_adapter_on_a_base_in_a_local_folder_is_merged_while_that_is_there(adapted, tmp_path):
    base = shutil.copytree(adapted / "base", tmp_path / "models" / "my base")
    run = rebased(shutil.copytree(adapted, tmp_path / "run"), str(base))
    said: list[str] = []
    folder = export_run(run, tmp_path / "out", tell=said.append)
    assert "my base" in said[0]
    assert not [name for name, content in contents(folder).items() if str(tmp_path).encode() in content]
    assert "name: my base" in (folder / "recipe.yaml").read_text()
    shutil.rmtree(base)
    with pytest.raises(InvalidInput, match="my base"):
        export_run(run, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_the_example_is_short_and_plays_without_this_library(trained, tmp_path, capsys):
    folder = export_run(trained, tmp_path / "out")
    program = (folder / "example.py").read_text()
    assert len(program.splitlines()) <= 15
    assert "reflectrl" not in program
    runpy.run_path(str(folder / "example.py"))
    state = json.loads((folder / "example.json").read_text())
    probabilities = chances(folder / "policy", state["prompt"], state["labels"])
    assert len(state["actions"]) == 2
    assert capsys.readouterr().out == state["actions"][probabilities.index(max(probabilities))] + "\n"
    own = (trained / "trajectories" / "eval-rlft-local-greedy.jsonl").read_text()
    assert json.dumps(re.search(r"Number .*", state["prompt"])[0]) in own


def test_an_export_goes_into_the_run_and_replaces_an_earlier_one_as_a_whole(run):
    folder = export_run(run)
    assert folder == run / "export"
    before = contents(folder)
    (folder / "policy" / "left_over.json").write_text("{}")
    assert contents(export_run(run)) == before


def test_nothing_tells_of_the_machine_or_its_keys(run, tmp_path, monkeypatch):
    home = tmp_path / "home" / "somebody"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    values = yaml.safe_load((forget_digests(run) / "recipe.yaml").read_text())
    values["description"] = f"Made in {home}/secret project from {run}/data with {TOKEN}, see file://{home}/notes.md"
    values["players"]["policy"]["endpoint"]["base_url"] = "http://somebody:password@model.example/v1?key=0123"
    (run / "recipe.yaml").write_text(yaml.safe_dump(values))
    tokenizer = run / "policy" / "tokenizer_config.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"name_or_path": str(run / "base")}))
    config = run / "policy" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"_name_or_path": "x", "made_from": f"{home}/model"}))
    folder = export_run(run, tmp_path / "out")
    for name, content in contents(folder).items():
        for private in (str(tmp_path), "somebody", "password", "key=0123", TOKEN, os.path.realpath(tmp_path)):
            assert private.encode() not in content, f"{name} holds {private}"
    assert "model.example/v1" in (folder / "recipe.yaml").read_text()
    assert load_agent(folder).act(STATE).decision.action in STATE.actions


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("/data/my games/house.z8", "house.z8"),
        ("look into /data/docs/a.txt, and/or b.txt", "look into a.txt, and/or b.txt"),
        ("https://user:token@host.example/team/project.git", "https://host.example/team/project.git"),
        ("../relative/folder", "../relative/folder"),
        ("file:///data/project", "project"),
        ("pypi:requests==2.32.0", "pypi:requests==2.32.0"),
        ("no path at all; 1/2", "no path at all; 1/2"),
    ],
)
def test_of_a_path_the_last_part_is_left(given, left, tmp_path):
    assert Scrubber(tmp_path).value({"repositories": [given], "size": 8}) == {"repositories": [left], "size": 8}


def test_a_name_that_ends_with_a_path_keeps_the_environment(tmp_path):
    recipe = load_recipe("number_line/nano", ["env.name=textworld:/data/my games/house.z8"])
    assert Scrubber(tmp_path).recipe(recipe).env.name == "textworld:house.z8"


def test_an_unfinished_run_exports_its_last_policy_and_says_so(run, tmp_path):
    shutil.rmtree(forget_digests(run) / "policy")
    (run / "eval.jsonl").unlink()
    shutil.rmtree(run / "trajectories")
    said: list[str] = []
    folder = export_run(run, tmp_path / "out", tell=said.append)
    assert contents(folder / "policy")["model.safetensors"] == contents(run / "policy-sft")["model.safetensors"]
    card = (folder / "README.md").read_text()
    assert "RLFT" in said[0]
    assert said[0] in card
    assert "Not evaluated yet" in card
    state = json.loads((folder / "example.json").read_text())
    assert state["prompt"].startswith("Past: none\nNumber ")
    assert "Reflection: The target is" in state["prompt"]


@pytest.mark.parametrize("missing", [("policy", "policy-sft"), ("reflector",)])
def test_a_run_that_lacks_a_player_names_the_command_that_makes_it(missing, run):
    forget_digests(run)
    for name in missing:
        shutil.rmtree(run / name)
    with pytest.raises(InvalidInput, match="`reflectrl sft`"):
        export_run(run)
    assert not list(run.glob("*export*"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("policy/model.safetensors", "damaged"),
        ("policy/config.json", "{"),
        ("recipe.yaml", "["),
        ("eval.jsonl", "{}\n"),
        ("trajectories/eval-rlft-local-greedy.jsonl", "{}\n"),
    ],
)
def test_a_damaged_part_is_named_and_nothing_is_left_behind(name, content, run):
    (forget_digests(run) / name).write_text(content)
    with pytest.raises(InvalidInput, match="policy is" if "safetensors" in name else Path(name).name):
        export_run(run)
    assert not list(run.glob("*export*"))


def test_only_a_run_is_exported_and_only_an_export_is_replaced(run, tmp_path):
    with pytest.raises(InvalidInput, match=r"recipe\.yaml"):
        export_run(tmp_path)
    folder = export_run(run, tmp_path / "out")
    with pytest.raises(InvalidInput, match="out is an export"):
        export_run(folder)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "agent.json").write_text('{"name": "another agent"}\n')
    for out in (tmp_path / "notes", tmp_path / "file", run, run / "policy", tmp_path / "foreign"):
        with pytest.raises(InvalidInput, match=out.name):
            export_run(run, out)
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "years of work"
    with pytest.raises(WorkFailed, match="file/out"):
        export_run(run, tmp_path / "file" / "out")


def command(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    given = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    given |= {"NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **env}
    arguments = (sys.executable, "-m", "reflectrl", "export", *arguments)
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, env=given, timeout=300)


@pytest.mark.slow
def test_a_push_leaves_the_whole_folder_on_the_hub_and_no_token_anywhere(trained, tmp_path):
    out = tmp_path / "out"
    with HubServer() as hub:
        hub.files["me/agent"] = {"policy/adapter_config.json": b"{}", "notes.md": b"mine"}  # of an earlier push
        online = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path)}
        done = command(trained, "--out", out, "--push-to-hub", "me/agent", **online)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"export: {out}", f"hub: {hub.url}/me/agent"]
    assert hub.files["me/agent"] == contents(out) | {"notes.md": b"mine"}
    assert TOKEN not in done.stdout + done.stderr
    assert not [name for name, content in contents(tmp_path).items() if TOKEN.encode() in content]


@pytest.mark.parametrize("env", [{"HF_TOKEN": ""}, {"HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1"}])
def test_a_push_that_cannot_work_is_refused_before_any_work(env, tmp_path, trained):
    done = command(trained, "--out", tmp_path / "out", "--push-to-hub", "me/agent", HF_HOME=str(tmp_path), **env)
    assert done.returncode == 2
    assert [*env][-1] in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


REFUSED = """
import json, os, sys
from pathlib import Path
from reflectrl.core import ReflectRLError
from reflectrl.sharing.hub import push

for where in sys.argv[2:]:
    os.environ["HF_ENDPOINT"], _, name = where.partition(" ")
    try:
        print(json.dumps([0, push(Path(sys.argv[1]), name, private=True)]))
    except ReflectRLError as error:
        print(json.dumps([error.exit_code, str(error)]))
"""


def test_what_the_hub_refuses_is_a_sentence(tmp_path):
    (tmp_path / "file.txt").write_text("fine")
    env = {**os.environ, "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN}
    with HubServer() as gone:
        pass
    with HubServer() as hub, HubServer() as broken:
        hub.files |= {"401/agent": {}, "403/agent": {}}  # so that they break while files are listed
        hub.status = {"401/agent/tree": 401, "403/agent/tree": 403}
        broken.status = {"api/repos/create": 500}
        wheres = [f"{hub.url} {name}" for name in ("me/fine", "401/agent", "403/agent")]
        wheres += [f"{server.url} me/new" for server in (broken, gone)]
        script = [sys.executable, "-c", REFUSED, str(tmp_path), *wheres]
        done = subprocess.run(script, capture_output=True, text=True, check=True, timeout=300, env=env)
    assert TOKEN not in done.stdout + done.stderr
    (code, url), *refused = map(json.loads, done.stdout.splitlines())
    assert (code, url, hub.private) == (0, f"{hub.url}/me/fine", {"me/fine": True})
    assert [code for code, _ in refused] == [2, 2, 1, 1]
    for (_, sentence), fact in zip(refused, ("401", "403", "500", "ConnectError"), strict=True):
        assert fact in sentence


ON_THE_HUB = """
import io, json, runpy, sys
from contextlib import redirect_stdout
from pathlib import Path

import torch
from run_folders import forget_digests
from trained_runs import play_stages, small_recipe
from transformers import AutoTokenizer
from peft import AutoPeftModelForCausalLM

from reflectrl.pipeline import STAGES
from reflectrl.pipeline.agent import load_agent
from reflectrl.sharing.export import export_run
from records import policy_prompt_of
from records import policy_prompt_of
from test_export import ADAPTED, STATE, chances

place = Path(sys.argv[1])
recipe = small_recipe("model.name=owner/tiny", *ADAPTED, "players.reflector.player=none")
play_stages(recipe, place / "run", *STAGES[:3])
folder, merged = export_run(place / "run", place / "adapter"), export_run(place / "run", place / "merged", merge=True)
agent = load_agent(place / "run")
move = agent.act(STATE)
prompt = policy_prompt_of(agent.layout, STATE, (), None, move.menu).text
tokenizer = AutoTokenizer.from_pretrained(folder / "policy")
model = AutoPeftModelForCausalLM.from_pretrained(folder / "policy").eval()
labels = [tokenizer(prompt + label)["input_ids"][-1] for label in move.menu.labels]
with torch.no_grad():
    logits = model(input_ids=tokenizer(prompt, return_tensors="pt")["input_ids"]).logits[0, -1]
with redirect_stdout(io.StringIO()) as said:
    runpy.run_path(str(folder / "example.py"))
print(json.dumps({
    "ours": move.decision.choice.probabilities,
    "adapter": logits[labels].softmax(-1).tolist(),
    "merged": chances(merged / "policy", prompt, move.menu.labels),
    "loaded": [load_agent(each).act(STATE).decision.choice.probabilities for each in (folder, merged)],
    "example": said.getvalue(),
}))
"""


@pytest.mark.slow
def test_an_adapter_on_a_base_of_the_hub_stays_one_unless_merging_is_asked_for(trained, tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "hub" / "models--owner--tiny"
    shutil.copytree(trained / "base", cached / "snapshots" / commit)
    (cached / "snapshots" / commit / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    script = [sys.executable, "-c", ON_THE_HUB, str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for probabilities in (found["adapter"], found["merged"], *found["loaded"]):
        assert probabilities == pytest.approx(found["ours"], abs=1e-5)
    assert found["example"] in ("add one\n", "subtract one\n")
    adapter = json.loads((tmp_path / "adapter" / "policy" / "adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("owner/tiny", commit)
    assert not (tmp_path / "adapter" / "policy" / "README.md").exists()
    assert not list((tmp_path / "merged").rglob("adapter*"))
    for folder, relation in (("adapter", "adapter"), ("merged", "finetune")):
        card = (tmp_path / folder / "README.md").read_text()
        metadata = yaml.safe_load(card.split("---\n")[1])
        assert metadata["library_name"] == ("peft" if folder == "adapter" else "transformers")
        assert (metadata["base_model"], metadata["base_model_relation"]) == ("owner/tiny", relation)
        assert metadata["license"] == "apache-2.0"
        assert commit in card
        for name, content in contents(tmp_path / folder).items():
            assert str(tmp_path).encode() not in content, name
