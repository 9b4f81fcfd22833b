"""Environments as tools of TRL's GRPO: called directly, and in a real trainer with a tiny model."""

from __future__ import annotations

import json
import re
from typing import Literal

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import get_json_schema

from reflectrl.core import InvalidInput, Outcome, WorkFailed, register_env
from reflectrl.envs.number_line import NumberLine
from reflectrl.envs.number_line.env import DOWN, UP
from reflectrl.training.tools import ToolEnv, environment_factory, task_rows


def line(task: str = "3-to-5", reward: Literal["return", "success"] = "return", **options: object) -> ToolEnv:
    game = environment_factory("number_line", reward, **options)()
    game.reset(task=task)
    return game


def test_a_row_is_a_conversation_and_a_task_of_any_split():
    rows = task_rows("number_line", "validation", size=4)
    assert [row["task"] for row in rows] == ["0-to-2", "3-to-0", "1-to-3"]
    for row in rows:
        (message,) = row["prompt"]
        assert message["role"] == "user"
        assert "adding or subtracting one" in message["content"]
        assert "the tool act" in message["content"]
    row = task_rows("dangerous_taxi", "unseen_destination")[0]
    assert environment_factory("dangerous_taxi")().reset(**row, difficulty=3).startswith("\n\n")


def test_an_episode_is_played_by_calling_a_tool_until_it_ends_and_then_another():
    game = environment_factory("number_line")()
    assert "nothing more can be played" in game.act(UP)
    assert game.reset(task="3-to-5") == f"\n\nNumber 3, target 5.\nActions:\n- {UP}\n- {DOWN}"
    assert game.act(UP) == f"Number 4, target 5.\nActions:\n- {UP}\n- {DOWN}"
    assert game.act(f" {UP}\n") == "Number 5, target 5.\nThe game is over: won."
    assert "nothing more can be played" in game.act(UP)
    assert game.success
    assert game.get_reward() == game.episode_return == pytest.approx(0.95)
    game.reset(task="3-to-5")
    assert (game.success, game.get_reward()) == (False, 0.0)
    won = line("4-to-5", "success")
    assert [won.get_reward(), won.act(UP)[-4:], won.get_reward()] == [0.0, "won.", 1.0]
    lost = line("0-to-3", size=4)  # one conversation is independent of another
    assert [lost.act(action) for action in (UP, DOWN, UP, DOWN)][-1] == (
        "Number 0, target 3.\nThe game is over: not won."
    )
    assert not lost.success
    assert game.act(UP).startswith("Number 4")


@pytest.mark.parametrize("said", ["ADD ONE!", "", "x" * 100_000, ["add one"], None])
def test_what_is_no_action_changes_nothing_and_is_answered_with_the_menu(said):
    game = line()
    answer = game.act(said)
    assert f"Known: {UP}, {DOWN}." in answer
    assert len(answer) < 300
    assert game.episode_return == 0.0
    assert game.act(UP).startswith("Number 4")


def test_the_model_is_shown_one_tool_and_rewards_are_logged_under_the_environments_class():
    schema = get_json_schema(line().act)["function"]
    assert schema["name"] == "act"
    assert schema["parameters"]["properties"]["action"]["type"] == "string"
    public = {name for name, value in vars(ToolEnv).items() if callable(value) and not name.startswith("_")}
    assert public == {"reset", "act", "get_reward"}
    assert type(line()).__name__ == "NumberLine"


class Breaks(NumberLine):
    """Environment that fails at the first action."""

    def act(self, action: str) -> Outcome:
        raise ZeroDivisionError(f"{action} divided by nothing")


def test_an_environment_that_breaks_stops_training_though_the_loop_of_trl_continues():
    register_env("breaks", Breaks)
    game = environment_factory("breaks")()
    game.reset(task="3-to-5")
    for use in (lambda: game.act(UP), game.get_reward):
        with pytest.raises(WorkFailed, match="divided by nothing"):
            use()
    game.reset(task="3-to-5")
    assert game.get_reward() == 0.0


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: environment_factory("numberline"), "'number_line'"),
        (lambda: environment_factory("number_line", sise=4), "'size'"),
        (lambda: environment_factory("number_line", "sucess"), "'success'"),
        (lambda: task_rows("number_line", "tset"), "'test'"),
        (lambda: environment_factory("number_line")().reset(prompt=[]), "'prompt'.* 'task'"),
        (lambda: line("3-to-5", size=4), "'3-to-5' .*'number_line' .*{'size': 4}"),
    ],
)
def test_mistakes_are_refused(use, said):
    with pytest.raises(InvalidInput, match=said):
        use()


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
STATE = re.compile(r"Number (\d+), target (\d+)\.\nActions:")


def tool_calling_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with Qwen's chat template, whose tool calls TRL can read."""
    from trl.chat_template_utils import qwen3_chat_template

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator([], trainers.BpeTrainer(special_tokens=SPECIAL, initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = qwen3_chat_template
    return tokenizer


class Scripted(Qwen3ForCausalLM):
    """A real model with scripted text: it calls ``act`` until a game ends, but every second copy calls it wrongly."""

    tokenizer: PreTrainedTokenizerFast

    def generate(self, input_ids: torch.Tensor, **_: object) -> torch.Tensor:
        texts = self.tokenizer.batch_decode(input_ids)
        words = [self.tokenizer(self.reply(text, row))["input_ids"] for row, text in enumerate(texts)]
        longest = max(map(len, words))
        padded = [ids + [self.tokenizer.pad_token_id] * (longest - len(ids)) for ids in words]
        return torch.cat([input_ids, torch.tensor(padded)], dim=1)

    @staticmethod
    def reply(text: str, row: int) -> str:
        *_, answer = text.split("<|im_start|>user")
        state = STATE.search(answer)
        if state is None:
            return "Done.<|im_end|>"
        number, target = map(int, state.groups())
        called_wrongly = row % 2 and "fly" not in text
        action = "fly" if called_wrongly else UP if number < target else DOWN
        call = json.dumps({"name": "act", "arguments": {"action": action}})
        return f"<tool_call>\n{call}\n</tool_call><|im_end|>"


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore"
)  # those of TRL and transformers, among them that environment_factory is experimental
def test_grpo_trains_through_the_factory(tmp_path):
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = tool_calling_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Scripted(config)
    model.tokenizer = tokenizer
    before = model.lm_head.weight.detach().clone()
    rows = [row for row in task_rows("number_line", size=6) if row["task"] in ("1-to-4", "3-to-0")]
    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            max_steps=2,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=2000,
            logging_steps=1,
            learning_rate=1e-2,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
        ),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        environment_factory=environment_factory("number_line", size=6),
    )
    trainer.train()
    played = [log for log in trainer.state.log_history if "tools/call_frequency" in log]
    assert len(played) == 2
    for step in played:  # one copy played three actions, the other was refused one and gave up
        assert step["tools/call_frequency"] == 2.0
        assert step["tools/failure_frequency"] == 0.0
        assert step["rewards/NumberLine/mean"] == pytest.approx(0.9 / 2)
    assert [(game.success, game.episode_return) for game in trainer.environments] == [
        (True, pytest.approx(0.9)),
        (False, 0),
    ]
    assert not torch.equal(model.lm_head.weight, before)
