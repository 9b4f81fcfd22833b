"""``Learner`` changes the weights: optimizer, schedule, clipping, average. Copies of weights, exchange of ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import torch
from accelerate import Accelerator, PartialState
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from reflectrl.config.training import PPO, Reinforce
from reflectrl.core import Trajectory, WorkFailed
from reflectrl.core.files import write_text
from reflectrl.core.jsonl import decode, encode
from reflectrl.rollout.iteration import Iteration
from reflectrl.training.checkpoints import fitting, joined, split_tensors
from reflectrl.training.sharding import part_of, save_whole, whole

Weights: TypeAlias = Mapping[str, Tensor]


def copy_weights(model: nn.Module, device: str | None = None) -> Weights:
    """Return a copy of the trainable weights, keyed by name, on ``device`` or, if sharded, where they are."""
    return {
        name: weight.detach().clone()
        if isinstance(weight, DTensor)
        else weight.detach().to(device or weight.device, copy=True)
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


@torch.no_grad()
def load_weights(model: nn.Module, weights: Weights) -> None:
    """Set the trainable weights of ``model`` to the values of a copy, in place."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weight.copy_(part_of(weights[name], weight))


@contextmanager
def using(model: nn.Module, weights: Weights | None) -> Iterator[None]:
    """Let ``model`` use a copy's weights inside the block, or its own for ``None``; earlier caches are invalid."""
    own = None if weights is None else copy_weights(model)
    try:
        if weights is not None:
            load_weights(model, weights)
        yield
    finally:
        if own is not None:
            load_weights(model, own)


@torch.no_grad()
def average(weights: Weights, model: nn.Module, decay: float) -> None:
    """Update an exponential average in place: ``weights = decay * weights + (1 - decay) * model's weights``."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weights[name].lerp_(weight, 1 - decay)


AVERAGE_NAME = "average.safetensors"
MakeOptimizer = Callable[..., Optimizer]
"""Makes an optimizer from groups of parameters and ``lr``: ``torch.optim.SGD``, ``bitsandbytes.optim.AdamW8bit``."""


def adamw(groups: Sequence[dict[str, Any]], lr: float) -> Optimizer:
    """Return AdamW in one kernel per group."""
    return torch.optim.AdamW(groups, lr=lr, fused=True)


def parameter_groups(
    model: nn.Module, weight_decay: float, *, head: nn.Module | None = None, head_rate: float | None = None
) -> list[dict[str, Any]]:
    """Return the trainable parameters in groups: matrices decay, vectors (biases, norms) do not.

    The parameters of ``head`` have the learning rate ``head_rate``, if that is given.
    """
    own = set(head.parameters()) if head is not None and head_rate is not None else set()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    groups: list[dict[str, Any]] = []
    for is_own in (False, True):
        for decays in (True, False):
            chosen = [each for each in trained if (each in own) == is_own and (each.ndim > 1) == decays]
            rate = {"lr": head_rate} if is_own else {}
            groups.append({"params": chosen, "weight_decay": weight_decay if decays else 0.0, **rate})
    return [group for group in groups if group["params"]]


FIRST_PACE, SLOWER, FASTER, SLOWEST, FASTEST = 0.1, 0.5, 2.0, 1 / 64, 10.0
"""First factor of a learning rate that follows the divergence, by how much it changes, and the least and the greatest
factor. In an environment of mazes without a teacher, 31 % of new ones were solved after 8 minutes with factors of at
most 1, with which the divergence was a tenth of the limit, and 52 % with factors of up to 10."""
STILL = 0.02
"""Divergence, as a fraction of the limit, up to which the factor does not grow beyond 1: while nothing is rewarded,
small divergences say nothing about how far an update moves the policy once something is."""


class Pace:
    """Factor of the learning rate that follows the policy's divergence, which is limited in each iteration.

    Args:
        update: has the limits, ``target_kl`` and ``kl_of_entropy``; without the latter, the factor is always 1.
        gather: exchanges numbers between processes.
    """

    def __init__(self, update: PPO | Reinforce, gather: Callable[..., Sequence[Sequence[float]]]) -> None:
        self._of_entropy = update.kl_of_entropy
        self._highest = math.inf if update.target_kl is None else update.target_kl
        self._gather = gather
        self._limit = self._highest
        self.factor = 1.0 if self._of_entropy is None else FIRST_PACE

    def begin(self, fresh: Sequence[Trajectory]) -> None:
        """Set the limit of the iteration that played the episodes ``fresh``."""
        if self._of_entropy is not None:
            entropy = self._mean(fmean(turn.decision.entropy for each in fresh for turn in each.turns))
            self._limit = min(self._highest, self._of_entropy * entropy)

    def went_far(self, kl: float) -> bool:
        """Return whether this divergence, in nats per step and averaged over processes, is above the limit."""
        return self._limit < math.inf and self._mean(kl) > self._limit

    def follow(self, kl: float) -> None:
        """Adapt the factor after an iteration whose last update had this divergence."""
        if self._of_entropy is None:
            return
        if (mean := self._mean(kl)) > self._limit:
            self.factor = max(self.factor * SLOWER, SLOWEST)
        elif mean < self._limit / 2:
            wanted = math.sqrt(self._limit / 2 / mean) if mean > 0 else FASTER  # KL grows with the square of the rate
            learns = mean > STILL * self._limit
            self.factor = min(self.factor * min(wanted, FASTER), FASTEST if learns else max(self.factor, 1.0))

    def _mean(self, number: float) -> float:
        return fmean(each for (each,) in self._gather(number))


def schedule(
    optimizer: Optimizer, rate_at: Callable[[float], float], updates: int, pace: Pace, head: nn.Module | None
) -> LambdaLR:
    """Return the schedule of the learning rates: ``rate_at`` a fraction of the ``updates``, times that of ``pace``.

    ``pace`` does not change the rates of groups that only have parameters of ``head``.
    """
    own = set(head.parameters()) if head is not None else set()

    def rate(of_head: bool, step: int) -> float:  # noqa: FBT001 - of ``partial``
        return rate_at(step / updates) * (1.0 if of_head else pace.factor)

    return LambdaLR(optimizer, [partial(rate, own.issuperset(group["params"])) for group in optimizer.param_groups])


@dataclass(frozen=True)
class BrokenStep:
    """Report of an optimizer step that was not made."""

    folder: Path
    """Folder for the file with the batch."""
    name: str
    where: str
    """Place in the training, e.g. "iteration 12"."""
    rows: Iterable[Mapping[str, Any]]
    advice: str

    def failure(self, loss: float, norm: float, *, rank: int) -> WorkFailed:
        """Write the batch to its file, and return the error that names it."""
        path = self.folder / f"{self.name}{f'-rank{rank}' if rank else ''}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(json.dumps(_plain(row), ensure_ascii=False) + "\n" for row in self.rows))
        return WorkFailed(
            f"the loss became {loss:g} and the norm of its gradient {norm:g} in {self.where}; the weights were not "
            f"changed, the last checkpoint is kept, and the batch is in {path}. Correct what is odd there, or "
            f"{self.advice}."
        )


def clipped_norm(
    accelerator: Accelerator, model: nn.Module, limit: float, loss: Tensor, broken: Callable[[], BrokenStep]
) -> float:
    """Clip the gradient to the norm ``limit``, or not for 0, and return the norm before.

    Raises:
        WorkFailed: the norm or the loss is not finite on some process.
    """
    clipped = accelerator.clip_grad_norm_(model.parameters(), limit or math.inf)
    norm = torch.as_tensor(whole(clipped) if isinstance(clipped, Tensor) else clipped, device=loss.device)
    found = torch.stack([loss.float(), norm.float()])
    if not torch.isfinite(accelerator.gather(found)).all():
        raise broken().failure(*found.tolist(), rank=accelerator.process_index)
    return float(norm)


class Learner:
    """The weights that are trained, and what changes them.

    Gradients of a norm above ``max_grad_norm`` are scaled down to it, unless it is 0; ``ema`` is the decay per step of
    an exponential average of the weights, 0 for none.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler,
        *,
        max_grad_norm: float,
        ema: float = 0.0,
    ) -> None:
        self._accelerator = accelerator
        self.model, self._optimizer = accelerator.prepare(model, optimizer)
        """The model as it is called in training: it exchanges gradients with other processes."""
        self._module = model
        self._scheduler = scheduler
        self._max_grad_norm = max_grad_norm
        self._ema = ema
        self.average: Weights | None = None
        """The exponential average of the weights."""
        self.begin_average()
        self.steps = 0
        """Number of optimizer steps, those without a gradient included."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def begin_average(self) -> None:
        """Let the average, if there is one, begin with the present weights."""
        self.average = copy_weights(self._module) if self._ema else None

    def step(self, loss: float, broken: Callable[[], BrokenStep]) -> float:
        """Change the weights by the gradient of this process's ``loss``, and return its norm before clipping.

        ``broken`` describes the batch where the loss or its gradient is not finite.

        Raises:
            WorkFailed: the loss or its gradient is not finite; the weights are then as before.
        """
        at = torch.tensor(loss, device=self._accelerator.device)
        norm = clipped_norm(self._accelerator, self.model, self._max_grad_norm, at, broken)
        self._advance()
        if self.average is not None:
            average(self.average, self._module, self._ema)
        return norm

    def skip(self) -> None:
        """Count a step that has no gradient, which changes no weights."""
        self._advance()

    def _advance(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._scheduler.step()
        self.steps += 1

    def write_state(self, folder: Path) -> None:
        """Save everything but the weights; the main process does, and all call it."""
        write_optimizer(folder, self._optimizer.optimizer, self._scheduler, self.steps)
        if self.average is not None:
            save_whole(self.average, folder / AVERAGE_NAME)

    def read_state(self, folder: Path) -> None:
        """Restore what ``write_state`` saved.

        Raises:
            InvalidInput: it was written by another optimizer, or for another model.
        """
        self.steps = read_optimizer(folder, self._optimizer.optimizer, self._scheduler)
        if self.average is not None:
            saved, weights = load_file(folder / AVERAGE_NAME), dict(self._module.named_parameters())
            self.average = {name: part_of(saved[name].to(weights[name].device), weights[name]) for name in saved}


def write_optimizer(folder: Path, optimizer: Optimizer, scheduler: LRScheduler, steps: int) -> None:
    """Save an optimizer with its schedule, and the number of steps it has made; the main process does."""
    plain, tensors = split_tensors(optimizer.state_dict())
    plain |= {"kind": type(optimizer).__name__, "scheduler": scheduler.state_dict(), "steps": steps}
    save_whole(tensors, folder / "optimizer.safetensors")
    if PartialState().is_main_process:
        (folder / "optimizer.json").write_text(json.dumps(plain), encoding="utf-8")


def read_optimizer(folder: Path, optimizer: Optimizer, scheduler: LRScheduler) -> int:
    """Restore what ``write_optimizer`` saved; return the number of steps.

    Raises:
        InvalidInput: it was written by another optimizer, or for another model.
    """
    with fitting(folder):
        plain = json.loads((folder / "optimizer.json").read_text(encoding="utf-8"))
        if plain["kind"] != type(optimizer).__name__:
            raise ValueError(f"it was optimized by {plain['kind']}")
        optimizer.load_state_dict(joined(plain, load_file(folder / "optimizer.safetensors")))
        scheduler.load_state_dict(plain["scheduler"])
    for weight, state in optimizer.state.items():
        shaped = [name for name, value in state.items() if isinstance(value, Tensor) and value.shape == weight.shape]
        state |= {name: part_of(state[name], weight) for name in shaped}
    return int(plain["steps"])


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in which NaN and infinities are text, because JSON has none."""
    odd = {name: str(v) for name, v in row.items() if isinstance(v, float) and not math.isfinite(v)}
    return {**row, **odd}


def numbers_of_ranks(accelerator: Accelerator, numbers: Sequence[float]) -> list[list[float]]:
    """Return the numbers of each process, without rounding."""
    if accelerator.num_processes == 1:  # a device may lack 64-bit floats
        return [list(numbers)]
    rows = torch.tensor([numbers], dtype=torch.float64, device=accelerator.device)
    gathered: list[list[float]] = accelerator.gather(rows).tolist()
    return gathered


def totals_of_ranks(accelerator: Accelerator, counts: Tensor) -> Tensor:
    """Return the sum of a tensor of integers over all processes."""
    total: Tensor = accelerator.reduce(counts.to(accelerator.device), "sum")
    return total.cpu()


OnIteration: TypeAlias = Callable[[Iteration, Sequence[Trajectory]], None]


class Unrecorded(Exception):
    """Raised by an ``on_iteration`` that could not record the iteration; its argument is the error."""


def call_on_iteration(
    on_iteration: OnIteration | None, accelerator: Accelerator, done: Iteration, episodes: Sequence[Trajectory]
) -> Exception | None:
    """Call ``on_iteration`` on the main process; return its error, or what other processes are to raise for it.

    All processes call this, also those without ``on_iteration``. The error in ``Unrecorded`` is raised at once, because
    no checkpoint may follow an iteration that is not recorded.
    """
    error: Exception | None = None
    if on_iteration is not None and accelerator.is_main_process:
        try:
            on_iteration(done, episodes)
        except Unrecorded as lost:
            raise lost.args[0] from lost.args[0].__cause__
        except Exception as raised:  # noqa: BLE001 - the caller's code may end training by any error
            error = raised
    failed = any(number for [number] in numbers_of_ranks(accelerator, [float(error is not None)]))
    return error or (WorkFailed("on_iteration ended the training in the main process.") if failed else None)


def episodes_of_ranks(accelerator: Accelerator, episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the episodes of all processes, in the order of processes; if there are several, without pictures."""
    if accelerator.num_processes == 1:
        return list(episodes)
    told = values_of_ranks(accelerator, encode([_without_pictures(each) for each in episodes]))
    return [decode(Trajectory, each, "an episode of another process") for rows in told for each in rows]


def values_of_ranks(accelerator: Accelerator, value: Any) -> list[Any]:
    """Return the JSON value of each process; objects would be sent as pickles, which run code."""
    row = torch.tensor([list(json.dumps(value).encode())], dtype=torch.uint8, device=accelerator.device)
    rows = accelerator.gather(accelerator.pad_across_processes(row, dim=1, pad_index=ord(" ")))
    return [json.loads(bytes(each)) for each in rows.tolist()]


def _without_pictures(trajectory: Trajectory) -> Trajectory:
    turns = [replace(turn, observation=replace(turn.observation, images=())) for turn in trajectory.turns]
    last = trajectory.last and replace(trajectory.last, images=())
    return replace(trajectory, turns=tuple(turns), last=last)
