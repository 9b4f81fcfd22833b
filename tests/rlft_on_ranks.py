"""Functions that a test runs in two processes; each writes its results to files named after its rank."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from accelerate import PartialState
from both import Both
from cpu_fsdp import allow, ask
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from tiny import LAYOUT, gpt2, language_model, tokenizer
from tiny_rlft import Run, run, value_head
from torch.distributed.tensor import DTensor

from reflectrl.config.training import Lesson, Replay, Term, Terms, ThoughtTerm, Validation
from reflectrl.core import Task
from reflectrl.core.jsonl import encode
from reflectrl.core.stop import gentle_stops
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.envs.number_line import NumberLine
from reflectrl.lm.load import LanguageModel
from reflectrl.prompts import PromptFormat
from reflectrl.rollout.record import EpisodeStore, Header
from reflectrl.seats.embedders import HashingEmbedder
from reflectrl.seats.memory import GrowingMemory
from reflectrl.seats.reflector import ScriptedReflector
from reflectrl.seats.retriever import Retriever
from reflectrl.seats.served import PolicyServer
from reflectrl.seats.table import Seat
from reflectrl.training.checkpoints import last_checkpoint
from reflectrl.training.sharding import whole

OPTIONS = {
    "lessons": [Lesson("main", 4, env={"size": 6}, replay_threshold=-100.0)],
    "replay": Replay(size=1000, episodes=1),
    "micro_batch_tokens": 100,
    "learning_rate": 0.1,
    "weight_decay": 0.0,
    "max_grad_norm": 1e9,
    "advantage": value_head(),
    "rewards": {"env": 1.0, "novelty": 0.5},
    "normalize_rewards": True,
    "save_every": 3,
}


REMEMBERING = {"lessons": [Lesson("main", 4, env={"size": 6})], "episodes": 8, "max_length": 128, "save_every": 2}


class Interrupted(NumberLine):
    """NumberLine that raises Ctrl-C's signal at its sixth start, in the second iteration."""

    starts = 0

    def start(self, task: Task) -> None:
        super().start(task)
        Interrupted.starts += 1
        if Interrupted.starts == 6:
            signal.raise_signal(signal.SIGINT)


def train(folder: Path) -> None:
    """Train once undisturbed, and once with a Ctrl-C on the second rank after which training is resumed."""
    rank = PartialState(cpu=True).process_index
    made = {**OPTIONS, "optimizer": torch.optim.SGD}
    straight = run(folder / "run", gpt2(spread=0.1), **{**made, "save_every": 1}).train()
    env = Interrupted if rank == 1 else NumberLine
    with pytest.raises(KeyboardInterrupt), gentle_stops(lambda _: None) as stop:
        run(folder / "stopped", gpt2(spread=0.1), env=env, stop=stop, **made).train()
    again = run(folder / "stopped", gpt2(spread=0.1), **made).train(last_checkpoint(folder / "stopped"))
    save_file(straight.weights, folder / f"straight_{rank}.safetensors")
    save_file(again.weights, folder / f"again_{rank}.safetensors")
    seen = {
        "iterations": encode(straight.iterations),
        "resumed": encode(again.iterations),
        "episodes": encode(tuple(straight.trainer.replay)),
        "resumed_episodes": encode(tuple(again.trainer.replay)),
    }
    (folder / f"seen_{rank}.json").write_text(json.dumps(seen))


def validate(folder: Path) -> None:
    """Train with validations, whose episodes the processes share; each tells what it has found."""
    rank = PartialState(cpu=True).process_index
    options = {"lessons": [Lesson("main", 9, env={"size": 6})], "learning_rate": 0.03}
    validation = Validation(every=1, episodes=9, patience=2)
    trained = run(folder / "run", gpt2(spread=0.1), env=Both, **options, validation=validation).train()
    save_file(trained.weights, folder / f"validated_{rank}.safetensors")
    found = [trained.trainer.iteration, encode(trained.trainer.validated), encode(trained.iterations)]
    (folder / f"validated_{rank}.json").write_text(json.dumps(found))


def remembering(folder: Path, *, dies_after: int | None = None, name: str = "memory.jsonl") -> Run:
    """Return a run that is ready to train, with an empty memory in the file ``name``."""
    store = EpisodeStore(folder / name, Header("number_line", {"size": 6}, LAYOUT))
    memory = GrowingMemory(store, Retriever(store.snapshot(), HashingEmbedder()), max_chars=120)
    seats = [Seat("memory", memory)]
    return run(folder / "run", reflector=None, seats=seats, dies_after=dies_after, **REMEMBERING)


def remember(folder: Path) -> None:
    """Train with a memory; the main process writes its episodes, which are half of each batch."""
    rank = PartialState(cpu=True).process_index
    trained = remembering(folder, name=f"memory_{rank}.jsonl").train()
    if rank == 0:
        (folder / "episodes.json").write_text(json.dumps([encode(tuple(batch)) for batch in trained.episodes]))


def correct(folder: Path) -> None:
    """Train a policy that thinks; only the thoughts of the first process are corrected, in several forward passes.

    Only the main process has an ``on_iteration``.
    """
    rank = PartialState(cpu=True).process_index
    trained = run(
        folder / "run",
        gpt2(spread=0.1),
        reflector=None,
        seats=[Seat("corrector", ScriptedReflector(lambda _: "" if rank else "Up."))],
        layout=PromptFormat(history=1, labels="letters", action_mode="thought_choice"),
        lessons=[Lesson("main", 2, env={"size": 6})],
        terms=Terms(entropy=None, sft_thought=ThoughtTerm(1.0)),
        max_completion_length=8,
        micro_batch_tokens=400,
        save_every=10,
    )
    if rank:
        trained.trainer._on_iteration = None
    save_file(trained.train().weights, folder / f"corrected_{rank}.safetensors")


SHARDED = {
    "lessons": [Lesson("main", 6, env={"size": 6})],
    "learning_rate": 1e-3,
    "micro_batch_tokens": 100,
    "advantage": value_head(),
    "rewards": {"env": 1.0, "novelty": 0.5},
    "normalize_rewards": True,
    "terms": Terms(kl=Term(0.1)),
    "validation": Validation(every=2, episodes=5),
    "ema": 0.5,
    "save_every": 3,
}
"""Everything that reads or writes weights between updates."""


def sharded(folder: Path, *, adapters: bool) -> None:
    """Train with whole weights, then with sharded ones, once in one go and once resumed from the third iteration."""
    allow()
    rank = PartialState(cpu=True).process_index

    def train(name: str, checkpoint: Path | None = None) -> Run:
        model = gpt2(spread=0.1, layers=2)
        if adapters:
            settings = LoraConfig(
                r=4, target_modules="all-linear", exclude_modules=["lm_head"], init_lora_weights=False
            )
            torch.manual_seed(0)
            model = get_peft_model(model, settings)
        trained = run(folder / name, model, **SHARDED).train(checkpoint)
        save_file(
            {key: whole(weight) for key, weight in trained.weights.items()}, folder / f"{name}_{rank}.safetensors"
        )
        (folder / f"{name}_{rank}.json").write_text(json.dumps(encode(trained.iterations)))
        return trained

    train("whole")
    ask()
    straight = train("sharded")
    names = [name for name, weight in straight.model.named_parameters() if not isinstance(weight, DTensor)]
    assert names == [], f"not sharded: {names}"
    state = straight.trainer.learner._optimizer.optimizer.state
    assert all(isinstance(each["exp_avg"], DTensor) for each in state.values())
    train("resumed", folder / "sharded" / "checkpoint-3")


def thinking_on(url: str, folder: Path) -> None:
    """Train a policy with an adapter, on ``language_model("llama")``, whose thoughts a server writes."""
    settings = LoraConfig(r=4, target_modules="all-linear", exclude_modules=["lm_head"])
    lm = LanguageModel(get_peft_model(language_model("llama"), settings), tokenizer())
    client = ChatClient(Endpoint(model="served", base_url=url, max_tokens=8, temperature=1.0))
    run(
        folder / "run",
        lm.model,
        reflector=None,
        layout=PromptFormat(history=1, labels="letters", action_mode="thought_choice"),
        server=PolicyServer(client, folder / "adapters", lm),
        max_completion_length=8,
    ).train()
