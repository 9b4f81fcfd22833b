"""Real prompts of three environments for the engine's benchmarks, made without downloads, and models that read them.

The prompts are those of an expert that sometimes errs, in the layout of a recipe, with the expert's reflections.
Nothing is downloaded: GPT-2's tokenizer is replaced by one that is trained on the prompts, and its weights by random
ones. ALFWorld needs its extra: pip install 'reflectrl[alfworld]'.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig, PreTrainedTokenizerBase

from reflectrl.config import Recipe, load_recipe
from reflectrl.config.environment import recipe_env
from reflectrl.config.training import RLFTSettings
from reflectrl.core import InvalidInput, NatLangEnv, Trajectory
from reflectrl.core.seeds import derive_seed
from reflectrl.data_gen.dataset import build_dataset
from reflectrl.endpoint.account import Account
from reflectrl.lm.adapters import add_lora
from reflectrl.lm.builtin import make_base
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.load import LanguageModel, new_model
from reflectrl.lm.section import LoraSection
from reflectrl.lm.seeding import seeded
from reflectrl.lm.tokenizer import label_ids, train_tokenizer
from reflectrl.prompts import Menu, Prompt, PromptFormat, labels
from reflectrl.prompts.views import MenuView, View
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.turn import states_of
from reflectrl.seats.others import CarelessExpert
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import reflecting, view
from reflectrl.training.batch import StepSample, step_samples

ENVS = ("dangerous_taxi", "auto_explore", "alfworld")
OFFLINE = {
    # the paper's twelve repositories and the chat model that asks about them would need a network
    "auto_explore/paper": (
        "dataset.repositories=[company:nano]",
        "dataset.writer=extractive",
        "dataset.files=null",
        "dataset.per_file=3",
    )
}
SMOLLM2: Mapping[str, Any] = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
"""Configuration of SmolLM2-135M's shape."""


TRIES = 100
"""Maximum number of episodes played for each one that is wanted, because some are too short."""


@dataclass(frozen=True)
class Step:
    """One step of an episode: the views of both players, and the sample for the update."""

    reflector: View
    """View of the reflector."""
    sample: StepSample
    """The policy's view, its decision, and the advantage."""

    @property
    def policy(self) -> MenuView:
        """View of the policy."""
        return self.sample.view


@dataclass(frozen=True)
class Scene:
    """A recipe that is ready to be played."""

    recipe: Recipe
    folder: Path
    """Run folder of the recipe, with a dataset if the environment needs one."""
    layout: PromptFormat
    labels: tuple[str, ...]

    def envs(self, number: int) -> list[NatLangEnv]:
        """Return new environments in this process."""
        return [recipe_env(self.recipe, self.folder) for _ in range(number)]

    def episodes(self, number: int, seed: int = 0) -> list[Episode]:
        """Return episodes of the training tasks in a seeded order."""
        return list(islice(self._endless(self.envs(1)[0], seed), number))

    def play(self, number: int, *, seed: int = 0, expertise: float = 0.6, steps: int | None = None) -> list[Trajectory]:
        """Play episodes of an expert that sometimes errs.

        Args:
            number: number of episodes.
            seed: seed of the tasks' order, and of everything random in an episode.
            expertise: probability of the expert's action; otherwise a random one is played.
            steps: number of steps; shorter episodes are skipped, and longer ones cut.

        Raises:
            InvalidInput: too few episodes have that many steps.

        """
        envs = self.envs(1)
        tried = islice(self._endless(envs[0], seed), TRIES * number)
        played = (self._one(envs, episode, expertise) for episode in tried)
        kept = list(islice((whole for whole in played if steps is None or len(whole.turns) >= steps), number))
        if len(kept) < number:
            raise InvalidInput(
                f"{len(kept)} of {TRIES * number} episodes of {self.recipe.name!r} lasted {steps} steps; expected "
                f"{number}: ask for fewer steps, a longer horizon, or another expertise."
            )
        return kept if steps is None else [replace(whole, turns=whole.turns[:steps]) for whole in kept]

    def steps(self, trajectories: Sequence[Trajectory]) -> list[list[Step]]:
        """Return the steps of each episode, with normalised advantages and the recipe's discount."""
        gamma = self.recipe.rlft.gamma if self.recipe.rlft else 1.0
        samples = step_samples(trajectories, self.layout, RLFTSettings(gamma=gamma))
        each = iter(samples)
        return [
            [Step(view("reflector", self.layout, state), next(each)) for state in states_of(whole)]
            for whole in trajectories
        ]

    def _endless(self, env: NatLangEnv, seed: int) -> Iterator[Episode]:
        tasks = list(env.split_tasks("train"))
        random.Random(f"{seed} order of tasks").shuffle(tasks)
        return (Episode(tasks[at % len(tasks)], derive_seed(seed, "episode", at)) for at in count())

    def _one(self, envs: Sequence[NatLangEnv], episode: Episode, expertise: float) -> Trajectory:
        policy, seats = CarelessExpert(expertise), reflecting(ExpertReflector())
        return rollout(envs, [episode], policy=policy, seats=seats, layout=self.layout)[0]


@contextmanager
def set_up(name: str, overrides: Sequence[str] = (), *, menu: int = 0) -> Iterator[Scene]:
    """Set up a shipped recipe in a temporary folder for the context.

    Args:
        name: name of the recipe.
        overrides: changes to the recipe, such as ``env.options.horizon=40``.
        menu: minimum number of labels, for menus longer than the environment's.

    """
    recipe = load_recipe(name, [*OFFLINE.get(name, ()), *overrides])
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as folder:
        build_dataset(recipe, Path(folder), Account())
        env = recipe_env(recipe, Path(folder))
        layout = recipe.prompt.layout(env.instructions)
        yield Scene(recipe, Path(folder), layout, layout.all_labels(max(menu, env.max_actions)))


# ---- models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """A model with random weights, its tokenizer, and its encoder of prompts."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    encoder: PromptEncoder
    label_ids: tuple[int, ...]


def nano(scene: Scene, episodes: Sequence[Sequence[Step]], seed: int = 0, *, max_length: int | None = None) -> Reader:
    """Return ``builtin/nano`` of the same environment's nano recipe before training, optionally for longer prompts."""
    section = load_recipe(f"{scene.recipe.env.name}/nano").model
    section = section.model_copy(update={"max_length": max_length or section.max_length})
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as folder:
        base = make_base(section, Path(folder) / "base", corpus=corpus(episodes), labels=scene.labels, seed=seed)
        lm = new_model(base, labels=scene.labels, seed=seed)
    return _reader(scene, lm, section.max_length)


def gpt2_small(scene: Scene, episodes: Sequence[Sequence[Step]], seed: int = 0, **shape: Any) -> Reader:
    """Return a model of GPT-2 small's shape, with random weights and no dropout; ``shape`` overrides ``GPT2Config``."""
    length = shape.get("n_positions", 1024)
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return random_model(scene, episodes, GPT2Config(**still, **shape), length, seed)


def wide_tokenizer(
    scene: Scene, episodes: Sequence[Sequence[Step]], config: PretrainedConfig, max_length: int
) -> PreTrainedTokenizerBase:
    """Return a tokenizer for a model of any shape, and write its special tokens to the model's configuration.

    Its vocabulary has the size that ``config`` names: the words of the prompts come first, and each further id is a
    character that no prompt contains, so that any text of a random model can be encoded again.
    """
    words = min(2000, config.vocab_size)
    tokenizer = train_tokenizer(corpus(episodes), scene.labels, pieces="words", vocabulary=words, max_length=max_length)
    private = range(0xF0000, 0xF0000 + config.vocab_size - len(tokenizer))
    tokenizer.add_tokens([AddedToken(chr(point), normalized=False) for point in private])
    config.bos_token_id = config.eos_token_id = tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    return tokenizer


def smollm2(scene: Scene, episodes: Sequence[Sequence[Step]], **shape: Any) -> Reader:
    """Return a model of SmolLM2-135M's shape, with random weights; ``shape`` overrides ``LlamaConfig``."""
    size: dict[str, Any] = {**SMOLLM2, "max_position_embeddings": 1024, **shape}
    return random_model(scene, episodes, LlamaConfig(**size), size["max_position_embeddings"])


def random_model(
    scene: Scene,
    episodes: Sequence[Sequence[Step]],
    config: PretrainedConfig,
    max_length: int,
    seed: int = 0,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    lora: LoraSection | None = None,
) -> Reader:
    """Return a model of any shape with random weights, created on ``device``, and new adapters if ``lora`` is given."""
    tokenizer = wide_tokenizer(scene, episodes, config, max_length)
    with seeded(seed):
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        if lora is not None:
            model = add_lora(model, lora, [])
    return _reader(scene, LanguageModel(model, tokenizer), max_length)


def _reader(scene: Scene, lm: LanguageModel, max_length: int) -> Reader:
    ids = tuple(label_ids(lm.tokenizer, scene.labels))
    return Reader(lm.model.eval(), lm.tokenizer, PromptEncoder(lm.tokenizer, ids, max_length), ids)


def corpus(episodes: Iterable[Iterable[Step]]) -> list[str]:
    """Return all prompt texts; a reflector's prompt that begins the policy's prompt is not repeated."""
    read = [(step.policy.prompt.text, step.reflector.prompt.text) for episode in episodes for step in episode]
    return [policy for policy, _ in read] + [asked for policy, asked in read if not policy.startswith(asked)]


def ends(vocabulary: int, eos: int) -> tuple[int, ...]:
    """Return token ids that end a reply, enough for a random model to end one after about 33 tokens."""
    drawn = random.Random("0 ends").sample(range(vocabulary), round(0.03 * vocabulary))
    return tuple(sorted({eos, *drawn}))


# ---- other menus -----------------------------------------------------------------------------------------------------


def without_menu(prompt: Prompt) -> Prompt:
    """Return the prompt with the same state and reflection but without a menu."""
    listed, last = (prompt.menu.head_text, prompt.menu.tail_text) if prompt.menu else ("", "")
    return replace(prompt, head=prompt.head.removesuffix(listed), tail=prompt.tail.removeprefix(last), menu=None)


def with_menu(seen: MenuView, layout: PromptFormat, actions: Sequence[str]) -> MenuView:
    """Return the view with the same state and reflection but another menu."""
    menu = Menu(labels(layout.labels, len(actions)), tuple(actions))
    bare = without_menu(seen.prompt)
    return replace(seen, prompt=replace(bare, tail=menu.tail_text + bare.tail, menu=menu), menu=menu)


def made_up_actions(episodes: Iterable[Iterable[Step]], number: int) -> list[str]:
    """Return ``number`` different actions: those of the episodes' menus, then the same with a number appended."""
    menus = (step.policy.menu for episode in episodes for step in episode)
    real = list(dict.fromkeys(action for menu in menus for action in menu.actions))
    made_up = (f"{action} {turn}" for turn in count(2) for action in real)
    return list(dict.fromkeys([*real, *islice(made_up, number + len(real))]))[:number]


def new_tokens(rows: Iterable[Sequence[int]]) -> int:
    """Return the number of tokens in the prefix tree over ``rows``: those to compute if no prefix is computed twice."""
    ordered = [(), *sorted(tuple(row) for row in rows)]
    return sum(len(row) - len(os.path.commonprefix([last, row])) for last, row in pairwise(ordered))
