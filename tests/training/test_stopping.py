"""Trainings that are ended by signals, as a person or a cluster sends them, and then started again."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tiny import gpt2
from tiny_models import LABELS, MAX_LENGTH, MENU, save_tiny
from tiny_rlft import run

from reflectrl.config import load_recipe
from reflectrl.config.schema import LoraSection, SFTPlayerSection
from reflectrl.core.stop import gentle_stops
from reflectrl.data_gen.rows import Row
from reflectrl.envs.number_line import NumberLine
from reflectrl.models.load import new_model
from reflectrl.pipeline import STAGES, run_stages
from reflectrl.pipeline.console import Reporter
from reflectrl.training.checkpoints import last_checkpoint
from reflectrl.training.curriculum import Stage
from reflectrl.training.rlft import checkpoint_iteration
from reflectrl.training.sft import train_sft

TESTS = Path(__file__).parents[1]


# ---- rlft ------------------------------------------------------------------------------------------------------------

STAGE = Stage("main", 6, env={"size": 6}, replay_threshold=-100.0)
RLFT = {"stages": [STAGE], "baseline": "value", "num_iterations": 2, "epsilon": 0.2, "replay_size": 4}


class Interrupted(NumberLine):
    """Ctrl-C is pressed at its 17th reset, in the middle of a rollout."""

    resets = 0

    def start(self, task):
        super().start(task)
        Interrupted.resets += 1
        if Interrupted.resets == 17:
            signal.raise_signal(signal.SIGINT)


def interrupted(folder):
    with gentle_stops(lambda _: None) as stop:
        run(folder, gpt2(spread=0.1), env=Interrupted, stop=stop, replay_episodes=2, **RLFT).train()


def test_a_stop_that_is_wished_for_in_an_iteration_leaves_a_checkpoint_after_it(tmp_path):
    straight = run(tmp_path / "straight", gpt2(spread=0.1), replay_episodes=2, **RLFT).train()
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "stopped")
    checkpoint = last_checkpoint(tmp_path / "stopped")
    done = checkpoint_iteration(checkpoint)
    assert 0 < done < 6
    assert done % straight.trainer.args.save_every
    again = run(tmp_path / "stopped", gpt2(spread=0.1), replay_episodes=2, **RLFT).train(checkpoint)
    assert again.iterations == straight.iterations[done:]
    assert again.episodes == straight.episodes[done:]
    assert all(torch.equal(weight, straight.weights[name]) for name, weight in again.weights.items())


# ---- sft -------------------------------------------------------------------------------------------------------------

ROWS = [Row(f"Past: none\n|T{' ' * i}P|\n{MENU}Action:\n", LABELS[i], "t", 0, False, LABELS) for i in range(4)]


def sft(section, folder, **options):
    lm = new_model(section, labels=LABELS, seed=0)
    settings = SFTPlayerSection(steps=12, batch_size=4, micro_batch_size=2, learning_rate=0.01, max_grad_norm=1.0)
    given = {"labels": LABELS, "max_length": MAX_LENGTH, "drop_long_rows": False, "seed": 3, "save_every": 10}
    summary = train_sft(lm, ROWS, player="policy", section=settings, output_dir=folder, **given, **options)
    return lm, summary


def stopped_at(step, section, folder):
    def on_row(*_):
        on_row.calls += 1
        if on_row.calls == 2 * step:  # micro-batches
            signal.raise_signal(signal.SIGINT)

    on_row.calls = 0
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, *_: on_row() if type(module).__name__ == "PeftModelForCausalLM" else None
    )
    try:
        with gentle_stops(lambda _: None) as stop:
            sft(section, folder, stop=stop)
    finally:
        handle.remove()


@pytest.mark.parametrize("step", [1, 7, 12])
def test_a_stop_in_a_step_of_sft_leaves_a_checkpoint_after_it(step, tmp_path):
    section = save_tiny("gpt2", tmp_path / "base").model_copy(update={"lora": LoraSection(r=4, dropout=0.2)})
    straight, expected = sft(section, tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        stopped_at(step, section, tmp_path / "stopped")
    (folder,) = (tmp_path / "stopped").iterdir()
    assert last_checkpoint(folder).name == f"checkpoint-{step}"
    resumed, summary = sft(section, tmp_path / "stopped")
    assert summary == expected  # the losses told of, too
    for name, value in straight.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name


# ---- the command line ------------------------------------------------------------------------------------------------

SMALL = [
    "sft.reflector.steps=4",
    "sft.policy.steps=40",
    "rlft.stages.0.iterations=12",
    "rlft.save_every=5",
    "rlft.episodes=6",
    "eval.episodes=4",
]


def command(run):
    recipe = ["run", "--recipe", "number_line/nano", "--runs", str(run.parent), "--run", run.name]
    return [sys.executable, "-m", "reflectrl", *recipe, *SMALL]


def undisturbed(run):
    run_stages(load_recipe("number_line/nano", SMALL), run, STAGES, reporter=Reporter(Console(file=io.StringIO())))


def in_sft(run):
    return (run / "reflector").is_dir() and list((run / "checkpoints").glob("sft-policy/*"))


def in_rlft(run):
    return (run / "metrics.jsonl").is_file() and (run / "metrics.jsonl").read_bytes().count(b"\n") >= 2


def contents(run):
    names = ("policy-sft", "policy", "metrics.jsonl", "eval.jsonl", "reflector")
    files = [path for name in names for path in [run / name, *(run / name).rglob("*")] if path.is_file()]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_the_command_line_stops_at_signals_and_goes_on_to_the_same_bytes(tmp_path):
    undisturbed(tmp_path / "straight")
    stopped = tmp_path / "stopped"
    for when, number, status in ((in_sft, signal.SIGINT, 130), (in_rlft, signal.SIGTERM, 143)):
        with subprocess.Popen(command(stopped), stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None and not when(stopped):
                time.sleep(0.002)
            process.send_signal(number)
            _, said = process.communicate(timeout=300)
        assert process.returncode == status, said
        assert f"{number.name}: finishing the step that is under way" in said
        assert "Traceback" not in said
    written = [json.loads(line)["iteration"] for line in (stopped / "metrics.jsonl").read_text().splitlines()]
    assert written == list(range(checkpoint_iteration(last_checkpoint(stopped / "checkpoints" / "rlft"))))
    assert len(written) < 12
    undisturbed(stopped)
    assert contents(stopped) == contents(tmp_path / "straight")
    assert len(contents(stopped)) > 10
    assert not list((stopped / "checkpoints").glob("sft-*"))


# ---- several processes -----------------------------------------------------------------------------------------------


def torchrun(folder, *arguments):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return subprocess.Popen(
        [*launch, str(TESTS / "rlft_on_ranks.py"), str(folder), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def train_until(folder, name, delay_s, strike):
    """Strike a while after the first checkpoint."""
    with torchrun(folder, "die", name) as launcher:
        while launcher.poll() is None and not (folder / name / "checkpoint-2").is_dir():
            time.sleep(0.01)
        time.sleep(delay_s)
        strike(launcher, [int((folder / f"{name}_{rank}.pid").read_text()) for rank in range(2)])
        launcher.communicate(timeout=300)
    assert launcher.returncode != 0, "the run ended before its time"


def kill_all(launcher, ranks):
    for process in (launcher.pid, *ranks):
        os.kill(process, signal.SIGKILL)


def ask_the_second(_, ranks):
    os.kill(ranks[1], signal.SIGTERM)


@pytest.mark.slow
def test_two_ranks_that_were_killed_or_stopped_go_on_as_if_nothing_had_happened(tmp_path):
    rng = random.Random()
    train_until(tmp_path, "killed", rng.random(), kill_all)
    train_until(tmp_path, "stopped", rng.random(), ask_the_second)
    begun = {name: checkpoint_iteration(last_checkpoint(tmp_path / name)) for name in ("killed", "stopped")}
    assert all(2 <= iteration < 40 for iteration in begun.values()), begun
    with torchrun(tmp_path, "inherit", "killed", "stopped") as launcher:
        _, said = launcher.communicate(timeout=240)
    assert launcher.returncode == 0, said[-4000:]
    for rank in range(2):
        straight = load_file(tmp_path / f"undisturbed_{rank}.safetensors")
        for name in begun:
            again = load_file(tmp_path / f"{name}_{rank}.safetensors")
            assert all(torch.equal(weight, straight[key]) for key, weight in again.items()), name
    told = json.loads((tmp_path / "undisturbed_0.json").read_text())
    for name, iteration in begun.items():
        assert json.loads((tmp_path / f"{name}_0.json").read_text()) == told[iteration:]
    for name in begun:
        assert {path.name for path in (tmp_path / name).iterdir()} == {"checkpoint-38", "checkpoint-40"}
