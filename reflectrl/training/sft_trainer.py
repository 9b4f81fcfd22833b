"""``RowTrainer``: TRL's ``SFTTrainer`` on encoded rows, of which each process of a launch takes its share."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Sequence
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
from reflectrl.lm.sequences import padded
from reflectrl.training.learner import adamw, parameter_groups, values_of_ranks
from reflectrl.training.plateau import Scored
from reflectrl.training.sft_examples import ActionExample, Example, Player, TextExample, action_results, text_results
from reflectrl.training.sharding import check_launch, check_sharding, gathered


class RowTrainer(SFTTrainer):
    """``SFTTrainer`` on encoded rows in a predetermined order, of which it skips those of ``begun`` steps."""

    loss_is_scaled_for_ga = False

    def __init__(
        self,
        lm: LanguageModel,
        player: Player,
        examples: Sequence[Example],
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
        order = _order(len(examples), section.steps * section.batch_size, seed)[begun * section.batch_size :]
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
        device = self.args.device
        losses: list[Tensor] = []
        hits: list[Tensor] = []
        texts = [example for example in chosen if isinstance(example, TextExample)]
        actions = [example for example in chosen if isinstance(example, ActionExample)]
        if texts:
            summed, right = text_results(model, texts, device)
            losses.append(summed / self._text_tokens)
            hits += right
        if actions:
            rows = padded([example.row for example in actions], device)
            batch = self._encoder.with_menus([example.prompt for example in actions], rows)
            targets = torch.tensor([example.target for example in actions], device=device)
            rowwise, preferred = action_results(model, batch, targets, self._label_smoothing)
            losses.append(rowwise)
            hits += preferred[:, None]
        return [*texts, *actions], torch.cat(losses), hits

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


def _order(rows: int, draws: int, seed: int) -> list[int]:
    """Return ``draws`` row numbers, reshuffled in each pass over the rows, so that every step has a full batch."""
    rng = random.Random(seed)
    order: list[int] = []
    while len(order) < draws:
        order += rng.sample(range(rows), rows)
    return order[:draws]
