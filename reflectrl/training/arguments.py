"""Conversion of the arguments of ``ReflectRLTrainer``: models and reflectors by name, by folder, or as objects."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import pstdev
from typing import TYPE_CHECKING

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from reflectrl.config.training import (
    KL_OF_ENTROPY,
    NOVELTY,
    PPO,
    SURVEYED,
    TEXT_REWARDS,
    Lesson,
    check_action_mode,
    suited,
)
from reflectrl.core import InvalidInput
from reflectrl.core.registry import Env, make_envs
from reflectrl.core.seeds import derive_seed
from reflectrl.lm.chat import use_template
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import LanguageModel, load_model, new_model
from reflectrl.lm.pictures import Pictures, read_pictures
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.reflecting import ReflectingPolicy, reflects
from reflectrl.lm.reuse import prefix_cache_for
from reflectrl.lm.section import ModelSection
from reflectrl.lm.seeding import seeded
from reflectrl.lm.thinking import TextServer, writing_policy
from reflectrl.lm.tokenizer import end_with_text, label_ids
from reflectrl.lm.writer import LMReflector
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.format import THOUGHTS, WRITTEN_ACTIONS, ActionMode, check_menus
from reflectrl.prompts.players import Player
from reflectrl.rollout import Episode, rollout
from reflectrl.seats.others import RandomPolicy
from reflectrl.seats.served import PolicyServer
from reflectrl.seats.table import Seat, check_roles
from reflectrl.training.config import ReflectRLConfig
from reflectrl.training.learner import numbers_of_ranks
from reflectrl.training.sharding import check_launch, whole_weights

if TYPE_CHECKING:  # peft takes a second to import
    from peft import PeftConfig, PeftModel


def suited_args(env: Env, layout: PromptFormat | None = None) -> ReflectRLConfig:
    """Return the arguments of a training without any: those that ``budget`` chooses in a recipe, from random episodes.

    These are the discount, the scale of rewards and, where the policy writes no thoughts, a learning rate that
    follows its divergence.

    Raises:
        EnvFailed: the environment raised, or returned what the protocol forbids.
    """
    made = make_envs(env, {}, 1)
    with contextlib.closing(made[0]) as probe:
        tasks, rng = probe.split_tasks("train"), random.Random(derive_seed(ReflectRLConfig.seed, "survey"))
        episodes = [Episode(rng.choice(tasks), rng.getrandbits(32)) for _ in range(SURVEYED)]
        played = rollout([probe], episodes, policy=RandomPolicy(), seats=(), layout=PromptFormat())
        spread = pstdev(each.episode_return for each in played)
        chosen = suited(probe.horizon, spread)
    thinks = layout is not None and layout.action_mode in THOUGHTS
    update = PPO(kl_of_entropy=None if thinks else KL_OF_ENTROPY)
    return ReflectRLConfig(update=update, **{key: value for key, (value, _) in chosen.items()})


def accelerator_for(args: ReflectRLConfig) -> Accelerator:
    """Return the ``Accelerator`` of a training.

    Raises:
        InvalidInput: the launch asks for float16, or for a way to shard weights that is not supported.
    """
    check_launch()
    # accelerate keeps device and precision for the process; a training after another one may have its own
    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001 - as transformers does
    accelerator = Accelerator(
        cpu=args.use_cpu,
        mixed_precision="bf16" if args.bf16 else None,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    if accelerator.mixed_precision not in ("no", "bf16"):
        raise InvalidInput(
            f"mixed precision {accelerator.mixed_precision} was asked for, but its loss scale is not in checkpoints; "
            "expected no or bf16."
        )
    return accelerator


def language_model(
    model: str | Path | PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase | ProcessorMixin | None,
    peft_config: PeftConfig | None,
    *,
    labels: Sequence[str],
    max_length: int,
    seed: int,
) -> LanguageModel:
    """Return the model of a policy to train, loaded if ``model`` is a name, with the adapters of ``peft_config``.

    A model object that is given with a processor instead of a tokenizer reads images. The tokenizer's chat template is
    set up as by ``model.chat: auto``.

    Raises:
        InvalidInput: the model cannot be loaded or reads fewer tokens, or an object was given without its tokenizer.
    """
    if isinstance(model, str | Path):
        loaded = new_model(ModelSection(name=str(model), max_length=max_length), labels=labels, seed=seed)
    elif tokenizer is None:
        raise InvalidInput(
            "model was given as an object without processing_class; expected its tokenizer along with it, e.g. "
            "processing_class=AutoTokenizer.from_pretrained(...), or the model's name."
        )
    elif isinstance(tokenizer, ProcessorMixin):
        loaded, processor, tokenizer = LanguageModel(model, tokenizer.tokenizer), tokenizer, tokenizer.tokenizer
        read_pictures(loaded.base, Pictures(processor, loaded.base.config, loaded.base.name_or_path))
    else:
        loaded = LanguageModel(model, tokenizer)
    use_template(loaded.tokenizer, "auto")
    end_with_text(loaded.tokenizer)
    context = getattr(loaded.base.config.get_text_config(), "max_position_embeddings", None)
    if context is not None and context < max_length:
        raise InvalidInput(f"the model reads {context} tokens, but max_length={max_length}; set max_length={context}.")
    if peft_config is not None:
        from peft import get_peft_model

        with seeded(seed):
            loaded = LanguageModel(get_peft_model(loaded.model, peft_config), loaded.tokenizer)
    return LanguageModel(loaded.model, tokenizer or loaded.tokenizer)


def layout_and_labels(
    env: Env, lessons: Sequence[Lesson], layout: PromptFormat | None, labels: Sequence[str] | None
) -> tuple[PromptFormat, Sequence[str]]:
    """Return what is given, or else a default layout and the labels of the longest menu of all lessons."""
    if layout is not None and labels is not None:
        return layout, labels
    probes = [probe for lesson in lessons for probe in make_envs(env, lesson.env, 1)]
    longest = max(probe.max_actions for probe in probes)
    mode: ActionMode = "enumerated" if longest else "text"
    layout = layout or PromptFormat(instructions=probes[0].instructions, action_mode=mode)
    labels = labels or layout.all_labels(longest)
    for probe in probes:
        probe.close()
    return layout, labels


def trainable_policy(
    lm: LanguageModel,
    labels: Sequence[str],
    args: ReflectRLConfig,
    action_mode: ActionMode,
    accelerator: Accelerator,
    server: TextServer | None = None,
) -> LMPolicy:
    """Return a policy that acts and scores with ``lm``; the model gets a choice head and, if needed, a value head.

    A model with a second adapter named ``reflector`` writes reflections with it, and both adapters are trained.

    Raises:
        InvalidInput: a model that the choice head does not support, a label that is not one token, or a second adapter
            that cannot be trained with these settings, or settings without effect with this action mode.
    """
    if reflects(lm.model):
        _check_reflecting(args, action_mode, accelerator.num_processes)
    check_action_mode(args, action_mode, reflects=reflects(lm.model))
    check_menus(len(labels), action_mode)
    if action_mode == "enumerated" and (args.max_completion_length, args.temperature) != (64, 1.0):
        raise InvalidInput(
            f"max_completion_length={args.max_completion_length} and temperature={args.temperature:g} are about what a "
            "policy writes, but with action_mode=enumerated it writes nothing; leave them at 64 and 1, or set the "
            "layout's action_mode to another."
        )
    if server is not None and (action_mode == "enumerated" or reflects(lm.model)):
        raise InvalidInput(
            "a server was given for a policy that writes nothing, or whose reflector is trained too; leave it out, or "
            "set the layout's action_mode to another and train the policy alone."
        )
    if accelerator.mixed_precision == "bf16" and lm.adapted and (action_mode != "enumerated" or reflects(lm.model)):
        raise InvalidInput(
            "bf16=True was given for a policy that writes and has adapters: it would write in another precision than "
            "it trains in; leave bf16 out, and load the model with dtype=torch.bfloat16 to save memory."
        )
    lm.model.eval()  # the tries of heads and caches compare logits, which dropout would change
    if not getattr(lm.base, "is_quantized", False):  # quantised models are on their device and cannot be moved
        lm.model.to(accelerator.device)  # before the caches are created
    value = args.value
    add_choice_head(lm.base, value_head=value is not None, value_trains_trunk=value is not None and value.trunk)
    ids = label_ids(lm.tokenizer, labels)
    encoder = PromptEncoder(lm.tokenizer, ids, args.max_length, pictures=lm.pictures)
    cache = prefix_cache_for(lm.base, args.max_length, "policy", args.micro_batch_tokens) if args.prefix_reuse else None
    policy: LMPolicy
    if action_mode != "enumerated":
        policy = writing_policy(
            action_mode,
            lm,
            encoder,
            max_new_tokens=args.max_completion_length,
            temperature=args.temperature,
            prefix_cache=cache,
            server=server,
        )
    else:
        policy = LMPolicy(lm.model, encoder, prefix_cache=cache)
    if not reflects(lm.model):
        return policy
    other = prefix_cache_for(lm.base, args.max_length, "reflector") if args.prefix_reuse else None
    return ReflectingPolicy(
        lm,
        encoder,
        policy,
        max_new_tokens=args.max_reflection_length,
        temperature=args.reflection_temperature,
        caches=(other, cache),
    )


def publisher(server: PolicyServer | None, lm: LanguageModel, accelerator: Accelerator) -> Callable[[], None]:
    """Return a function, for all processes to call, that gives the policy's server, if it has one, its weights."""
    if server is None:
        return lambda: None
    server.run = int(numbers_of_ranks(accelerator, [server.run])[0][0])  # the main process's, for all

    def publish() -> None:
        server.publish(whole_weights(lm.model), main=accelerator.is_main_process)
        accelerator.wait_for_everyone()

    return publish


def _check_reflecting(args: ReflectRLConfig, action_mode: ActionMode, processes: int) -> None:
    """Refuse settings that do not support a trained reflector."""
    needs = {
        "a layout with action_mode=enumerated or thought_choice": action_mode not in WRITTEN_ACTIONS,
        "terms without kl, which knows menus alone": args.terms.kl is None,
        "terms without sft_thought, which knows no reflections": args.terms.sft_thought is None,
        f"one process, not {processes}": processes == 1,
    }
    if missing := [need for need, there in needs.items() if not there]:
        raise InvalidInput(
            f"the model has an adapter named 'reflector', which is trained too; that needs {'; '.join(missing)}."
        )


def frozen_reflector(
    reflector: str | Path | Player | None, args: ReflectRLConfig, device: torch.device
) -> Player | None:
    """Return the reflector; a path is loaded as a trained model, which writes at most 100 tokens, greedily and cached.

    Raises:
        InvalidInput: the folder contains no model.
    """
    if not isinstance(reflector, str | Path):
        return reflector
    lm = load_model(Path(reflector), ModelSection(max_length=args.max_length), trainable=False)
    lm.model.to(device)
    cache = prefix_cache_for(lm.base, args.max_length, "reflector") if args.prefix_reuse else None
    return LMReflector(lm.model, lm.tokenizer, max_length=args.max_length, prefix_cache=cache)


def check_seats(args: ReflectRLConfig, seats: Sequence[Seat]) -> None:
    """Check that the players give the rewards with a weight, and that each of them has an effect.

    Raises:
        InvalidInput: two players of one role, a reward that no player gives, a rater whose ratings are not named among
            the rewards, or a corrector without the term that imitates its thoughts.
    """
    check_roles(seats)
    raters = {seat.role for seat in seats if seat.when == "episode_end"}
    if unnamed := raters - args.rewards.keys():
        raise InvalidInput(
            f"a {min(unnamed)} was seated, but rewards={args.rewards} leaves it out; add {min(unnamed)!r}: 1.0, or 0.0 "
            "to record its ratings only."
        )
    if args.terms.sft_thought is None and any(seat.role == "corrector" for seat in seats):
        raise InvalidInput(
            "a corrector was seated, but no term imitates its thoughts; set terms.sft_thought, or leave it out."
        )
    known = {"env", NOVELTY, *TEXT_REWARDS, *raters}
    if unknown := args.rewards.keys() - known:
        raise InvalidInput(
            f"rewards names {min(unknown)}, but neither the environment, the policy nor a rater gives it; known: "
            f"{', '.join(sorted(known))}."
        )
