"""``ReflectRLTrainer``: stage 2, online policy gradient on multi-step episodes (Algorithm 1, lines 23-36).

TRL's base trainer brings the optimizer, DDP, mixed precision, checkpoints and trackers. Rollouts happen where it asks
for the next batch; one training step is one optimizer step over one minibatch of steps, in micro-batches. Everything
random is derived from (seed, iteration), so a checkpoint needs no generator states of ours.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, TrainerCallback
from trl.trainer.base_trainer import _BaseTrainer  # private in trl 1.x: with config.py the only importers

from reflectrl.config.rlft import Stage
from reflectrl.core import NatLangEnv, Trajectory, WorkFailed
from reflectrl.core.jsonl import decode, encode
from reflectrl.core.profile import active_profile, part
from reflectrl.core.seeds import derive_seed
from reflectrl.core.stop import Stop
from reflectrl.engine.head import add_choice_head
from reflectrl.engine.reuse import slots_for
from reflectrl.engine.sequences import Inputs, read, split, square_of
from reflectrl.models.encode import PromptEncoder, action_distribution
from reflectrl.models.policy import LMPolicy
from reflectrl.models.reflector import LMReflector
from reflectrl.players import Reflector
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, begin_ahead, episode_metrics, rollout
from reflectrl.rollout.iteration import Iteration
from reflectrl.training.batch import StepSample, advantages_by_episode, minibatches, step_samples
from reflectrl.training.checkpoints import Checkpoints
from reflectrl.training.config import ReflectRLConfig
from reflectrl.training.curriculum import Curriculum
from reflectrl.training.failures import BrokenStep, FiniteSteps
from reflectrl.training.objective import Loss, Objective, step_losses
from reflectrl.training.replay import ReplayBuffer

STATE_NAME = "reflectrl_state_{rank}.json"
VALUE_HEAD_NAME = "value_head.safetensors"


class _AfterStep(TrainerCallback):
    """Has the trainer finish its iterations, once the optimizer has made their last step."""

    def __init__(self, trainer: ReflectRLTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._trainer.after_step(control)


class ReflectRLTrainer(Checkpoints, FiniteSteps, _BaseTrainer):
    """Trains the policy; the reflector is frozen.

    Args:
        model: a causal language model of transformers, or a ``PeftModel`` around one.
        args: what to do.
        processing_class: its tokenizer.
        encoder: prompts to tokens, with the ids of the labels.
        env_factory: makes so many environments from the options of a stage; they are closed when the stage ends.
        layout: how prompts are written.
        reflector: who reflects; ``None`` for nobody. An ``LMReflector`` around ``model`` itself is the single player.
        on_iteration: told of each iteration and its fresh episodes; called on the main process only.
        stop: training ends with a checkpoint after the iteration in which it is wanted, on whichever process.
        failures: the folder for a batch whose loss is no number; beside the checkpoints without it.

    """

    _tag_names = ["trl", "reflectrl"]  # noqa: RUF012 - names and type are TRL's
    _name = "Reflect-RL"
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: Any,
        args: ReflectRLConfig,
        processing_class: Any,
        *,
        encoder: PromptEncoder,
        env_factory: Callable[[Mapping[str, Any], int], Sequence[NatLangEnv]],
        layout: PromptFormat,
        reflector: Reflector | None,
        on_iteration: Callable[[Iteration, Sequence[Trajectory]], None] | None = None,
        stop: Stop | None = None,
        failures: Path | None = None,
    ) -> None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        add_choice_head(base, value_head=args.baseline == "value")
        self._dtype = base.dtype
        self.curriculum = Curriculum(args.stages)
        self.replay = ReplayBuffer(args.replay_size)
        self.iteration = 0
        self.env_steps = 0
        self.advantages: list[list[float]] = []
        """Of each step of the fresh episodes of this iteration, as its updates use them."""
        self._value_head: nn.Module | None = getattr(base, "value_head", None)
        self._encoder = encoder
        self._layout = layout
        self._reflector = reflector
        self._env_factory = env_factory
        self._envs: Sequence[NatLangEnv] = ()
        self._on_iteration = on_iteration
        self._stop = stop or Stop()
        self._failures = failures or Path(args.output_dir) / "failures"
        self._queue: list[list[StepSample]] = []
        self._minibatch: list[StepSample] = []
        self._fresh: list[Trajectory] = []
        self._replayed: list[Trajectory] = []
        self._losses: list[tuple[float, float, float]] = []
        self._reported: dict[str, float] = {}
        super().__init__(
            model=model,
            args=args,
            train_dataset=Dataset.from_dict({"update": list(range(args.max_steps * args.world_size))}),
            data_collator=lambda rows: rows,
            processing_class=processing_class,
            callbacks=[_AfterStep(self)],
        )
        self.remove_callback(PrinterCallback)
        slots = None
        if args.prefix_reuse:
            slots = slots_for(base, encoder.max_length, "policy", args.micro_batch_tokens)
        self._square = None if slots is None else square_of(base)
        self.policy = LMPolicy(model, encoder, slots=slots)

    # ---- rollout ----------------------------------------------------------------------------------------------

    def _play(self, stage: Stage) -> list[Trajectory]:
        """One batch of fresh episodes of ``stage``.

        Raises:
            WorkFailed: the environment failed in all of them.

        """
        if not self._envs:
            side_by_side = min(self.args.batch_size or self.args.episodes, self.args.episodes)
            self._envs = self._env_factory(stage.env, side_by_side)
        episodes = self._episodes(stage, self.iteration)
        self.policy.forget()
        with part("rollout"):
            played = rollout(self._envs, episodes, policy=self.policy, reflector=self._reflector, layout=self._layout)
        if not played:
            raise WorkFailed(
                f"the environment failed in all {len(episodes)} episodes of iteration {self.iteration}, so there is "
                "nothing to learn from: mend the environment, then go on from the last checkpoint (the same command)."
            )
        if len(self.curriculum.successes) + 1 < stage.iterations:  # else the stage ends here
            begin_ahead(self._envs, self._episodes(stage, self.iteration + 1))  # they are reset during the update
        return played

    def _episodes(self, stage: Stage, iteration: int) -> list[Episode]:
        """The fresh episodes of an iteration of ``stage``; seed, iteration and rank alone decide."""
        rank = self.args.process_index
        rng = random.Random(derive_seed(self.args.seed, "tasks", iteration, rank))
        choices = stage.choose(self._envs[0])
        groups = [rng.choice(choices) for _ in range(self.args.episodes // self.args.episodes_per_task)]
        tasks = [task for task in groups for _ in range(self.args.episodes_per_task)]
        return [
            Episode(task, derive_seed(self.args.seed, "episode", iteration, rank, number))
            for number, task in enumerate(tasks)
        ]

    def _collect(self) -> list[list[StepSample]]:
        """Play, and turn the episodes into the minibatches of this iteration."""
        if profile := active_profile():
            profile.begin_iteration()
        if isinstance(self._reflector, LMReflector) and self._reflector.speaks_with(self.model):
            self._reflector.clear()  # single player: its words change with its weights
        rng = random.Random(derive_seed(self.args.seed, "updates", self.iteration, self.args.process_index))
        self._fresh = self._play(self.curriculum.stage)
        self._replayed = self.replay.sample(self.args.replay_episodes, rng)
        self.replay.extend(t for t in self._fresh if self.curriculum.stage.worth_replaying(t))
        with part("advantages"):
            samples = step_samples(
                [*self._fresh, *self._replayed],
                self._layout,
                gamma=self.args.gamma,
                baseline=self.args.baseline,
                normalize=self.args.normalize_advantages,
            )
        self.advantages = advantages_by_episode(samples, self._fresh)
        return minibatches(samples, passes=self.args.num_iterations, parts=self.args.num_minibatches, rng=rng)

    # ---- update -----------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:  # noqa: ARG002
        """One minibatch, forward and backward; returns its mean loss."""
        if self.curriculum.finished:  # resumed from a checkpoint of the end: a step without gradients changes nothing
            return torch.zeros((), device=self.args.device)
        # as when sampling (appendix A): dropout, and the kernels of 8-bit layers, would differ in training mode
        model.eval()
        if not self._queue:
            self._queue = self._collect()
        samples = self._minibatch = self._queue.pop(0)
        rows = self._encoder.rows([sample.prompt for sample in samples])
        with part("update: divide"):
            batches = list(split(rows, tokens=self.args.micro_batch_tokens, square=self._square))
        total = clipped = kl = 0.0
        for batch in batches:
            with contextlib.nullcontext() if batch is batches[-1] else self.accelerator.no_sync(model):
                with part("update: forward"), self.compute_loss_context_manager():
                    inputs = read(rows, batch, self.args.device, self._dtype)
                    loss = self._loss(model, [samples[index] for tree in batch for index in tree], inputs)
                with part("update: backward"):
                    self.accelerator.backward(loss.total / len(samples))
            total, clipped, kl = total + float(loss.total.detach()), clipped + loss.clipped, kl + loss.kl
        mean = total / len(samples)
        self._losses.append((mean, kl / len(samples), clipped / len(samples)))
        return torch.tensor(mean, device=self.args.device)

    def step_loss(self) -> Tensor:
        """Of the minibatch."""
        return torch.tensor(self._losses[-1][0] if self._losses else 0.0, device=self.args.device)

    def broken_step(self) -> BrokenStep:
        """The minibatch."""
        rows = [
            {
                "prompt": sample.prompt.text,
                "menu": dict(zip(menu.labels, menu.actions, strict=True)),
                "action": menu.actions[sample.index],
                "advantage": sample.advantage,
                "return": sample.returned,
                "old_logprob": sample.old_logprob,
            }
            for sample in self._minibatch
            if (menu := sample.prompt.menu)  # a policy's prompt has one
        ]
        name, where = f"rlft-iteration-{self.iteration:05d}", f"iteration {self.iteration}"
        return BrokenStep(self._failures, name, where, rows, "lower rlft.learning_rate in another --run")

    def _loss(self, model: Any, samples: Sequence[StepSample], inputs: Inputs) -> Loss:
        """Of ``samples``, in which ``inputs`` end."""
        device = self.args.device
        batch = self._encoder.with_menus([sample.prompt for sample in samples], inputs)
        distribution, values = action_distribution(model, batch)
        progress = self.state.global_step / self.args.max_steps
        fade = 1 - (1 - self.args.entropy_coef_end) * progress

        def column(name: str) -> Tensor:
            return torch.tensor([getattr(sample, name) for sample in samples], device=device)

        return step_losses(
            Objective(
                self.args.epsilon,
                self.args.entropy_coef * fade,
                self.args.value_coef if self._value_head is not None else 0.0,
            ),
            logprobs=distribution.log_prob(column("index")),
            old_logprobs=column("old_logprob"),
            advantages=column("advantage"),
            entropies=distribution.entropy(),
            values=values,
            returns=column("returned"),
        )

    def after_step(self, control: Any) -> None:
        """End the iteration with its last minibatch, and training with the last stage or when it is to stop."""
        if not self._queue and self._losses and self._finish_iteration():
            control.should_save = control.should_training_stop = True
        if self.curriculum.finished:  # which thresholds may bring about before max_steps
            control.should_training_stop = True

    def _finish_iteration(self) -> bool:
        """Measure, advance the curriculum, report; returns whether to stop, the same on all processes."""
        metrics = episode_metrics(self._fresh)
        loss, kl, clipped = (sum(column) / len(self._losses) for column in zip(*self._losses, strict=True))
        local = {**metrics.means, "loss": loss, "kl": kl, "clipped": clipped}
        env_steps = sum(len(t.turns) for t in self._fresh)
        *measured, steps, stops = zip(*self._gather(*local.values(), env_steps, self._stop.signal), strict=True)
        means = {name: sum(column) / len(column) for name, column in zip(local, measured, strict=True)}
        self.env_steps += int(sum(steps))
        if asked := int(max(stops)):
            self._stop.signal = asked  # all stop with the one that was asked
        done = Iteration(
            iteration=self.iteration,
            stage=self.curriculum.stage.name,
            replayed=len(self._replayed),
            env_steps=self.env_steps,
            **means,
        )
        if self.curriculum.advance(done.success):
            if not self.curriculum.finished:
                self.replay.clear()  # in the next stage its episodes would be samples of another task
            for env in self._envs:
                env.close()
            self._envs = ()
        self.iteration += 1
        self._losses = []
        if self._on_iteration is not None and self.is_world_process_zero():
            self._on_iteration(done, self._fresh)
        self._reported = {name: value for name, value in asdict(done).items() if isinstance(value, float)}
        return asked > 0

    def _gather(self, *numbers: float) -> list[list[float]]:
        """The numbers of each process, to the bit."""
        if self.args.world_size == 1:  # on a device, perhaps, that has no such floats
            return [list(numbers)]
        rows = torch.tensor([numbers], dtype=torch.float64, device=self.args.device)
        gathered: list[list[float]] = self.accelerator.gather(rows).tolist()
        return gathered

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Send the iteration's metrics to the trackers along with Trainer's own."""
        super().log({**logs, **self._reported}, start_time)

    def _send_telemetry(self) -> None:
        """Training here tells nobody."""

    # ---- optimizer and checkpoints ----------------------------------------------------------------------------

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """A learning rate that falls linearly to ``learning_rate_end`` of its start."""
        end = self.args.learning_rate_end
        self.lr_scheduler = LambdaLR(
            optimizer or self.optimizer, lambda step: 1 - (1 - end) * min(1.0, step / num_training_steps)
        )
        return self.lr_scheduler

    def write_state(self, folder: Path) -> None:
        """Iteration, curriculum and replay buffer of this process; the value head, which is the same on all."""
        if self._value_head is not None and self.is_world_process_zero():
            save_file(self._value_head.state_dict(), folder / VALUE_HEAD_NAME)
        state = {
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "stage": self.curriculum.index,
            "successes": self.curriculum.successes,
            "replay": encode(tuple(self.replay)),
        }
        (folder / STATE_NAME.format(rank=self.args.process_index)).write_text(json.dumps(state), encoding="utf-8")

    def read_state(self, folder: Path) -> None:
        """Take up what ``write_state`` wrote."""
        if self._value_head is not None:
            self._value_head.load_state_dict(load_file(folder / VALUE_HEAD_NAME))
        path = folder / STATE_NAME.format(rank=self.args.process_index)
        state = json.loads(path.read_text(encoding="utf-8"))
        self.iteration, self.env_steps = state["iteration"], state["env_steps"]
        self.curriculum.index, self.curriculum.successes = state["stage"], state["successes"]
        self.replay.extend(decode(Trajectory, row, str(path)) for row in state["replay"])


def checkpoint_iteration(checkpoint: Path) -> int:
    """How many iterations were done when ``checkpoint`` was written."""
    return int(json.loads((checkpoint / STATE_NAME.format(rank=0)).read_text())["iteration"])
