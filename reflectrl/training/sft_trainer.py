"""``RowTrainer``: TRL's ``SFTTrainer`` on encoded rows, of which each process of a launch takes its share."""

from __future__ import annotations

import math
import random
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from torch import Tensor, nn
from transformers import PrinterCallback, default_data_collator, get_scheduler
from trl import SFTConfig, SFTTrainer

from reflectrl.config.schema import SFTPlayerSection, SFTPolicySection
from reflectrl.core import InvalidInput
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.reuse import refusal
from reflectrl.lm.sequences import Inputs, padded, read_tree, tree_tokens
from reflectrl.training.learner import adamw, parameter_groups, values_of_ranks
from reflectrl.training.plateau import Scored
from reflectrl.training.sft_examples import ActionExample, Example, Player, TextExample, action_results, text_results
from reflectrl.training.sharding import check_launch, check_sharding, gathered

TRIED = 4
"""Number of batches whose tokens are counted."""
READ_ONCE = 0.5
"""Fraction of the tokens that is left where it is worth reading rows as trees, or drawing whole episodes."""
MIN_EPISODES = 2
"""Least number of episodes in a batch: rows of one are alike."""


@dataclass(frozen=True)
class Batches:
    """Which examples are drawn together, and how they are read."""

    groups: Sequence[Sequence[int]]
    """Numbers of examples: of all in an episode, or of a single one."""
    tree_tokens: int
    """Maximum number of tokens of a batch that is read as a prefix tree; 0 for padded rows."""


def plan_batches(
    lm: LanguageModel,
    examples: Sequence[Example],
    episodes: Sequence[Hashable],
    section: SFTPlayerSection,
    max_length: int,
    *,
    prefix_reuse: bool,
) -> Batches:
    """Plan how the examples of the ``episodes`` are drawn, and how sequences of up to ``max_length`` tokens are read.

    Rows that share most of their tokens, such as instructions, are read as prefix trees. Prompts that show past states
    extend each other, so whole episodes are drawn then: a tree of them has about a fifth of the tokens of padded rows.
    """
    size = min(section.micro_batch_size, section.batch_size)

    def counted(groups: Sequence[Sequence[int]]) -> tuple[list[int], int]:
        """Return the tokens of the first batches as trees, and of all their rows."""
        order = _order(groups, TRIED * size, 0)
        batches = [[examples[number].row for number in order[at : at + size]] for at in range(0, len(order), size)]
        return [tree_tokens(rows) for rows in batches], sum(len(row) for rows in batches for row in {*rows})

    by_episode: dict[Hashable, list[int]] = defaultdict(list)
    for number, episode in enumerate(episodes):
        by_episode[episode].append(number)
    groups = single = [[number] for number in range(len(examples))]
    trees, tokens = counted(single)
    if section.batch_size * len(by_episode) >= MIN_EPISODES * len(examples):
        whole = [*by_episode.values()]
        found, all_tokens = counted(whole)
        if sum(found) <= READ_ONCE * sum(trees):
            groups, trees, tokens = whole, found, all_tokens
    most = min(2 * max(trees), size * max_length)
    worth_it = prefix_reuse and sum(trees) <= READ_ONCE * tokens
    return Batches(groups, most) if worth_it and refusal(lm.base, max_length, most) is None else Batches(single, 0)


class RowTrainer(SFTTrainer):
    """``SFTTrainer`` on encoded rows in a predetermined order, of which it skips those of ``begun`` steps."""

    loss_is_scaled_for_ga = False

    def __init__(
        self,
        lm: LanguageModel,
        player: Player,
        examples: Sequence[Example],
        batches: Batches,
        encoder: PromptEncoder,
        section: SFTPlayerSection,
        rate: Callable[[int], float],
        folder: Path,
        seed: int,
        begun: int,
    ) -> None:
        self.player = player
        self.batch: list[tuple[Example, Tensor]] = []
        """The examples of all micro-batches of the step, with their losses."""
        self._examples = examples
        self._tree_tokens = batches.tree_tokens
        self._base = lm.base
        self._encoder = encoder
        self._label_smoothing = section.label_smoothing if isinstance(section, SFTPolicySection) else 0.0
        lengths = [len(example.completion) for example in examples if isinstance(example, TextExample)]
        self._text_tokens = fmean(lengths) if lengths else 1.0
        self.made = adamw(parameter_groups(lm.model, section.weight_decay), section.learning_rate)
        self.schedule = get_scheduler(
            section.lr_scheduler_type,
            self.made,
            num_warmup_steps=math.ceil(section.warmup * section.steps),
            num_training_steps=section.steps,
        )
        [planned, *_] = self.schedule.lr_lambdas
        self.schedule.lr_lambdas = [lambda step: planned(step) * rate(step)] * len(self.made.param_groups)
        order = _order(batches.groups, section.steps * section.batch_size, seed)[begun * section.batch_size :]
        super().__init__(
            model=lm.model,
            args=_config(section, folder, seed, max(1, section.steps - begun)),
            train_dataset=Dataset.from_dict({"example": order or [0]}),  # none are left of a finished training
            data_collator=default_data_collator,
            processing_class=lm.tokenizer,
        )
        check_sharding(self.accelerator, lm)
        if player == "both" and self.accelerator.is_fsdp2:
            raise InvalidInput(
                "FSDP was asked for, but a single player (players.reflector.player=self) makes one or two passes per "
                "micro-batch, which other processes would wait for; fine-tune it with torchrun."
            )
        self.remove_callback(PrinterCallback)
        for parameter in lm.model.parameters():
            # TRL converts adapters of quantised bases to bfloat16, which is too coarse for probability ratios
            if parameter.requires_grad and getattr(lm.base, "is_quantized", False):
                parameter.data = parameter.data.float()

    def create_optimizer(self, model: nn.Module | None = None) -> Any:  # noqa: ARG002 - Trainer's
        """Return the optimizer; Trainer takes none as an argument where the weights are sharded."""
        self.optimizer = self.made
        return self.made

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:  # noqa: ARG002 - Trainer's
        """Return the schedule of the learning rate."""
        self.lr_scheduler = self.schedule
        return self.schedule

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """Return the mean of the rows' losses, so that the gradients of micro-batches add up to that of the batch."""
        del return_outputs, num_items_in_batch
        chosen = [self._examples[number] for number in inputs["example"].tolist()]
        ordered, losses, _ = self._results(model, chosen)
        self.batch += zip(ordered, losses.detach(), strict=True)
        return losses.mean()

    def _results(self, model: nn.Module, chosen: Sequence[Example]) -> tuple[list[Example], Tensor, list[Tensor]]:
        """Return the examples in another order, their (N,) losses, and whether their tokens are the most probable."""
        losses: list[Tensor] = []
        hits: list[Tensor] = []
        texts = [example for example in chosen if isinstance(example, TextExample)]
        actions = [example for example in chosen if isinstance(example, ActionExample)]
        if texts:
            summed, right = text_results(model, texts, self._inputs(texts))
            losses.append(summed / self._text_tokens)
            hits += right
        if actions:
            batch = self._encoder.with_menus([example.prompt for example in actions], self._inputs(actions))
            targets = torch.tensor([example.target for example in actions], device=self.args.device)
            rowwise, preferred = action_results(model, batch, targets, self._label_smoothing)
            losses.append(rowwise)
            hits += preferred[:, None]
        return [*texts, *actions], torch.cat(losses), hits

    def _inputs(self, examples: Sequence[Example]) -> Inputs:
        rows = [example.row for example in examples]
        if self._tree_tokens and tree_tokens(rows) <= self._tree_tokens:
            return read_tree(rows, self._base)
        return padded(rows, self.args.device)

    @property
    def losses(self) -> list[tuple[str, float]]:
        """Player and loss of each row of the step, of all processes."""
        rows = torch.stack([loss for _, loss in self.batch])
        players = [float(example.player == "policy") for example, _ in self.batch]
        if self.accelerator.num_processes > 1:
            both = torch.stack([rows, torch.tensor(players).to(rows)], dim=1)
            rows, of_policy = self.accelerator.gather(both).T
            players = of_policy.tolist()
        named = ("policy" if each else "reflector" for each in players)
        return list(zip(named, rows.tolist(), strict=True))  # one transfer from the device

    @torch.no_grad()
    def scored(self, examples: Sequence[Example]) -> list[Scored]:
        """Score examples in evaluation mode, as many at once as in training; the processes share the batches."""
        size, found = self.args.per_device_train_batch_size, list[tuple[int, float, list[bool]]]()
        number = {id(example): at for at, example in enumerate(examples)}
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        self.model.eval()
        with gathered(self.model):  # one process may have a batch more
            for begin in range(rank * size, len(examples), ranks * size):
                ordered, losses, hits = self._results(self.model, examples[begin : begin + size])
                found += [
                    (number[id(example)], loss, right.tolist())
                    for example, loss, right in zip(ordered, losses.tolist(), hits, strict=True)
                ]
        self.model.train()
        told = [found] if ranks == 1 else values_of_ranks(self.accelerator, found)
        return [Scored(examples[at], loss, tuple(right)) for scores in told for at, loss, right in scores]

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:  # noqa: ARG002 - the batch holds numbers of rows
        """Return 0: operations are not counted."""
        return 0


def _config(section: SFTPlayerSection, folder: Path, seed: int, steps: int) -> SFTConfig:
    check_launch()
    cuda = torch.cuda.is_available()
    ranks = PartialState(cpu=not cuda).num_processes
    if section.batch_size % ranks:
        raise InvalidInput(
            f"batch_size={section.batch_size} was given with {ranks} processes, which share the rows of a step; set a "
            "multiple of their number."
        )
    rows = section.batch_size // ranks
    micro = min(section.micro_batch_size, section.batch_size)
    if ranks > 1:
        micro = math.gcd(micro, rows)
    if rows % micro:
        raise InvalidInput(
            f"batch_size={section.batch_size} was given with micro_batch_size={micro}; the first must be a multiple of "
            "the second."
        )
    with warnings.catch_warnings():
        # transformers has renamed gradient_checkpointing, TRL has not yet
        warnings.filterwarnings("ignore", message=".gradient_checkpointing.", category=FutureWarning)
        return SFTConfig(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=rows // micro,
            max_grad_norm=0.0,  # clipped before the step, where the norm is checked
            seed=seed,
            use_cpu=not cuda,
            bf16=False,  # the precision follows from model.compute, in rollouts and in training
            gradient_checkpointing=False,
            max_length=None,  # lengths are checked before: TRL would drop long rows silently
            dataset_kwargs={"skip_prepare_dataset": True},
            remove_unused_columns=False,
            train_sampling_strategy="sequential",
            dataloader_pin_memory=cuda,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",  # Trainer's own checkpoints use pickle and are not atomic
        )


def _order(groups: Sequence[Sequence[int]], draws: int, seed: int) -> list[int]:
    """Return ``draws`` row numbers, by groups that are reshuffled in each pass, so that every step has a full batch."""
    rng = random.Random(seed)
    order: list[int] = []
    while len(order) < draws:
        order += [number for group in rng.sample(groups, len(groups)) for number in group]
    return order[:draws]
