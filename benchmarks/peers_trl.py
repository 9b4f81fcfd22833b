"""The side of TRL in ``benchmarks/peers.py``: an episode is one sequence, whose written actions are trained."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from reflectrl.config import Recipe, load_recipe
from reflectrl.core import NatLangEnv, Task, make_env
from reflectrl.core.run_files import POLICY_SFT
from reflectrl.pipeline.run import Run
from reflectrl.prompts.chats import index_of
from reflectrl.seats.table import POLICY

WRITTEN = 8
"""Maximum number of tokens of an action."""
GROUP, GROUPS = 8, 4
NOISE = 0.3
"""Share of the demonstrations' steps that are played at random; these are read, but not imitated."""
DEMONSTRATIONS = 400
EPISODES = 200


class Episode:
    """An episode as one sequence of tokens: prompts of its states, each followed by the action that was written."""

    def __init__(self, recipe: Recipe, tokenizer: Any, task: Task, seed: int) -> None:
        self.env: NatLangEnv = make_env(recipe.env.name, **recipe.env.options)
        self._layout = recipe.layout(self.env.instructions)
        self._tokenizer = tokenizer
        self.env.reset(seed=seed, options={"task": task})
        self.prompt = self._state()
        self.ids = [*self.prompt]
        self.ours: list[bool] = [False] * len(self.ids)
        """Whether each token was written by the policy."""
        self.reward, self.done, self.success = 0.0, False, False
        self.steps = self.unparsed = 0

    def _state(self) -> list[int]:
        """Return the tokens of the present state, its menu and the cue."""
        menu = self._layout.menu_of(self.env.observation)
        text = self._layout.prompt(POLICY, self.env.observation, (), {}, menu).text
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def say(self, ids: Sequence[int], rng: random.Random, *, imitated: bool = True) -> None:
        """Append what was written, and play the action it names; a random one if it names none, as here in RL."""
        menu = self._layout.menu_of(self.env.observation)
        named = index_of(self._tokenizer.decode(ids, skip_special_tokens=True), menu, "text")
        self.unparsed += named is None
        choice = rng.randrange(len(menu.actions)) if named is None else named
        _, reward, terminated, truncated, info = self.env.step(menu.actions[choice])
        self.ids += ids
        self.ours += [imitated] * len(ids)
        self.steps, self.reward = self.steps + 1, self.reward + reward
        self.done, self.success = terminated or truncated, info["success"]
        if not self.done:
            state = self._state()
            self.ids += state
            self.ours += [False] * len(state)


class Until(TrainerCallback):
    """Ends a training once a time of this process is over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.process_time() + seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:  # noqa: ARG002 - theirs
        """Ask for the end when it is time."""
        control.should_training_stop = time.process_time() >= self._end
        return control


def train(recipe: str, seed: int, rate: float, sft_seconds: float, seconds: float, folder: Path) -> Mapping[str, Any]:
    """Fine-tune and train; return the fields of a ``Score``."""
    changes = {
        "seed": seed,
        "model.max_length": 1024,
        "players.reflector.player": "none",
        "prompt.history": 0,
        "eval.controls": [],
    }
    changes |= {"prompt.action_mode": "text", "sft.policy.label_smoothing": 0.0, "sft.policy.steps": 1}
    made = Run(folder / "run", recipe, changes)
    made.gen_data()
    made.sft()  # writes the tokenizer, and the architecture of the model
    settings = load_recipe(made.recipe)
    tokenizer = AutoTokenizer.from_pretrained(folder / "run" / POLICY_SFT)
    torch.manual_seed(seed)
    config = AutoModelForCausalLM.from_pretrained(folder / "run" / POLICY_SFT).config
    model = AutoModelForCausalLM.from_config(config)
    rng = random.Random(seed)
    probe = make_env(settings.env.name, **settings.env.options)
    tasks = {split: list(probe.split_tasks(split)) for split in ("train", "validation", "test")}

    def write(rows: Sequence[Sequence[int]], *, greedy: bool = False) -> list[list[int]]:
        """Return what the model writes after each row, with the token that ends it."""
        width = max(map(len, rows))
        pad = tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(row)) + [*row] for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        given = GenerationConfig(
            max_new_tokens=WRITTEN,
            do_sample=not greedy,
            top_k=0,
            top_p=1.0,
            pad_token_id=pad,
            eos_token_id=tokenizer.eos_token_id,
        )
        with torch.no_grad():
            said = model.generate(input_ids=ids, attention_mask=mask, generation_config=given)[:, width:].tolist()
        end = tokenizer.eos_token_id
        return [row[: row.index(end) + 1] if end in row else row for row in said]

    def play(chosen: Sequence[Task], *, greedy: bool = False) -> list[Episode]:
        """Play an episode of each task, side by side."""
        model.eval()
        episodes = [Episode(settings, tokenizer, task, rng.randrange(2**31)) for task in chosen]
        while active := [each for each in episodes if not each.done]:
            for episode, ids in zip(active, write([each.ids for each in active], greedy=greedy), strict=True):
                episode.say(ids, rng)
        return episodes

    def shown(task: Task) -> Episode:
        """Return a demonstration of the expert."""
        episode = Episode(settings, tokenizer, task, rng.randrange(2**31))
        while not episode.done:
            noisy = rng.random() < NOISE
            action = rng.choice(episode.env.observation.actions) if noisy else episode.env.expert()
            ids = tokenizer(f" {action}", add_special_tokens=False)["input_ids"]
            episode.say([*ids, tokenizer.eos_token_id], rng, imitated=not noisy)
        return episode

    def success(split: str, *, greedy: bool = False) -> tuple[float, float]:
        """Return the share of episodes that succeed, and of steps without a legal action."""
        played = play([tasks[split][n % len(tasks[split])] for n in range(EPISODES)], greedy=greedy)
        steps = sum(each.steps for each in played)
        return sum(each.success for each in played) / EPISODES, sum(each.unparsed for each in played) / steps

    common = {
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": seed,
    }
    common |= {"activation_checkpointing": False, "logging_steps": 50, "output_dir": str(folder / "trl")}
    start = time.process_time()
    demonstrations = [shown(rng.choice(tasks["train"])) for _ in range(DEMONSTRATIONS)]
    rows = [
        {"input_ids": each.ids, "labels": [n if ours else -100 for n, ours in zip(each.ids, each.ours, strict=True)]}
        for each in demonstrations
    ]
    SFTTrainer(
        model,
        SFTConfig(
            **common,
            per_device_train_batch_size=16,
            learning_rate=settings.sft.policy.learning_rate,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=20,
            max_steps=10**6,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Until(sft_seconds)],
    ).train()
    taught = time.process_time() - start
    sft, _ = success("test")
    steps = 0

    def rollout(prompts: list[str], _: Any) -> dict[str, Any]:
        nonlocal steps
        episodes = play([tasks["train"][int(prompt)] for prompt in prompts])
        steps += sum(each.steps for each in episodes)
        return {
            "prompt_ids": [each.prompt for each in episodes],
            "completion_ids": [each.ids[len(each.prompt) :] for each in episodes],
            "logprobs": None,
            "env_mask": [[int(ours) for ours in each.ours[len(each.prompt) :]] for each in episodes],
            "gained": [each.reward for each in episodes],
        }

    trainer = GRPOTrainer(
        model,
        reward_funcs=lambda gained, **_: gained,
        args=GRPOConfig(
            **common,
            per_device_train_batch_size=GROUP * GROUPS,
            num_generations=GROUP,
            learning_rate=rate,
            lr_scheduler_type="constant",
            max_steps=10**6,
            max_completion_length=1024,
        ),
        train_dataset=Dataset.from_list([{"prompt": str(n)} for n in range(len(tasks["train"]))]),
        processing_class=tokenizer,
        rollout_func=rollout,
        callbacks=[Until(seconds)],
    )
    start = time.process_time()
    trainer.train()
    spent = time.process_time() - start
    sampled, unparsed = success("test")
    return {
        "sft": sft,
        "sampled": sampled,
        "greedy": success("test", greedy=True)[0],
        "validation": success("validation")[0],
        "unparsed": unparsed,
        "sft_seconds": taught,
        "seconds": spent,
        "steps": steps,
    }
