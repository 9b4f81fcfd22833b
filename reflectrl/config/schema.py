"""The recipe schema. Each field is followed by its one-line documentation; unknown keys are refused by the loader."""

from __future__ import annotations

from dataclasses import field, fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from reflectrl.config.evaluation import EvalSection
from reflectrl.config.judges import CorrectorPlayerSection, RaterPlayerSection
from reflectrl.config.memory import MemoryPlayerSection, PlannerPlayerSection, check_embedder, check_growing
from reflectrl.config.model import ModelSection
from reflectrl.config.reflector import ReflectorPlayerSection, check_trained_reflector
from reflectrl.config.rlft import RLFTSection, RLFTSettings
from reflectrl.core.settings import Count, CountOrZero, Fraction, NonNegative, Positive, Section, Source, settings
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.format import PromptLayout
from reflectrl.workers.limits import WorkerLimits


@settings(kw_only=True)
class EnvSection(WorkerLimits):
    """Environment of the recipe and its options."""

    name: str
    """Registered name, see ``reflectrl check-env --list``."""
    options: dict[str, Any] = field(default_factory=dict)
    """The environment's constructor parameters, e.g. stage and horizon."""
    workers: CountOrZero = 0
    """Processes that run environments, at most one a core; 0 runs them in the main process, without crash isolation."""


class DatasetSection(Section):
    """Tasks that gen-data makes for an environment with the option ``dataset``: questions about repositories."""

    repositories: Annotated[list[Source], Field(min_length=1)]
    """Folders, git URLs, ``pypi:NAME==VERSION`` (a package's source archive), ``company:nano`` or ``company:full``."""
    held_out: list[Source] = []
    """Further repositories, which only the evaluation split ``unseen`` asks about."""
    writer: Literal["extractive", "paraphrased", "openai"] = "extractive"
    """Source of the questions: the files' own headings, docstrings and columns; the same in other words, without those
    of the path and those that only one file holds; or a chat endpoint."""
    files: Count | None = None
    """Ask about so many files of each repository, drawn by the seed; absent: about all."""
    per_file: Count = 3
    """Questions kept a file, at most."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of the writer ``openai``."""


@settings(kw_only=True)
class PromptSection(PromptLayout):
    """The layout of every prompt, see ``reflectrl.prompts.PromptFormat``."""

    instructions: bool = True
    """Begin each prompt with the environment's instructions."""

    def layout(self, instructions: str) -> PromptFormat:
        """Return the layout for an environment with these ``instructions``."""
        shared = {each.name: getattr(self, each.name) for each in fields(PromptLayout)}
        return PromptFormat(instructions=instructions if self.instructions else "", **shared)


class PolicyPlayerSection(Section):
    """The trained policy where it writes before it acts, and the policy ``remote`` of the evaluation."""

    max_new_tokens: Count = 64
    """Longest thought, or answer in JSON, in tokens."""
    temperature: Positive = 1.0
    """Temperature at which thoughts and answers in JSON are sampled and scored."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint whose model answers with a label."""


class PlayersSection(Section):
    """Players of the turn, by role."""

    memory: MemoryPlayerSection | None = None
    """Shows the teacher's successful episodes in SFT rows, RLFT and evaluation; absent: none are shown."""
    planner: PlannerPlayerSection | None = None
    """Plans each episode in SFT rows, RLFT and evaluation; absent: there are no plans."""
    reflector: ReflectorPlayerSection = ReflectorPlayerSection()
    """Writes the reflection."""
    policy: PolicyPlayerSection = PolicyPlayerSection()
    """The policy's own text, and a chat model to compare it with."""
    corrector: CorrectorPlayerSection | None = None
    """Rewrites wrong thoughts, which ``rlft.terms.sft_thought`` imitates; absent: none are rewritten."""
    rater: RaterPlayerSection | None = None
    """Rates the episodes of RLFT, see ``rlft.rewards``; absent: only the environment rewards."""


class DataSection(Section):
    """Stage 1a, gen-data (Algorithm 1, lines 1-20)."""

    teacher: Literal["expert", "openai"] = "expert"
    """The environment's expert (offline) or a chat endpoint."""
    trajectory: Literal["teacher", "oracle"] = "oracle"
    """Source of the actions: the teacher (reflect, then choose), or the expert with reflections on a spoiler."""
    noise: Fraction = 0.0
    """Probability of a random action instead of the expert's (noisy-oracle trajectories)."""
    demonstrations: list[str] | None = None
    """Files of episodes that ``reflectrl play --save`` kept, paths from the working folder: their samples come before
    the teacher's and count towards ``samples``, so a teacher adds what is missing. Each has a reflection and becomes a
    row of every kind; those of validation and test tasks, or of a state where one starts, are left out."""
    samples: Count = 100
    """Samples to collect, positive and negative together; a sample is one step."""
    negatives: Fraction = 0.5
    """Probability of a negative sample at each step (section 4.2)."""
    reflection_dropout: Fraction = 0.0
    """Fraction of the policy's rows whose reflection is blanked or, as often, another row's, so that the policy neither
    needs the words nor believes all of them."""
    concurrency: Count = 8
    """Teacher episodes in flight."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of the teacher ``openai``."""


class SFTPlayerSection(Section):
    """Stage 1b for one player (section 4.1.2)."""

    steps: Count = 300
    """Optimizer steps."""
    batch_size: Count = 32
    """Rows an optimizer step."""
    micro_batch_size: Count = 32
    """Rows a forward pass; the rest is accumulated."""
    learning_rate: Positive = 2e-4
    """Peak learning rate."""
    warmup: Fraction = 0.1
    """Fraction of the steps with a rising learning rate."""
    lr_scheduler_type: Literal["cosine", "constant_with_warmup"] = "cosine"
    """After the warm-up, the learning rate falls along a cosine or stays as it is."""
    weight_decay: NonNegative = 0.001
    """AdamW weight decay."""
    max_grad_norm: Positive = 0.3
    """Gradient clipping."""
    max_rows: Count | None = None
    """Use only the first ``max_rows`` rows; a policy that saw fewer keeps more to explore in RLFT."""


class SFTPolicySection(SFTPlayerSection):
    """Stage 1b for the policy, which answers with a label."""

    label_smoothing: Fraction = 0.0
    """Probability mass spread over the menu's labels, so that RLFT starts with entropy."""


class SFTSection(Section):
    """Stage 1b: both players, each from the base model."""

    reflector: SFTPlayerSection = SFTPlayerSection()
    """The reflector's training."""
    policy: SFTPolicySection = SFTPolicySection()
    """The policy's training; a single player's too, but for the number of its reflector rows."""
    enabled: bool = True
    """False starts RLFT from the base model (the "RLFT only" ablation)."""
    drop_long_rows: bool = False
    """Leave out rows that do not fit ``model.max_length`` even when cut as at play, instead of refusing them."""


class Recipe(Section):
    """One experiment."""

    name: str
    """Name of the run folder."""
    description: str = ""
    """Purpose of the recipe, in a sentence."""
    seed: CountOrZero = 0
    """Seed of all random draws."""
    env: EnvSection
    """The environment."""
    dataset: DatasetSection | None = None
    """Its tasks, where they are made from repositories; absent where the environment brings its own."""
    prompt: PromptSection = PromptSection()
    """The prompts."""
    model: ModelSection = ModelSection()
    """The base of both players."""
    reflector_model: ModelSection | None = None
    """Another base for the reflector."""
    players: PlayersSection = PlayersSection()
    """Players of the turn, by role."""
    data: DataSection = DataSection()
    """Settings of gen-data."""
    sft: SFTSection = SFTSection()
    """Supervised fine-tuning."""
    rlft: RLFTSection | None = RLFTSection()
    """Reinforcement learning; absent (null) for the "SFT only" ablation."""
    eval: EvalSection = EvalSection()
    """Evaluation."""

    def layout(self, instructions: str) -> PromptFormat:
        """Return the layout of the prompts for an environment with these ``instructions``."""
        roles = {"policy": self.model, "reflector": self.reflector_model or self.model}
        if self.players.reflector.player == "remote":
            del roles["reflector"]
        judges = {"corrector": self.players.corrector, "rater": self.players.rater}
        memory = self.players.memory or self.eval.memory
        remembers = ("memory",) if memory is not None and memory.key == "picture" else ()
        images = tuple(role for role, seen in {**roles, **judges}.items() if seen is not None and seen.images)
        return replace(self.prompt.layout(instructions), images=(*images, *remembers))

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.rlft is None and "rlft" in self.eval.policies:
            raise ValueError("eval.policies names rlft but the recipe has no rlft section; remove one of the two")
        if not self.sft.enabled and "sft" in self.eval.policies:
            raise ValueError("eval.policies names sft but sft.enabled is false; remove one of the two")
        self._check_rewards()
        self._check_thoughts()
        self._check_memory()
        if self.players.reflector.trained:
            check_trained_reflector(self)
        if self.model.images and "remote" in self.eval.policies:
            raise ValueError(
                "eval.policies names remote, which reads text, but model.images shows the policy pictures; remove one"
            )
        if self.players.reflector.player == "none" and self.eval.controls:
            raise ValueError(
                "eval.controls replace a reflector's words, but players.reflector.player is none; remove one"
            )
        if self.eval.reflectors and (self.players.reflector.player == "none" or "rlft" not in self.eval.policies):
            raise ValueError(
                "eval.reflectors advise the rlft policy; expected it in eval.policies, trained with a reflector"
            )
        return self

    def _check_memory(self) -> None:
        if self.players.memory is not None and self.eval.memory is not None:
            raise ValueError(
                "players.memory is read in training and evaluation, and eval.memory instead of it in an evaluation of "
                "policies that were trained without; remove one of the two"
            )
        memory = self.players.memory or self.eval.memory
        if memory is not None and memory.grows:
            check_growing(self)
        if memory is not None:
            check_embedder(memory, self.model, in_rows=self.players.memory is not None)
        if self.eval.trials is not None:
            if memory is None and not self.eval.trials.control:
                raise ValueError(
                    "eval.trials remember trials before, but no memory says how; set eval.memory, or players.memory "
                    "where policies are trained with one, or eval.trials.control=true for trials without any"
                )
            if unknown := [name for name in self.eval.trials.policies if name not in self.eval.policies]:
                raise ValueError(
                    f"eval.trials.policies names {unknown[0]}, but eval.policies does not; name it in both or neither"
                )

        if memory is not None and memory.key == "picture" and not self.model.images:
            raise ValueError(
                "a memory's key is picture, which the vision tower of model compares, but model.images is false; set "
                "key to observation, or model.images=true where the environment shows pictures"
            )
        planner = self.players.planner
        if memory is not None and memory.key == "planner":
            if planner is None or planner.player == "expert":
                raise ValueError(
                    "a memory's key is planner, which a model reads out of reflections, but players.planner is no "
                    "model; set its player to local or remote, or key to action"
                )
            if self.players.reflector.player == "none" and self.prompt.action_mode == "enumerated":
                raise ValueError(
                    "a memory's key is planner, which a model reads out of reflections or thoughts, but this recipe "
                    "has neither; set key to either, or give it a reflector"
                )

    def _check_thoughts(self) -> None:
        """Refuse settings of thoughts that a policy does not have."""
        writes, policy = self.prompt.action_mode != "enumerated", self.players.policy
        if not writes and (policy.max_new_tokens, policy.temperature) != (64, 1.0):
            raise ValueError(
                "players.policy has settings of what a policy writes, but with prompt.action_mode=enumerated it writes "
                "nothing; remove max_new_tokens and temperature, or set prompt.action_mode to thought_choice or json"
            )
        learns_text = writes or self.players.reflector.trained
        if self.rlft is not None and not learns_text and self.rlft.thought_lambda != RLFTSettings.thought_lambda:
            raise ValueError(
                f"rlft.thought_lambda={self.rlft.thought_lambda:g} was given, but with prompt.action_mode=enumerated "
                "there are no thoughts; remove it, or set prompt.action_mode to thought_choice or json"
            )
        imitates = self.rlft is not None and self.rlft.terms.sft_thought is not None
        if imitates != (self.players.corrector is not None):
            raise ValueError(
                "players.corrector and rlft.terms.sft_thought go together: what one writes, the other learns from; "
                "set both or neither"
            )
        if imitates and not writes:
            raise ValueError(
                "players.corrector was given, but with prompt.action_mode=enumerated there are no thoughts to correct; "
                "remove it, or set prompt.action_mode to thought_choice or json"
            )
        if self.rlft is not None and self.rlft.terms.kl is not None and self.prompt.action_mode == "json":
            raise ValueError(
                "rlft.terms.kl is exact over the menu, which an action in JSON is not drawn from; remove it, or set "
                "prompt.action_mode to enumerated or thought_choice"
            )

    def _check_rewards(self) -> None:
        if self.rlft is None:
            return
        writer = {"format": ("thought_choice", "json"), "illegal": ("json",)}
        sources = {"env"} if self.players.rater is None else {"env", "rater"}
        sources |= {name for name, modes in writer.items() if self.prompt.action_mode in modes}
        if unknown := set(self.rlft.rewards) - sources:
            source, mode = min(unknown), self.prompt.action_mode
            cause = f"no such player of the recipe rates episodes; known: {', '.join(sorted(sources))}"
            if source in writer:
                cause = f"prompt.action_mode is {mode}; set that to {' or '.join(writer[source])}, or remove the reward"
            raise ValueError(f"rlft.rewards names {source}, but {cause}")
        if self.players.rater is None:
            return
        if "rater" not in self.rlft.rewards:
            raise ValueError(
                "players.rater rates episodes but rlft.rewards leaves it out; add rater: 1.0, or rater: 0.0 for an "
                "audit alone"
            )
        if self.rlft.validation is not None:
            raise ValueError(
                "rlft.validation reads the environment's success, which players.rater stands in for, and its episodes "
                "would be rated as well; remove one"
            )
