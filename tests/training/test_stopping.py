"""Trainings that are stopped by a signal, and then go on; whole commands are stopped in ``tests/pipeline``."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from rlft_on_ranks import die, inherit
from safetensors.torch import load_file
from tiny import gpt2
from tiny_models import LABELS, MAX_LENGTH, policy_row, save_tiny
from tiny_rlft import run
from warm_processes import start_ranks

from reflectrl.config.rlft import Stage
from reflectrl.config.schema import LoraSection, SFTPlayerSection
from reflectrl.core.stop import gentle_stops
from reflectrl.envs.number_line import NumberLine
from reflectrl.models.load import new_model
from reflectrl.training.checkpoints import last_checkpoint
from reflectrl.training.rlft import checkpoint_iteration
from reflectrl.training.sft import train_sft

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

ROWS = [policy_row(f"|T{' ' * i}P|", LABELS[i]) for i in range(4)]


def sft(section, folder, **options):
    lm = new_model(section, labels=LABELS, seed=0)
    settings = SFTPlayerSection(steps=12, batch_size=4, micro_batch_size=2, learning_rate=0.01, max_grad_norm=1.0)
    given = {
        "labels": LABELS,
        "max_length": MAX_LENGTH,
        "max_new_tokens": 8,
        "drop_long_rows": False,
        "seed": 3,
        "save_every": 10,
    }
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


@pytest.mark.parametrize("step", [7, 12])
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


# ---- several processes -----------------------------------------------------------------------------------------------


def ended(folder: Path, name: str, file: str, number: signal.Signals, rank: int) -> None:
    """A training of two ranks, one of which gets a signal when it writes ``file`` for the second time."""
    processes = start_ranks(folder, die, folder, name, rank, file, number)
    if number == signal.SIGKILL:  # the other one waits for it without end, and would be ended by the launcher
        assert processes[rank].wait() == -number
        for process in processes:
            process.kill()
    else:
        assert {process.wait() for process in processes} == {-number}


@pytest.mark.slow
def test_two_ranks_that_were_killed_or_stopped_go_on_as_if_nothing_had_happened(tmp_path):
    ended(tmp_path, "killed", "checkpoint-4", signal.SIGKILL, rank=0)
    ended(tmp_path, "stopped", "reflectrl_state_1.json", signal.SIGTERM, rank=1)
    begun = {name: checkpoint_iteration(last_checkpoint(tmp_path / name)) for name in ("killed", "stopped")}
    assert all(2 <= iteration < 8 for iteration in begun.values()), begun
    for process in start_ranks(tmp_path, inherit, tmp_path, "killed", "stopped"):
        assert process.wait() == 0, process.said
    for rank in range(2):
        straight = load_file(tmp_path / f"undisturbed_{rank}.safetensors")
        for name in begun:
            again = load_file(tmp_path / f"{name}_{rank}.safetensors")
            assert all(torch.equal(weight, straight[key]) for key, weight in again.items()), name
    told = json.loads((tmp_path / "undisturbed_0.json").read_text())
    for name, iteration in begun.items():
        assert json.loads((tmp_path / f"{name}_0.json").read_text()) == told[iteration:]
        assert {path.name for path in (tmp_path / name).iterdir()} == {"checkpoint-6", "checkpoint-8"}
