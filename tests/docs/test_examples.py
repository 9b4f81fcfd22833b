"""The examples beside the documentation run as they stand, with the packages that they are about."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from faulty import wait_until
from openai import DefaultHttpxClient
from quiet_trl import QUIET
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from trained_runs import TrainedRuns
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import render_jinja_template
from warm_processes import WarmProcess, command_line

from reflectrl import make_env
from reflectrl.core import NatLangEnv, Task, check_env
from reflectrl.envs.number_line import NumberLine
from reflectrl.pipeline.agent import load_agent
from reflectrl.rollout import Episode, rollout

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def example(name: str, *packages: str) -> ModuleType:
    """Import an example; skip the test where a package that it is about is not installed."""
    for package in packages:
        pytest.importorskip(package, reason=f"the example {name} needs the package {package}: pip install {package}")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages, at their import
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module


def test_every_example_is_tested_here_and_named_on_a_page():
    names = {path.stem for path in EXAMPLES.iterdir() if path.suffix == ".py"}
    pages = "".join(path.read_text(encoding="utf-8") for path in EXAMPLES.parent.glob("*.md"))
    assert {name for name in names if f"examples/{name}.py" in pages} == names
    text = Path(__file__).read_text(encoding="utf-8")
    assert {name for name in names if f'example("{name}"' in text} == names


# ---- environments around others' games -------------------------------------------------------------------------------


def played(env: NatLangEnv, task: int, *actions: str) -> str:
    env.reset(seed=0, options={"task": Task(f"seed-{task}", {"seed": task})})
    for action in actions:
        env.step(action)
    return env.observation.text


def test_minigrid_in_words():
    module = example("minigrid_in_words", "minigrid")
    check_env(module.MiniGridInWords())
    assert len([line for line in (EXAMPLES / "minigrid_in_words.py").read_text().splitlines() if line.strip()]) <= 40
    env = module.MiniGridInWords("MiniGrid-DoorKey-5x5-v0")
    assert played(env, 1) == "locked yellow door: 0 ahead, 1 to the left.\nyellow key: 1 ahead.\nwall: 2 ahead."
    assert "yellow key: in your hands." in played(env, 1, "pick up")
    assert "yellow key: 1 ahead." in played(env, 1, "pick up", "drop")
    opened = played(env, 1, "pick up", "turn left", "open or close")
    assert opened.startswith("yellow key: in your hands.\nopen yellow door: 1 ahead.")
    _, reward, ended, _, info = env.step("go forward")
    assert (reward, ended, info["success"]) == (0.0, False, False)


def test_a_game_of_minigrid_is_won_by_its_mission():
    env = example("minigrid_in_words", "minigrid").MiniGridInWords("MiniGrid-Empty-5x5-v0")
    played(env, 0, "go forward", "go forward", "turn right", "go forward")
    assert "green goal: 1 ahead." in env.observation.text
    _, reward, ended, _, info = env.step("go forward")
    assert (0.5 < reward < 1, ended, info["success"]) == (True, True, True)


def test_an_opponent_of_pettingzoo():
    module = example("pettingzoo_opponent", "pettingzoo", "pygame")
    env = module.TicTacToe()
    check_env(env)
    assert played(env, 1) == ". . .\n. . .\n. . ."  # of an odd task, you begin
    assert sorted(played(env, 0)) == sorted("O . .\n. . .\n. . .")
    ends = set()
    for task in env.tasks("train"):
        env.reset(seed=0, options={"task": task})
        over, rng = False, np.random.default_rng(task.options["seed"])
        while not over:
            before = env.observation
            _, reward, over, _, info = env.step(str(rng.choice(before.actions)))
            assert before.text.count("X") - before.text.count("O") in (0, -1)
        ends.add((reward, info["success"]))
    assert ends == {(1.0, True), (-1.0, False), (0.0, False)}


def test_the_opponent_blocks_a_line():
    module = example("pettingzoo_opponent", "pettingzoo", "pygame")
    env = module.TicTacToe()

    def marks(line: tuple[int, ...]) -> list[str]:
        rows = env.observation.text.splitlines()
        return [rows[square % 3].split()[square // 3] for square in line]

    played(env, 1, "top left")
    line = next(line for line in module.LINES if marks(line) == ["X", ".", "."])
    env.step(module.SQUARES[line[1]])
    assert marks(line) == ["X", "X", "O"]


# ---- our environments in others' trainers ----------------------------------------------------------------------------


def test_ppo_of_stable_baselines():
    module = example("ppo_of_stable_baselines", "stable_baselines3")
    from stable_baselines3.common.env_checker import check_env as check

    check(module.numbered("number_line", size=6))
    first = module.train(2 * 128, learning_rate=1e-3, gamma=0.95)
    more = module.train(12 * 128, learning_rate=1e-3, gamma=0.95)
    early, late = (np.mean([episode["r"] for episode in model.ep_info_buffer]) for model in (first, more))
    assert late > early + 0.2


def tool_chat(module: ModuleType) -> tuple[PreTrainedTokenizerFast, Qwen3ForCausalLM]:
    """Return a tiny Qwen3 with its own template for chats, which has learned to call the tool with either action."""
    import trl

    template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
    tools = [get_json_schema(module.Game().act)]
    state = f"{module.ENV.instructions} Play by calling act.\nNumber 2, target 3.\nPossible actions: "

    def chat(action: str) -> tuple[str, str]:
        call = {"type": "function", "function": {"name": "act", "arguments": {"action": action}}}
        asked = [{"role": "user", "content": f"{state}add one, subtract one"}]
        answered = [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
        (prompt,), _ = render_jinja_template([asked], tools=tools, chat_template=template, add_generation_prompt=True)
        (whole,), _ = render_jinja_template([answered], tools=tools, chat_template=template)
        return prompt, whole.removeprefix(prompt).strip()

    chats = [chat(action) for action in ("add one", "subtract one")]
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    pieces.train_from_iterator(["".join(chat) for chat in chats], trainer)
    pieces.add_tokens([f"<{end}{tag}>" for tag in ("tool_call", "think", "tool_response") for end in ("", "/")])
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, chat_template=template, **ends)
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 1024}
    tokens = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    model = Qwen3ForCausalLM(Qwen3Config(**shape, **heads, **tokens, tie_word_embeddings=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    examples = [tuple(tokenizer(part)["input_ids"] for part in chat) for chat in chats]
    for _ in range(80):
        losses = [loss_of(model, torch.tensor([prompt + answer]), len(prompt)) for prompt, answer in examples]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()
    return tokenizer, model


def loss_of(model: Any, ids: torch.Tensor, prompt: int) -> torch.Tensor:
    labels = ids.clone()
    labels[:, :prompt] = -100
    return model(ids, labels=labels).loss


@pytest.mark.filterwarnings(
    "ignore:.*gradient_checkpointing.*:FutureWarning"
)  # transformers renamed it, TRL did not yet
def test_grpo_of_trl_plays_by_tool_calls_for_two_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    module = example("grpo_of_trl")
    tokenizer, model = tool_chat(module)
    before = [weights.clone() for weights in model.parameters()]
    trainer = module.train(
        model,
        tokenizer,
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=8,
        max_steps=2,
        learning_rate=1e-3,
        seed=0,
        **QUIET,
    )
    steps = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(steps) == 2
    assert all(step["tools/call_frequency"] > 0.5 and step["tools/failure_frequency"] == 0 for step in steps)
    assert any(step["rewards/Game/std"] > 0 for step in steps)  # some episodes went better than others
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_what_a_tool_call_is_answered():
    game = example("grpo_of_trl").Game()
    first = game.reset(task="1-to-2", prompt=[])
    assert first == "Number 1, target 2.\nPossible actions: add one, subtract one"
    assert game.act("jump") == f"That is not possible. {first}"
    assert (game.act("add one"), game.get_reward()) == ("The game is over.", 1.0)
    assert (game.act("add one"), game.get_reward()) == ("The game is over.", 1.0)


# ---- our agents in others' loops -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(trained_run: TrainedRuns, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A run, and the address of its agent, which plays its most probable actions."""
    run, log = trained_run(), tmp_path_factory.mktemp("served") / "log"
    process = WarmProcess(log, command_line, "serve", str(run), "--port", "0", "--greedy")
    try:
        wait_until(lambda: (log.exists() and "http" in process.said) or process.poll() is not None)
        yield run, f"{process.said.split()[-1]}/v1"
    finally:
        process.kill()


def by_rollout(run: Path) -> list[tuple[list[str], bool]]:
    """Return the actions and the success of the agent's own episodes of two tasks."""
    agent, env = load_agent(run, greedy=True), make_env("number_line", size=8)
    parts = {"policy": agent.policy, "seats": agent.seats, "layout": agent.layout}
    played = [rollout([env], [Episode(task, 0)], **parts)[0] for task in env.tasks("test")[:2]]
    return [(list(each.actions), each.success) for each in played]


def test_the_loop_of_openai_s_client_plays_what_a_rollout_plays(served):
    run, url = served
    module, env = example("chat_of_openai", "openai"), make_env("number_line", size=8)
    with module.OpenAI(base_url=url, api_key="none") as client:
        played = [module.play(client, env, task) for task in env.tasks("test")[:2]]
    assert played == by_rollout(run)


def test_the_loop_of_openai_s_client_tells_the_task(served):
    class Told(NumberLine):
        def observe(self):
            return replace(super().observe(), task="Count.")

    module, env, sent = example("chat_of_openai", "openai"), Told(size=8), []
    hooks = {"request": [lambda request: sent.append(request.content)]}
    listening = DefaultHttpxClient(event_hooks=hooks)
    with module.OpenAI(base_url=served[1], api_key="none", http_client=listening) as client:
        module.play(client, env, env.tasks("test")[0])
    asked = [json.loads(content)["messages"] for content in sent if content]
    assert {(chat[0]["role"], chat[0]["content"], chat[1]["role"]) for chat in asked} == {("system", "Count.", "user")}


def test_an_agent_of_openai_agents_plays_what_a_rollout_plays(served):
    run, url = served
    module, env = example("agents_of_openai", "agents"), make_env("number_line", size=8)
    tasks = env.tasks("test")[:2]
    played = [asyncio.run(module.play(url, "none", "number_line-nano", env, task)) for task in tasks]
    assert played == by_rollout(run)


@pytest.mark.parametrize("name", ["minigrid_in_words", "pettingzoo_opponent"])
def test_an_example_runs_as_a_program(name):
    example(name, name.partition("_")[0], "pygame")
    subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, check=True)
