"""``ReflectRLTrainer``: stage 2, online policy gradient on multi-step episodes (Algorithm 1, lines 23-36).

TRL's base trainer provides optimizer, DDP, mixed precision, checkpoints and trackers. Where it asks for a batch,
rollouts are played; a training step is one optimizer step over a minibatch of steps, in micro-batches.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, ProcessorMixin
from trl.trainer.base_trainer import _BaseTrainer  # private in trl 1.x: with config.py the only importers

from reflectrl.config.advantage import rewards_to_go
from reflectrl.config.rlft import NOVELTY, EntropyTarget, Stage
from reflectrl.core import InvalidInput, Trajectory, WorkFailed
from reflectrl.core.profile import active_profile, part
from reflectrl.core.registry import Env
from reflectrl.core.seeds import derive_seed
from reflectrl.core.stop import Stop
from reflectrl.models.policy import Scores
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import Player, Remembers
from reflectrl.rollout.iteration import Ends, Iteration
from reflectrl.rollout.thoughts import known
from reflectrl.rollout.validated import Validated
from reflectrl.seats.table import Seat, reflecting
from reflectrl.training.arguments import (
    check_seats,
    frozen_reflector,
    language_model,
    layout_and_labels,
    trainable_policy,
)
from reflectrl.training.batch import (
    StepSample,
    advantages_by_episode,
    all_scored,
    columns_of,
    gaps,
    minibatches,
    rated_alike,
    references,
    step_samples,
    weighted_rewards,
    with_values,
)
from reflectrl.training.callbacks import OptimizerStepped
from reflectrl.training.collector import Collector
from reflectrl.training.config import ReflectRLConfig
from reflectrl.training.curriculum import Curriculum, fresh_episodes, replayed_episodes
from reflectrl.training.failures import BrokenStep, FiniteSteps
from reflectrl.training.learning_rates import LearningRates
from reflectrl.training.measures import Measures
from reflectrl.training.objective import Loss, Objective, check_gap, kl_divergences, step_losses
from reflectrl.training.ranks import episodes_of_ranks, numbers_of_ranks
from reflectrl.training.rewards import Novelty, RewardScale, without_novelty
from reflectrl.training.rlft_checkpoints import RLFTCheckpoints
from reflectrl.training.thoughts import Imitation
from reflectrl.training.validation import Validator
from reflectrl.training.weights import average, copy_weights, load_weights, using

if TYPE_CHECKING:  # peft takes a second to import
    from peft import PeftConfig, PeftModel


class ReflectRLTrainer(RLFTCheckpoints, LearningRates, FiniteSteps, _BaseTrainer):
    """Trainer of the policy by online RL; the other players are frozen.

    A subclass may override ``make_samples``, which estimates advantages, and ``minibatch_loss``.

    Args:
        model: name or folder of a causal language model, or a model object of transformers or peft.
        args: settings of the run; the defaults of ``ReflectRLConfig`` if absent.
        processing_class: the tokenizer, or the processor of an image-text model; required unless ``model`` is a name.
        env: registered name of an environment, or its class, or a function that takes its options. Environments are
            made with the options of each stage, and closed when the stage ends.
        reflector: folder of a trained reflector, or a player such as ``ExpertReflector()``; ``None`` for no
            reflections. An ``LMReflector`` around ``model`` itself is the single player (appendix F.2).
        seats: further frozen players.
        layout: layout of the prompts; a default layout with the environment's instructions if absent.
        labels: all menu labels; those of the longest menu of all stages if absent.
        peft_config: adapters to train instead of all weights.
        on_iteration: called with each iteration's record and fresh episodes, on the main process only.
        stop: request to stop; training then writes a checkpoint after the current iteration and ends, on all processes.
        failures: folder for a batch whose loss is not finite; beside the checkpoints by default.

    Raises:
        InvalidInput: a model, reflector or environment that cannot be used, or a reward of an unknown source.

    """

    _tag_names = ["trl", "reflectrl"]  # noqa: RUF012 - names and type are TRL's
    _name = "Reflect-RL"
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: str | Path | PreTrainedModel | PeftModel,
        args: ReflectRLConfig | None = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        *,
        env: Env,
        reflector: str | Path | Player | None = None,
        seats: Sequence[Seat] = (),
        layout: PromptFormat | None = None,
        labels: Sequence[str] | None = None,
        peft_config: PeftConfig | None = None,
        on_iteration: Callable[[Iteration, Sequence[Trajectory]], None] | None = None,
        stop: Stop | None = None,
        failures: Path | None = None,
    ) -> None:
        args = args or ReflectRLConfig(output_dir="reflectrl-rlft")
        layout, labels = layout_and_labels(env, args.stages, layout, labels)
        lm = language_model(
            model, processing_class, peft_config, labels=labels, max_length=args.max_length, seed=args.seed
        )
        self.policy = trainable_policy(lm, labels, args, layout.action_mode)
        self.seats = (*reflecting(frozen_reflector(reflector, args)), *seats)
        check_seats(args, self.seats)
        self.learners = [seat.player for seat in self.seats if isinstance(seat.player, Remembers)]
        self.layout = layout
        self.curriculum = Curriculum(args.stages)
        self.replay: deque[Trajectory] = deque(maxlen=args.replay.size if args.replay else 0)
        """Replay buffer: the newest episodes of the current stage that are worth replaying, as in the public code."""
        self.iteration = self.env_steps = 0
        self.entropy_coef = args.terms.entropy.coef if isinstance(args.terms.entropy, EntropyTarget) else None
        """Current coefficient of an entropy bonus with a target; ``None`` for one with a schedule."""
        self.advantages: list[list[float]] = []
        """Advantages that the updates of this iteration use, per fresh episode and step."""
        self.novelty = Novelty()
        self.reward_scale = RewardScale()
        self._value_head: nn.Module | None = getattr(lm.base, "value_head", None)
        self._validator = None
        if args.validation is not None:
            kept, share = lm.model if args.keep == "best" else None, (args.process_index, args.world_size)
            self._validator = Validator(args.validation, kept, args.seed, share, args.episodes * args.world_size)
        self.imitation = Imitation(args.terms.sft_thought, self.policy, layout)
        later_starts = args.validation is not None and len(args.stages) > 1  # each stage validates these weights
        self._first_weights = copy_weights(lm.model) if args.terms.kl is not None or later_starts else None
        self._averaged_weights = copy_weights(lm.model) if args.ema else None
        side_by_side = min(args.batch_size or args.episodes, args.episodes)
        self._collector = Collector(env, self.policy, lm.model, self.seats, layout, side_by_side)
        self._on_iteration = on_iteration
        self._stop = stop or Stop()
        self._failures = failures or Path(args.output_dir) / "failures"
        self._begun = False
        self._schedule = self._iterations()
        self._minibatch: list[StepSample] | None = None
        self._measures = Measures(self.policy, self.seats, self.imitation)
        self._reported: dict[str, float] = {}
        super().__init__(
            model=lm.model,
            args=args,
            # Trainer counts optimizer steps by the rows of a dataset: one row per step, whose content is not used
            train_dataset=Dataset.from_dict({"update": list(range(args.max_steps * args.world_size))}),
            data_collator=lambda rows: rows,
            processing_class=lm.tokenizer,
            callbacks=[OptimizerStepped(self.optimizer_stepped)],
        )
        self.remove_callback(PrinterCallback)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass that overrides ``compute_loss``, which is never called."""
        super().__init_subclass__(**kwargs)
        if "compute_loss" in vars(cls):
            raise InvalidInput(f"{cls.__name__} has compute_loss, which is never called; override minibatch_loss.")

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train or resume, once, like ``transformers.Trainer.train``; the policy then has the weights to keep."""
        if self._begun:
            raise InvalidInput("train() was called before; make another trainer, which can resume from a checkpoint.")
        self._begun = True
        output = super().train(*args, **kwargs)
        if self.curriculum.finished:
            if self._averaged_weights is not None:
                load_weights(self.model, self._averaged_weights)
            if self._validator is not None:
                self._validator.load_best()
        self._collector.forget()  # later rollouts use the final weights
        return output

    @property
    def validated(self) -> Validated | None:
        """Validation of the weights that ``train`` ended with; ``None`` if they were not validated."""
        return None if self._validator is None else self._validator.kept

    # ---- an iteration, top to bottom ---------------------------------------------------------------------------

    def _iterations(self) -> Iterator[list[StepSample] | Iteration]:
        """Run all iterations: rollout, advantages, minibatches, metrics (Algorithm 1, lines 23-36).

        Yields each minibatch, after which the optimizer steps, and at the end of an iteration its metrics, after which
        Trainer logs and saves a checkpoint. Minibatches are empty once the KL divergence has exceeded ``target_kl``, or
        if all episodes are rated alike.

        Raises:
            WorkFailed: the environment or the rating failed in all episodes of an iteration.

        """
        while not self.curriculum.finished:
            if profile := active_profile():
                profile.begin_iteration()
            stage, args = self.curriculum.stage, self.args
            rng = random.Random(derive_seed(args.seed, "updates", self.iteration, args.process_index))

            started = {} if self._collector.envs else self._open_stage(stage)
            self._measures.begin()
            fresh = self._play(stage)  # lines 24-33: B episodes with the frozen players and the current policy
            replayed = replayed_episodes(self.replay, self.curriculum, args, rng)

            with part("advantages"):
                fresh = self._rewarded(fresh)
                learned = all_scored(fresh, args.rewards, self.iteration)
                self._scale(learned)
                self.imitation.add(fresh)
                for player in self.learners:
                    player.remember(episodes_of_ranks(self.accelerator, fresh))
                estimated = args.bootstraps  # the last value of such an episode cannot be computed again
                kept = (each for each in learned if not (estimated and each.truncated))
                self.replay.extend(without_novelty(each) for each in kept if stage.worth_replaying(each))
                if replayed and args.value is not None:
                    replayed = self._collector.valued(replayed, max_tokens=args.micro_batch_tokens)
                    replayed = [with_values(each, self.reward_scale.unit) for each in replayed]
                samples = self.make_samples(learned, replayed)
                self.advantages = advantages_by_episode(samples, learned, fresh)
            if args.terms.kl is not None and (first := self._first_weights) is not None:
                samples = self._collector.with_reference(samples, first, max_tokens=args.micro_batch_tokens)

            skipped = rated_alike(learned, args.rewards, self.seats, self._gather)
            update = args.update
            for minibatch in minibatches(samples, passes=update.num_iterations, parts=update.num_minibatches, rng=rng):
                yield [] if skipped or self._measures.went_far(update.target_kl, self._gather) else minibatch

            done = self._measure(fresh, len(replayed))
            if args.terms.entropy and self.entropy_coef is not None:
                progress = (self.iteration + 1) * args.updates_per_iteration / args.max_steps
                self.entropy_coef = args.terms.entropy.after(
                    self.entropy_coef, done.entropy, uniform=done.entropy_uniform or 0.0, progress=progress
                )
            ended: Ends | None = self.curriculum.add(done.success)
            self.iteration += 1
            checks = self._validator
            if checks is not None and checks.due(len(self.curriculum.successes), ended=ended is not None):
                with part("validation"), using(self.model, self._averaged_weights):
                    started |= checks.play(self._collector, self._gather, self.iteration)
                ended = ended or checks.ends
            done = replace(done, **started, ended=ended)
            if ended:
                self._end_stage()
            if self._on_iteration is not None and self.is_world_process_zero():
                self._on_iteration(done, fresh)
            self._reported = {name: value for name, value in asdict(done).items() if isinstance(value, float)}
            yield done

    def _open_stage(self, stage: Stage) -> dict[str, Any]:
        """Make the environments of ``stage``; return what validations before its first iteration have shown."""
        self._collector.open(stage.env)
        if self._validator is None:
            return {}
        self._validator.begin_stage(self._collector.envs[0])
        if self.curriculum.successes:  # the stage continues from a checkpoint
            return {}
        with part("validation"), using(self.model, self._first_weights if self.curriculum.index else None):
            return self._validator.start(self._collector, self._gather)

    def _play(self, stage: Stage) -> list[Trajectory]:
        """Play one batch of fresh episodes of ``stage``.

        Raises:
            WorkFailed: the environment failed in all episodes.

        """
        episodes = fresh_episodes(self.curriculum, self._collector.envs[0], self.args, self.iteration)
        with part("rollout"):
            played = self._collector.play(episodes, bootstrap=self.args.bootstraps)
        if not played:
            raise WorkFailed(
                f"the environment failed in all {len(episodes)} episodes of iteration {self.iteration}, so there is "
                "nothing to learn from: fix the environment, then continue from the last checkpoint (the same command)."
            )
        self.curriculum.weigh(played, self._collector.envs[0], self.args.task_priority)
        self.curriculum.note(played)
        if len(self.curriculum.successes) + 1 < stage.iterations:  # else the stage ends here
            self._collector.begin_ahead(
                fresh_episodes(self.curriculum, self._collector.envs[0], self.args, self.iteration + 1)
            )  # the environments reset during the update
        return played

    def _rewarded(self, played: Sequence[Trajectory]) -> list[Trajectory]:
        """Return new episodes with their rewards for novelty, and with values in the environment's unit."""
        valued = [with_values(trajectory, self.reward_scale.unit) for trajectory in played]
        if NOVELTY not in self.args.rewards:
            return valued
        return self.novelty.rewarded(valued, 1 - self.curriculum.recent_success, self._total)

    def _scale(self, learned: Sequence[Trajectory]) -> None:
        """Add the returns of new episodes to the scale of rewards; the value head continues in the new unit.

        Its estimates in the environment's unit stay the same (PopArt, van Hasselt et al., 2016).
        """
        if not self.args.normalize_rewards:
            return
        before = self.reward_scale.unit
        rewards = [weighted_rewards(trajectory, self.args.rewards) for trajectory in learned]
        returns = np.concatenate([rewards_to_go(each, self.args.gamma) for each in rewards])
        self.reward_scale.add(torch.from_numpy(returns), self._gather)
        with torch.no_grad():
            for weight in () if self._value_head is None else self._value_head.parameters():
                weight.mul_(before / self.reward_scale.unit)

    def make_samples(self, fresh: Sequence[Trajectory], replayed: Sequence[Trajectory]) -> list[StepSample]:
        """Return one sample per step, with its advantage: first those of ``fresh`` episodes, in order.

        Rewards and values of the episodes are in the environment's unit; targets of the value head are in
        ``reward_scale.unit``, which is 1 without ``normalize_rewards``.
        """
        return step_samples(fresh, self.layout, self.args, replayed, unit=self.reward_scale.unit)

    def _measure(self, fresh: Sequence[Trajectory], replayed: int) -> Iteration:
        """Return the metrics of an iteration as means over all processes; raise as ``check_gap`` does."""
        stage, weights = self.curriculum.stage, self.curriculum.weights
        local = self._measures.means(fresh, weights)
        env_steps = sum(len(trajectory.turns) for trajectory in fresh)
        *measured, steps, stops = zip(*self._gather(*local.values(), env_steps, self._stop.signal), strict=True)
        self.env_steps += int(sum(steps))
        self._stop.signal = int(max(stops))  # a request on one process stops all of them
        done = Iteration(
            iteration=self.iteration,
            success_by_group=self._collector.success_by_group(stage, fresh, weights, self._gather),
            stage=stage.name,
            replayed=replayed,
            learning_rate=self._measures.learning_rate,
            env_steps=self.env_steps,
            entropy_coef=self.entropy_coef,
            validation_success=None,
            validation_greedy=None,
            validation_by_group={},
            **known({name: sum(column) / len(column) for name, column in zip(local, measured, strict=True)}),
        )
        check_gap(self.args.update, done.logprob_gap)
        return done

    def _end_stage(self) -> None:
        """Close the environments of the stage, and continue with the next one."""
        self.curriculum.end_stage()
        if not self.curriculum.finished:
            self.replay.clear()  # its episodes are samples of another distribution than those of the next stage
        self._collector.close()

    # ---- one optimizer step, between the yields of an iteration --------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:  # noqa: ARG002
        """Compute loss and gradient of one minibatch; return the mean loss.

        Overridden because the batch comes from the rollout, not from ``inputs``, and is divided by tokens.
        """
        if self._minibatch is None:
            upcoming = next(self._schedule, None)
            self._minibatch = upcoming if isinstance(upcoming, list) else []  # empty if resumed after the last one
        if not self._minibatch:  # without gradients the optimizer changes nothing
            return torch.zeros((), device=self.args.device)
        # as in sampling (appendix A): dropout and the kernels of 8-bit layers would differ in training mode
        model.eval()
        samples = self._minibatch
        with part("update: divide"):
            parts = self.policy.divide(
                [sample.view for sample in samples],
                [sample.decision for sample in samples],
                max_tokens=self.args.micro_batch_tokens,
            )
        watched: list[Tensor] = []
        imitated = 0.0
        with self.accelerator.no_sync(model):  # also the forward passes, whose number differs between processes
            for thoughts in self.imitation.losses(model, self.args, self.state.global_step, len(samples)):
                with part("update: thoughts"):
                    self.accelerator.backward(thoughts)
                imitated += thoughts.item()
        for forward in parts:
            with contextlib.nullcontext() if forward is parts[-1] else self.accelerator.no_sync(model):
                with part("update: forward"), self.compute_loss_context_manager():
                    scores = self.policy.score(forward, model)
                    loss = self.minibatch_loss([samples[index] for index in forward.indices], scores)
                with part("update: backward"):
                    self.accelerator.backward(loss.total / len(samples))
            watched.append(torch.stack([loss.total.detach(), loss.kl, loss.clipped]))
        mean = self._measures.add_update(samples, watched, imitated, float(self.optimizer.param_groups[0]["lr"]))
        return torch.tensor(mean, device=self.args.device)

    def minibatch_loss(self, samples: Sequence[StepSample], scores: Scores) -> Loss:
        """Return the loss of ``samples``, as sums over them, with the current policy's ``scores`` (with gradient)."""
        weight = self.args.thought_lambda
        logprobs = scores.logprobs + weight * scores.thought_logprobs
        played = [each.decision.joint_logprob(weight) for each in samples]
        self._measures.divergences.add(samples, scores)
        if not self._measures.updates:
            self._measures.gaps += gaps(samples, played, logprobs.tolist())
        sampled, columns = columns_of(samples, self.args.device)
        reference = references(samples).to(self.args.device)
        return step_losses(
            Objective.of(self.args, self.entropy_coef),
            self.state.global_step / self.args.max_steps,
            logprobs=logprobs,
            old_logprobs=torch.tensor(played, device=self.args.device),
            entropies=scores.entropies,
            values=scores.values,
            divergences=kl_divergences(scores.menu_logprobs[:, : reference.shape[1]], reference),
            log_ratios=(scores.logprobs + scores.thought_logprobs - sampled).detach(),
            **columns,
        )

    def optimizer_stepped(self, control: Any) -> None:
        """Continue the iteration; end training after a request to stop, or with the last stage."""
        if self._minibatch:  # an empty minibatch has no gradient
            self._measures.norms.append(self.gradient_norm)
            if self._averaged_weights is not None:
                average(self._averaged_weights, self.model, self.args.ema)
        upcoming = next(self._schedule, None)
        self._minibatch = upcoming if isinstance(upcoming, list) else None
        if isinstance(upcoming, Iteration) and self._stop.signal:
            control.should_save = control.should_training_stop = True
        if self.curriculum.finished:  # thresholds may end the curriculum before max_steps
            control.should_training_stop = True

    def step_loss(self) -> Tensor:
        """Return the mean loss of the current minibatch on this process."""
        updates = self._measures.updates
        return torch.tensor(updates[-1][0] if updates else 0.0, device=self.args.device)

    def broken_step(self) -> BrokenStep:
        """Return the report of the current minibatch, for a loss that is not finite."""
        rows = [sample.row for sample in self._minibatch or ()]
        name, where = f"rlft-iteration-{self.iteration:05d}", f"iteration {self.iteration}"
        return BrokenStep(self._failures, name, where, rows, "lower rlft.learning_rate in another --run")

    def _total(self, counts: Tensor) -> Tensor:
        """Return the sum of a tensor of integers over all processes."""
        total: Tensor = self.accelerator.reduce(counts.to(self.args.device), "sum")
        return total.cpu()

    def _gather(self, *numbers: float) -> list[list[float]]:
        """Return the numbers of each process, without rounding."""
        return numbers_of_ranks(self.accelerator, numbers)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Send the iteration's metrics to the trackers along with Trainer's own."""
        super().log({**logs, **self._reported}, start_time)

    def _send_telemetry(self) -> None:
        """Disable TRL's telemetry."""
