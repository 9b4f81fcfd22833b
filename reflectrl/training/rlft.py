"""``ReflectRLTrainer``: stage 2, online policy gradient on multi-step episodes (Algorithm 1, lines 23-36).

The loop is written out here, on ``accelerate``: ``train``, ``iterate`` and ``_update`` say what happens when.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import set_seed
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from reflectrl.config.advantage import rewards_to_go
from reflectrl.config.training import NOVELTY, EntropyTarget, Lesson
from reflectrl.core import InvalidInput, Trajectory, WorkFailed
from reflectrl.core.profile import active_profile, part
from reflectrl.core.registry import Env
from reflectrl.core.seeds import derive_seed
from reflectrl.core.stop import Stop
from reflectrl.core.types import Drawn
from reflectrl.lm.head import LogitScale
from reflectrl.lm.load import save_model
from reflectrl.lm.policy import Scores
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import Player, Remembers
from reflectrl.rollout import Episode
from reflectrl.rollout.iteration import Ends, Iteration
from reflectrl.rollout.results import Validated
from reflectrl.rollout.thoughts import known
from reflectrl.seats.served import PolicyServer
from reflectrl.seats.table import Seat, reflecting
from reflectrl.training.arguments import (
    accelerator_for,
    check_seats,
    frozen_reflector,
    language_model,
    layout_and_labels,
    publisher,
    suited_args,
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
from reflectrl.training.checkpoints import (
    fitting,
    last_checkpoint,
    read_generators,
    read_state,
    read_weights,
    write_checkpoint,
    write_state,
    write_weights,
)
from reflectrl.training.collector import Collector, Novelty, RewardScale, without_novelty
from reflectrl.training.config import ReflectRLConfig
from reflectrl.training.curriculum import Curriculum, fresh_episodes, replayed_episodes
from reflectrl.training.imitation import Imitation
from reflectrl.training.learner import (
    BrokenStep,
    Learner,
    MakeOptimizer,
    Pace,
    adamw,
    call_on_iteration,
    copy_weights,
    episodes_of_ranks,
    load_weights,
    numbers_of_ranks,
    parameter_groups,
    schedule,
    totals_of_ranks,
    using,
)
from reflectrl.training.measures import Measures
from reflectrl.training.objective import Loss, Objective, check_gap, kl_divergences, step_losses
from reflectrl.training.sharding import check_sharding, gathered, whole_weights
from reflectrl.training.validation import Validator

if TYPE_CHECKING:  # peft takes a second to import
    from peft import PeftConfig, PeftModel


class ReflectRLTrainer(Drawn):
    """Trainer of the policy by online RL; the other players are frozen.

    A subclass may override ``make_samples``, which estimates advantages, and ``minibatch_loss``.

    Args:
        model: name or folder of a causal language model, or a model object of transformers or peft.
        args: settings of the run; if absent, those that suit random episodes of ``env``, see ``suited_args``.
        processing_class: the tokenizer, or the processor of an image-text model; required unless ``model`` is a name.
            Prompts are read through its ``chat_template``, which is set up as by ``model.chat: auto``; set that to
            ``None`` to read them as plain text.
        env: registered name of an environment, or its class, or a function that takes its options. Environments are
            made with the options of each lesson, and closed when the lesson ends.
        reflector: folder of a trained reflector, or a player such as ``ExpertReflector()``; ``None`` for no
            reflections. An ``LMReflector`` around ``model`` itself is the single player (appendix F.2).
        seats: further frozen players.
        layout: layout of the prompts; a default layout with the environment's instructions if absent.
        labels: all menu labels; those that the menus of all lessons may need if absent.
        peft_config: adapters to train instead of all weights.
        server: writes the policy's texts in place of its model, which has adapters.
        optimizer: makes the optimizer from groups of parameters and ``lr``, such as ``torch.optim.SGD``.
        on_iteration: gets each iteration's record and fresh episodes, on the main process; its errors end the training.
        stop: request to stop; training then writes a checkpoint after the current iteration and ends, on all processes.
        failures: folder for a batch whose loss is not finite; beside the checkpoints by default.

    Raises:
        InvalidInput: a model, reflector or environment that cannot be used, or a reward of an unknown source.
    """

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
        server: PolicyServer | None = None,
        optimizer: MakeOptimizer = adamw,
        on_iteration: Callable[[Iteration, Sequence[Trajectory]], None] | None = None,
        stop: Stop | None = None,
        failures: Path | None = None,
    ) -> None:
        self.args = args = args or suited_args(env, layout)
        self.accelerator = accelerator_for(args)
        processes = self.accelerator.num_processes
        layout, labels = layout_and_labels(env, args.lessons, layout, labels)
        self.lm = lm = language_model(
            model, processing_class, peft_config, labels=labels, max_length=args.max_length, seed=args.seed
        )
        check_sharding(self.accelerator, lm)
        self.policy = trainable_policy(lm, labels, args, layout.action_mode, self.accelerator, server)
        self.seats = (*reflecting(frozen_reflector(reflector, args, self.accelerator.device)), *seats)
        check_seats(args, self.seats)
        self.learners = [seat.player for seat in self.seats if isinstance(seat.player, Remembers)]
        self.layout = layout
        self.curriculum = Curriculum(args.lessons)
        self.replay: deque[Trajectory] = deque(maxlen=args.replay.size if args.replay else 0)
        """Replay buffer: the newest episodes of the current lesson that are worth replaying, as in the public code."""
        self.iteration = self.env_steps = 0
        self.iterations: list[Iteration] = []  # records of those that were done since the last start
        self.entropy_coef = args.terms.entropy.coef if isinstance(args.terms.entropy, EntropyTarget) else None
        """Current coefficient of an entropy bonus with a target; ``None`` for one with a schedule."""
        self.advantages: list[list[float]] = []
        """Advantages that the updates of this iteration use, per fresh episode and step."""
        self.novelty = Novelty()
        self.reward_scale = RewardScale()
        self.value_head: nn.Module | None = getattr(lm.base, "value_head", None)
        self.validator = None
        if args.validation is not None:
            kept, share = lm.model if args.keep == "best" else None, (self.accelerator.process_index, processes)
            self.validator = Validator(args.validation, kept, args.seed, share, args.episodes * processes)
        self.imitation = Imitation(args.terms.sft_thought, self.policy, layout)
        side_by_side = min(args.batch_size or args.episodes, args.episodes)
        self._server = server
        publish = publisher(server, lm, self.accelerator)
        self._collector = Collector(env, self.policy, lm.model, self.seats, layout, side_by_side, publish)
        self._on_iteration = on_iteration
        self._stop = stop or Stop()
        self._failures = failures or Path(args.output_dir) / "failures"
        self._begun = False
        self._measures = Measures(self.policy, self.seats, self.imitation)
        head_rate = None if args.value is None else args.value.learning_rate
        groups = parameter_groups(lm.model, args.weight_decay, head=self.value_head, head_rate=head_rate)
        made = optimizer(groups, lr=args.learning_rate)
        self.pace = Pace(args.update, self._gather)
        rates = schedule(made, args.learning_rate_at, args.total_updates, self.pace, self.value_head)
        self.learner = Learner(self.accelerator, lm.model, made, rates, max_grad_norm=args.max_grad_norm, ema=args.ema)
        later_starts = args.validation is not None and len(args.lessons) > 1  # each lesson validates these weights
        self._first_weights = copy_weights(lm.model) if args.terms.kl is not None or later_starts else None

    @property
    def validated(self) -> Validated | None:
        """Validation of the weights that ``train`` ended with; ``None`` if they were not validated."""
        return None if self.validator is None else self.validator.kept

    def train(self, resume_from_checkpoint: str | Path | bool | None = None) -> None:
        """Train or resume, once; the policy then has the weights to keep (``args.keep``, ``args.ema``).

        Args:
            resume_from_checkpoint: the checkpoint to continue from; ``True`` for the newest one in ``output_dir``.

        Raises:
            InvalidInput: ``train`` was called before, or the checkpoint is damaged or of another training.
            WorkFailed: an environment or rating failed in all episodes of an iteration, the loss is not finite, or a
                checkpoint cannot be written. What was written before is kept.
        """
        if self._begun:
            raise InvalidInput("train() was called before; make another trainer, which can resume from a checkpoint.")
        self._begun = True
        set_seed(self.args.seed)
        if resume_from_checkpoint:
            self._resume(resume_from_checkpoint)
        main = self.accelerator.is_main_process
        total = sum(lesson.iterations for lesson in self.args.lessons)
        hidden = True if self.args.disable_tqdm or not main else None  # None: shown in terminals only
        with tqdm(total=total, initial=self.iteration, unit="iteration", disable=hidden) as bar:
            while not self.curriculum.finished and not self._stop.signal:
                done, episodes = self.iterate()
                self.iterations.append(done)
                error = call_on_iteration(self._on_iteration, self.accelerator, done, episodes)
                if error or self.curriculum.finished or self._stop.signal or self.iteration % self.args.save_every == 0:
                    self._save()
                if error:
                    raise error
                bar.set_postfix(success=f"{done.success:.0%}", refresh=False)
                bar.update()
        if self.curriculum.finished:
            if self.learner.average is not None:
                load_weights(self.lm.model, self.learner.average)
            if self.validator is not None:
                self.validator.load_best()
        self._collector.forget()  # later rollouts use the final weights
        if self._server is not None and main:
            self._server.withdraw()

    def save_model(self, folder: str | Path) -> None:
        """Save the policy and its tokenizer as an ordinary model folder; the main process does, and all call it."""
        weights = whole_weights(self.lm.model)
        if self.accelerator.is_main_process:
            save_model(self.lm, Path(folder), weights)

    def _save(self) -> None:
        def write(folder: Path) -> None:
            write_weights(folder, self.lm.model, self.lm.tokenizer)
            self.learner.write_state(folder)
            write_state(self, folder)

        folder = Path(self.args.output_dir) / f"checkpoint-{self.learner.steps}"
        write_checkpoint(folder, write, self.accelerator, keep=self.args.save_total_limit)

    def _resume(self, checkpoint: str | Path | bool) -> None:
        folder = last_checkpoint(Path(self.args.output_dir)) if checkpoint is True else Path(str(checkpoint))
        if folder is None:
            raise InvalidInput(f"{self.args.output_dir} holds no checkpoint to resume from; train without one.")
        read_weights(folder, self.lm.model)
        self.learner.read_state(folder)
        with fitting(folder):
            read_state(self, folder)
        read_generators(folder, self.accelerator)

    # ---- an iteration, top to bottom ---------------------------------------------------------------------------

    def iterate(self) -> tuple[Iteration, list[Trajectory]]:
        """Run an iteration; return its metrics and its fresh episodes.

        An update is skipped once the KL divergence has exceeded its limit, or if all episodes are rated alike.

        Raises:
            WorkFailed: the environment or the rating failed in all episodes, or the loss is not finite.
        """
        if profile := active_profile():
            profile.begin_iteration()
        lesson, args = self.curriculum.lesson, self.args
        rng = random.Random(derive_seed(args.seed, "updates", self.iteration, self.accelerator.process_index))

        started = {} if self._collector.envs else self._open_lesson(lesson)
        self._measures.begin()
        fresh = self._play(lesson)  # lines 24-33: B episodes with the frozen players and the current policy
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
            self.replay.extend(without_novelty(each) for each in kept if lesson.worth_replaying(each))
            if args.replay and args.value is not None:
                replayed = self._collector.valued(replayed, max_tokens=args.micro_batch_tokens)
                replayed = [with_values(each, self.reward_scale.unit) for each in replayed]
            samples = self.make_samples(learned, replayed)
            self.advantages = advantages_by_episode(samples, learned, fresh)
        if args.terms.kl is not None and (first := self._first_weights) is not None:
            samples = self._collector.with_reference(samples, first, max_tokens=args.micro_batch_tokens)

        skipped = rated_alike(learned, args.rewards, self.seats, self._gather)
        self.pace.begin(fresh)
        for minibatch in minibatches(samples, args.update, rng, whole=self.layout.recent.show == "transitions"):
            if skipped or self.pace.went_far(self._measures.last_kl):
                self.learner.skip()
            else:
                self._update(minibatch)
        if self._measures.updates:
            self.pace.follow(self._measures.last_kl)
        done = self._measure(fresh, len(replayed))
        if args.terms.entropy and self.entropy_coef is not None:
            progress = (self.iteration + 1) * args.updates_per_iteration / args.total_updates
            self.entropy_coef = args.terms.entropy.after(
                self.entropy_coef, done.entropy, uniform=done.entropy_uniform or 0.0, progress=progress
            )
        self.iteration += 1
        ended: Ends | None = self.curriculum.add(done.success)
        ended = ended or ("minutes" if self._stop.late(self.iteration) else None)
        checks, lesson_over = self.validator, ended is not None
        if checks is not None and checks.due(len(self.curriculum.successes), ended=lesson_over):
            with part("validation"), using(self.lm.model, self.learner.average):
                started |= checks.play(self._collector, self._gather, self.iteration)
            ended = ended or checks.ends
        if ended:
            self.curriculum.end_lesson(last=ended == "minutes")
            if not self.curriculum.finished:
                self.replay.clear()  # its episodes are samples of another distribution than those of the next lesson
            self._collector.close()
        return replace(done, **started, ended=ended), fresh

    def _open_lesson(self, lesson: Lesson) -> dict[str, Any]:
        """Make the environments of ``lesson``; return what validations before its first iteration have shown."""
        self._collector.open(lesson.env)
        if self.validator is None:
            return {}
        self.validator.begin_lesson(self._collector.envs[0])
        if self.curriculum.successes:  # the lesson continues from a checkpoint
            return {}
        with part("validation"), using(self.lm.model, self._first_weights if self.curriculum.index else None):
            scale = LogitScale(self.lm.base) if self.args.sharpen and self.validator.episodes else None
            shown = self.validator.start(self._collector, self._gather, scale, self.args.sharpen)
        if scale is not None:
            self.learner.begin_average()
        return shown

    def _play(self, lesson: Lesson) -> list[Trajectory]:
        """Play one batch of fresh episodes of ``lesson``.

        Raises:
            WorkFailed: the environment failed in all episodes.
        """
        episodes = self._episodes_of(self.iteration)
        with part("rollout"):
            played = self._collector.play(episodes, bootstrap=self.args.bootstraps)
        if not played:
            raise WorkFailed(
                f"the environment failed in all {len(episodes)} episodes of iteration {self.iteration}, so there is "
                "nothing to learn from: fix the environment, then continue from the last checkpoint (the same command)."
            )
        self.curriculum.weigh(played, self._collector.envs[0], self.args.task_priority)
        self.curriculum.note(played)
        if len(self.curriculum.successes) + 1 < lesson.iterations:  # else the lesson ends here
            self._collector.begin_ahead(self._episodes_of(self.iteration + 1))  # environments reset during the update
        return played

    def _episodes_of(self, iteration: int) -> list[Episode]:
        rank = self.accelerator.process_index
        return fresh_episodes(self.curriculum, self._collector.envs[0], self.args, iteration, rank)

    def _rewarded(self, played: Sequence[Trajectory]) -> list[Trajectory]:
        """Return new episodes with their rewards for novelty, and with values in the environment's unit."""
        valued = [with_values(trajectory, self.reward_scale.unit) for trajectory in played]
        if NOVELTY not in self.args.rewards:
            return valued
        return self.novelty.rewarded(
            valued, 1 - self.curriculum.recent_success, partial(totals_of_ranks, self.accelerator)
        )

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
            for weight in () if self.value_head is None else self.value_head.parameters():
                weight.mul_(before / self.reward_scale.unit)

    def make_samples(self, fresh: Sequence[Trajectory], replayed: Sequence[Trajectory]) -> list[StepSample]:
        """Return one sample per step, with its advantage: first those of ``fresh`` episodes, in order.

        Rewards and values of the episodes are in the environment's unit; targets of the value head are in
        ``reward_scale.unit``, which is 1 without ``normalize_rewards``.
        """
        return step_samples(fresh, self.layout, self.args, replayed, unit=self.reward_scale.unit)

    def _measure(self, fresh: Sequence[Trajectory], replayed: int) -> Iteration:
        """Return the metrics of an iteration as means over all processes; raise as ``check_gap`` does."""
        lesson, weights = self.curriculum.lesson, self.curriculum.weights
        local = self._measures.means(fresh, weights)
        env_steps = sum(len(trajectory.turns) for trajectory in fresh)
        *measured, steps, stops = zip(*self._gather(*local.values(), env_steps, self._stop.signal), strict=True)
        self.env_steps += int(sum(steps))
        self._stop.signal = int(max(stops))  # a request on one process stops all of them
        done = Iteration(
            iteration=self.iteration,
            success_by_group=self._collector.success_by_group(lesson, fresh, weights, self._gather),
            lesson=lesson.name,
            replayed=replayed,
            learning_rate=self._measures.learning_rate,
            env_steps=self.env_steps,
            entropy_coef=self.entropy_coef,
            validation_success=None,
            validation_greedy=None,
            validation_by_group={},
            **known({name: sum(column) / len(column) for name, column in zip(local, measured, strict=True)}),
        )
        check_gap(self.args.update, done.logprob_gap, served=self._server is not None)
        return done

    # ---- an update ---------------------------------------------------------------------------------------------

    def _update(self, samples: Sequence[StepSample]) -> None:
        """Make one optimizer step on a minibatch, in forward passes of at most ``micro_batch_tokens`` tokens.

        Raises:
            WorkFailed: the loss or its gradient is not finite.
        """
        model = self.learner.model
        # as in sampling (appendix A): dropout and the kernels of 8-bit layers would differ in training mode
        model.eval()
        with part("update: divide"):
            parts = self.policy.divide(
                [sample.view for sample in samples],
                [sample.decision for sample in samples],
                max_tokens=self.args.micro_batch_tokens,
            )
        watched: list[Tensor] = []
        imitated = 0.0
        with gathered(model):
            with self.accelerator.no_sync(model):  # also the forward passes, whose number differs between processes
                thoughts = self.imitation.losses(model, self.args, self.accelerator, self.learner.steps, len(samples))
                for loss_of_thoughts in thoughts:
                    with part("update: thoughts"):
                        self.accelerator.backward(loss_of_thoughts)
                    imitated += loss_of_thoughts.item()
            for forward in parts:
                with contextlib.nullcontext() if forward is parts[-1] else self.accelerator.no_sync(model):
                    with part("update: forward"), self.accelerator.autocast():
                        scores = self.policy.score(forward, model)
                        loss = self.minibatch_loss([samples[index] for index in forward.indices], scores)
                    with part("update: backward"):
                        self.accelerator.backward(loss.total / len(samples))
                watched.append(torch.stack([loss.total.detach(), loss.kl, loss.clipped]))
        mean = self._measures.add_update(samples, watched, imitated, self.learner.learning_rate)
        with part("update: step"):
            self._measures.norms.append(self.learner.step(mean, lambda: self._broken(samples)))

    def _broken(self, samples: Sequence[StepSample]) -> BrokenStep:
        name, where = f"rlft-iteration-{self.iteration:05d}", f"iteration {self.iteration}"
        rows = [sample.row for sample in samples]
        return BrokenStep(self._failures, name, where, rows, "lower rlft.learning_rate in another --run")

    def minibatch_loss(self, samples: Sequence[StepSample], scores: Scores) -> Loss:
        """Return the loss of ``samples``, as sums over them, with the current policy's ``scores`` (with gradient)."""
        weight = self.args.thought_lambda
        logprobs = scores.logprobs + weight * scores.thought_logprobs
        played = [each.decision.joint_logprob(weight) for each in samples]
        self._measures.divergences.add(samples, scores)
        if not self._measures.updates:
            self._measures.gaps += gaps(samples, played, logprobs.tolist())
        sampled, columns = columns_of(samples, self.accelerator.device)
        reference = references(samples).to(self.accelerator.device)
        return step_losses(
            Objective.of(self.args, self.entropy_coef),
            self.learner.steps / self.args.total_updates,
            logprobs=logprobs,
            old_logprobs=torch.tensor(played, device=self.accelerator.device),
            entropies=scores.entropies,
            values=scores.values,
            divergences=kl_divergences(scores.menu_logprobs[:, : reference.shape[1]], reference),
            log_ratios=(scores.logprobs + scores.thought_logprobs - sampled).detach(),
            **columns,
        )

    def _gather(self, *numbers: float) -> list[list[float]]:
        """Return the numbers of each process, without rounding."""
        return numbers_of_ranks(self.accelerator, numbers)
