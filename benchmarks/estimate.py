"""Compare the estimate of ``reflectrl estimate`` with a measured iteration of the same steps and all layers.

    python benchmarks/estimate.py            # nano, GPT-2 small and SmolLM2's shape: minutes; rewrites the table
    python benchmarks/estimate.py --quick    # nano only, on stdout

Models have random weights. Reflections are the expert's, as in the estimate: each token is sampled from the model and
then replaced. Times are of one thread: run it with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from arms import HERE, made_by, publish, table
from engine_prompts import SMOLLM2, set_up, wide_tokenizer
from transformers import GPT2Config, LlamaConfig, PretrainedConfig

from reflectrl.config import Recipe, load_recipe
from reflectrl.core import Choice, Decision
from reflectrl.engine.decode import write
from reflectrl.engine.drafts import Drafts, pass_tokens
from reflectrl.engine.frozen_layers import frozen_layers
from reflectrl.engine.head import add_choice_head
from reflectrl.engine.prefix_cache import PrefixCache
from reflectrl.engine.reuse import prefix_cache_for
from reflectrl.models.encode import PromptEncoder
from reflectrl.models.policy import LMPolicy
from reflectrl.models.precision import shape_of
from reflectrl.models.shallow import shallow_model
from reflectrl.models.tokenizer import label_ids
from reflectrl.pipeline.costs import Repeater, clock
from reflectrl.pipeline.estimate import Played, estimate, play

STILL = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
LARGE = {
    "GPT-2 small": GPT2Config(activation_function="gelu_pytorch_tanh", **STILL),
    "SmolLM2": LlamaConfig(**SMOLLM2, max_position_embeddings=2048),
}
SHORT = ["model.dtype=float32", "model.compute=float32", "rlft.episodes=8", "rlft.micro_batch_tokens=2048"]
SHORT += ["env.options.horizon=6", "players.reflector.max_new_tokens=24", "players.reflector.temperature=1.0"]
"""Overrides of ``dangerous_taxi/pickup`` that shorten an iteration to minutes."""


@contextmanager
def large(config: PretrainedConfig) -> Iterator[Recipe]:
    """Write a configuration and a tokenizer without weights, and yield a recipe for this model."""
    with set_up("dangerous_taxi/paper") as scene, tempfile.TemporaryDirectory(prefix="reflectrl-") as folder:
        wide_tokenizer(scene, scene.steps(scene.play(4)), config, 1024).save_pretrained(folder)
        config.architectures = ["CausalLM"]
        config.save_pretrained(folder)
        yield load_recipe("dangerous_taxi/pickup", [f"model.name={folder}", *SHORT])


def measured(recipe: Recipe, played: Played, folder: Path) -> dict[str, float]:
    """Return the measured seconds of each part of an iteration, with all layers of the model."""
    section, rlft, limit = recipe.model, recipe.rlft, recipe.players.reflector.max_new_tokens
    lm = shallow_model(section, shape_of(section).layers, folder / "whole", corpus=played.corpus, labels=played.labels)
    add_choice_head(lm.base)
    encoder = PromptEncoder(lm.tokenizer, label_ids(lm.tokenizer, played.labels), section.max_length)
    kept = prefix_cache_for(lm.base, section.max_length, "model", rlft.micro_batch_tokens)
    frozen = frozen_layers(lm.base) if rlft.num_iterations > 1 else None
    policy = LMPolicy(lm.model, encoder, prefix_cache=kept, frozen_layers=frozen)
    speaking = PrefixCache(lm.base.device, lm.base.dtype)
    views, words = played.reflections(cached=not recipe.players.reflector.temperature)
    drafts = Drafts(pass_tokens(lm.base))
    end, taken = lm.tokenizer.eos_token_id, {}
    began = clock()
    for step, said in zip(views, words, strict=True):
        rows = [encoder.tokens(view.prompt, limit) for view in step]
        ids = [lm.tokenizer(text)["input_ids"] for text in said]
        if rows:
            write(lm.base, speaking, rows, Repeater(ids, end), drafts=drafts, ends=(end,), limit=limit)
    taken["reflect"], began = clock() - began, clock()
    for step in played.policy_views:
        policy.act(step, [0.5] * len(step))
    taken["act"], began = clock() - began, clock()
    trained = [weight for weight in lm.model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6)
    samples = [view for step in played.policy_views for view in step]
    for number in range(rlft.num_iterations):
        order = random.Random(number).sample(samples, len(samples))
        for at in range(rlft.num_minibatches):
            batch = order[at :: rlft.num_minibatches]
            chosen = [Decision(view.menu.actions[0], 0.0, 0.0, Choice(0)) for view in batch]
            for part in policy.divide(batch, chosen, max_tokens=rlft.micro_batch_tokens):
                policy.score(part).logprobs.sum().backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
    taken["update"] = clock() - began
    return taken


def compare(name: str, recipe: Recipe) -> list[list[str]]:
    """Return the rows of the table for one model."""
    began = clock()
    found = estimate(recipe)
    took = clock() - began
    said: dict[str, float] = {"reflect": 0.0}
    [stage] = found.stages
    for part, work in stage.parts.items():
        said[part.partition(":")[0]] = said.get(part.partition(":")[0], 0.0) + work.seconds
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as folder:
        real = measured(recipe, play(recipe, recipe.rlft, recipe.rlft.stages[0], Path(folder) / "run"), Path(folder))
    said["iteration"], real["iteration"] = sum(said[part] for part in real), sum(real.values())
    print(f"{name}: estimated in {took:.0f} s", flush=True)
    return [
        [name, part, f"{said[part]:.2f}", f"{real[part]:.2f}", f"{said[part] / real[part] - 1:+.0%}"] for part in real
    ]


def main() -> None:
    """Estimate and measure each model, print the table, and publish it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="nano only, on stdout")
    arguments = parser.parse_args()
    lines = compare("nano", load_recipe("dangerous_taxi/nano"))
    for name, config in {} if arguments.quick else LARGE.items():
        with large(config) as recipe:
            lines += compare(name, recipe)
    text = table(["model", "part", "estimated, s", "measured, s", "error"], lines)
    print(text)
    if not arguments.quick:
        publish(HERE / "README.md", "estimate", f"{made_by('python benchmarks/estimate.py')}, one thread.\n\n{text}\n")


if __name__ == "__main__":
    main()
