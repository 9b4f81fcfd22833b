"""Files that the library reads cannot run code, and it reaches no network unless it was asked to."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny import gpt2, tokenizer
from tiny_models import MAX_LENGTH, save_tiny
from trained_runs import SMALL
from transformers import dynamic_module_utils

from reflectrl.core import InvalidInput
from reflectrl.core.run_files import training_episodes_file
from reflectrl.lm.load import LanguageModel, new_model, save_model
from reflectrl.lm.section import ModelSection
from reflectrl.rollout.record import read_trajectories

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    path
    for room in ("reflectrl", "data_gen", "envs")
    for path in (ROOT / room).rglob("*.py")
    if not any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(ROOT / "reflectrl"))
)

PICKLES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "multiprocessing"}
"""Modules that pickle, including those that do so between processes."""
OBJECTS = {
    *("gather_object", "all_gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list"),
    *("recv_object_list", "ProcessPoolExecutor"),
}
"""Names of functions and classes of other libraries that pickle."""
NETWORK = {
    *("aiohttp", "ftplib", "http", "httpx", "httpx2", "openai", "requests", "socket", "socketserver", "unearth"),
    *("urllib", "xmlrpc"),
}
MEANT: Mapping[str, Mapping[str, str]] = {
    "reflectrl/endpoint/api.py": {
        "openai": "the chat endpoint that a recipe names",
        "httpx2": "the connections to that endpoint",
    },
    "reflectrl/core/addresses.py": {
        "socket": "the address that serve and watch listen at",
        "urllib": "urllib.parse, which takes addresses apart",
    },
    "reflectrl/share/server.py": {"socket": "the type of a listener"},
    "reflectrl/report/watch.py": {
        "http": "the server of the page that watch serves",
        "socket": "the address that it listens at",
        "urllib": "urllib.parse, which takes addresses apart",
    },
    "reflectrl/cli/doctor.py": {"urllib": "urllib.parse and urllib.request.url2pathname, for where it is installed"},
    "reflectrl/core/origin.py": {"subprocess": "git, for the commit that a run is begun with"},
    "reflectrl/lm/packages.py": {"subprocess": "pip, for a model that is in a package"},
    "reflectrl/pipeline/sweep.py": {"subprocess": "python, for the runs of a sweep"},
    "reflectrl/rollout/process.py": {"subprocess": "python, for worker processes of our own"},
    "envs/openenv_game/servers.py": {
        "socket": "the address that a package's server listens at",
        "subprocess": "python, for the server of a package that the recipe names",
    },
    "envs/openenv_game/session.py": {"httpx2": "the server that a recipe names"},
    "envs/auto_explore/sources.py": {"subprocess": "git, for a source that is a git URL"},
    "envs/auto_explore/sdist.py": {
        "unearth": "the package index, for a source that is pypi:NAME",
        "httpx2": "the errors of its connections",
        "subprocess": "pip, for its settings of the index",
    },
    "envs/auto_explore/programs.py": {"subprocess": "a command of the agent, in a sandbox without network"},
}
"""Modules that may import what others may not, and the reasons."""
FORBIDDEN = {
    *("allow_pickle=True", "shell=True", "trust_remote_code=True", "weights_only=False"),
    *("torch.load", "torch.save", "eval", "exec", "__import__", "os.system", "os.popen", "pandas.read_pickle"),
    *(f"yaml.{name}" for name in ("load", "load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all")),
    *(f"yaml.{name}" for name in ("Loader", "FullLoader", "UnsafeLoader", "CLoader", "CFullLoader", "BaseLoader")),
}


def faults(code: str) -> Iterator[str]:
    """Yield the imports and names of a module that can run files, start programs or reach the network."""
    for node in ast.walk(ast.parse(code)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = [node.func.id]
        elif isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            names = [f"{node.arg}={node.value.value}"]
        imported = isinstance(node, ast.Import | ast.ImportFrom)
        for name in names:
            first, *_, last = [*name.split("."), *name.split(".")]
            if imported and first in NETWORK | {"subprocess"}:
                yield first
            elif imported and (pickles := PICKLES & {*name.split(".")}):
                yield from pickles
            elif name in FORBIDDEN:
                yield name
            elif last in OBJECTS:
                yield last


@pytest.mark.slow
def test_no_module_runs_what_it_reads_or_reaches_the_network_but_those_that_are_meant_to() -> None:
    found = {str(path.relative_to(ROOT)): set(faults(path.read_text(encoding="utf-8"))) for path in MODULES}
    assert {path: names for path, names in found.items() if names} == {
        path: set(meant) for path, meant in MEANT.items()
    }


FAULTY = {
    "pickle": "import pickle",
    "multiprocessing": "from torch import multiprocessing",
    "gather_object": "from accelerate.utils import gather_object",
    "broadcast_object_list": "torch.distributed.broadcast_object_list(things)",
    "urllib": "import urllib.request",
    "torch.load": "import torch\ntorch.load(path)",
    "torch.save": "from torch import save",
    "yaml.Loader": "import yaml\nclass Mine(yaml.Loader): pass",
    "shell=True": "run(command, shell=True)",
    "eval": "value = eval(text)",
}


def test_a_fault_would_be_found() -> None:
    assert [fault for fault, code in FAULTY.items() if fault not in set(faults(code))] == []


# ---- in separate processes -------------------------------------------------------------------------------------

GUARD = """
import os, socket, sys

def guard(event, arguments):
    if event == "import":
        reached = arguments[0] == "hf_xet"  # its own network code, below Python
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        reached = arguments[0].family != socket.AF_UNIX
    else:
        reached = event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.bind")
    if reached:
        os.write(2, f"reached for the network: {event} {arguments[1:]}".encode())
        os._exit(77)

sys.addaudithook(guard)
"""
"""Code that ends any Python process, including children, that tries to use the network."""
MODEL = "{name: frozen, max_length: 512, compute: float32}"
ALL_ON = (
    "players.memory={episodes: 1, steps: 2, max_chars: 120}",
    "model.max_length=256",
    "prompt.action_mode=thought_choice",
    "players.policy.max_new_tokens=8",
    "rlft.terms.sft_thought.coef=1.0",
    "rlft.rewards={rater: 1.0, env: 0.0}",
)
"""Overrides with a player in every seat, and ``MODEL`` as planner, corrector and rater."""
SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK")


PROGRAM = """
import json, os, sys
from reflectrl.cli import main

work = json.load(sys.stdin)
for name, overrides in work["runs"].items():
    sys.argv = ["reflectrl", "run", "--recipe", "number_line/nano", "--run", name, *overrides]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
from huggingface_hub import constants
from huggingface_hub.utils import send_telemetry

assert constants.HF_HUB_DISABLE_TELEMETRY
send_telemetry("reflectrl")
print("nothing was reached for", flush=True)
for name, code in work["reaching"].items():
    if not (child := os.fork()):
        exec(code)
        os._exit(0)
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A program that runs recipes, and then code in a process each that may reach for the network."""
REACHING = {
    "hub": """
from reflectrl.lm.section import ModelSection
from reflectrl.lm.load import new_model
new_model(ModelSection(name="nobody/nothing"), labels="012", seed=0)
""",
    "remote": """
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.seats.planner import RemoteText
client = ChatClient(Endpoint(base_url="http://127.0.0.1:9/v1"))
RemoteText(client).write([[{"role": "user", "content": "Plan."}]], [0.0])
""",
}


@dataclass(frozen=True)
class Guarded:
    """A run in a process that ends if it reaches for the network, and what was tried after them."""

    runs: Path
    said: list[str]
    errors: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    """A process whose environment variables and caches do not prevent network access."""
    folder = tmp_path_factory.mktemp("guarded")
    save_model(LanguageModel(gpt2(spread=0.3, n_positions=512), tokenizer()), folder / "frozen")
    (folder / "guard").mkdir()
    (folder / "guard" / "sitecustomize.py").write_text(GUARD, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    environment |= {"PYTHONPATH": str(folder / "guard"), "HF_HOME": str(folder / "hub"), "OMP_NUM_THREADS": "1"}
    seats = [f"players.{role}={{player: local, model: {MODEL}}}" for role in ("planner", "corrector", "rater")]
    few = (*SMALL, "data.samples=40", "rlft.lessons.0.iterations=1", "rlft.episodes=2", "eval.episodes=2")
    few += ("eval.greedy=false", "eval.policies=[rlft]", "eval.controls=[]")
    work = {"runs": {"seated": [*few, *seats, *ALL_ON, "env.workers=1"]}, "reaching": REACHING}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(work),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return Guarded(folder / "runs", done.stdout.splitlines(), done.stderr)


@pytest.mark.slow
def test_x6_an_offline_recipe_and_local_players_reach_no_network(guarded: Guarded) -> None:
    """The command line also disables telemetry, unless it was enabled."""
    assert guarded.said[-3:] == ["nothing was reached for", "hub 77", "remote 77"]
    assert "reached for the network: socket.getaddrinfo" in guarded.errors
    assert guarded.errors.count("reached for the network: socket.") == len(REACHING)
    _, played = read_trajectories(guarded.runs / "seated" / training_episodes_file(0))
    spoken = {role for episode in played for turn in episode.turns for role in turn.said}
    assert spoken == {"planner", "memory", "reflector", "corrector", "rater"}
    assert (guarded.runs / "seated" / "report.html").is_file()


CODE = {
    "configuration_own.py": "from transformers import GPT2Config\nopen('ran', 'a').close()\n"
    "class OwnConfig(GPT2Config):\n    model_type = 'own'\n",
    "modeling_own.py": "from transformers import GPT2LMHeadModel\nfrom .configuration_own import OwnConfig\n"
    "class OwnModel(GPT2LMHeadModel):\n    config_class = OwnConfig\n",
}


def test_a_models_own_code_runs_only_when_asked_and_after_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    save_tiny("gpt2", tmp_path / "own")
    path = tmp_path / "own" / "config.json"
    own = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    config = {**json.loads(path.read_text(encoding="utf-8")), "model_type": "own", "auto_map": own}
    path.write_text(json.dumps(config), encoding="utf-8")
    for name, code in CODE.items():
        (tmp_path / "own" / name).write_text(code, encoding="utf-8")
    section = ModelSection(name="own", max_length=MAX_LENGTH)
    with pytest.raises(InvalidInput, match=r"'own'.*model\.trust_remote_code=true"):
        new_model(section, labels="012", seed=0)
    assert not (tmp_path / "ran").exists()
    lm = new_model(section.model_copy(update={"trust_remote_code": True}), labels="012", seed=0)
    assert type(lm.model).__name__ == "OwnModel"
    assert (tmp_path / "ran").exists()
    assert "'own'" in caplog.text  # the warning
