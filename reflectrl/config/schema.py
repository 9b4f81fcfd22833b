"""The recipe schema. The text below each field is its documentation; the loader refuses unknown keys."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, create_model, model_validator

from reflectrl.config.evaluation import EvalSection
from reflectrl.config.training import NOVELTY, TEXT_REWARDS, RLFTSection, check_action_mode
from reflectrl.core import InvalidInput
from reflectrl.core.addresses import dotted, public_source
from reflectrl.core.settings import Count, CountOrZero, Fraction, NonNegative, Positive, Section, Source, settings
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.lm.section import ModelSection
from reflectrl.prompts import History, PromptFormat
from reflectrl.prompts.format import THOUGHTS, PromptLayout
from reflectrl.rollout.pool import WorkerLimits
from reflectrl.seats import SEATS, SeatKind, SeatSection
from reflectrl.seats.corrector import TOGETHER
from reflectrl.seats.memory import SEAT as MEMORY
from reflectrl.seats.others import PolicyPlayerSection
from reflectrl.seats.own import own_roles, own_settings
from reflectrl.seats.table import POLICY

MIN_SFT_STEPS, MIN_ITERATIONS = 100, 10
"""Steps of SFT and iterations of RLFT that are made with any budget."""
SLACK = 0.1
"""Share of a budget's minutes by which a training may take longer than planned, before it ends."""


class BudgetSection(Section):
    """Time for a run; settings that the recipe does not state are chosen by measurement (``reflectrl.pipeline.auto``).

    The stages write into the run folder's ``recipe.yaml`` what they chose and why, so a run that continues keeps it.
    """

    minutes: Positive = 15.0
    """Time for all stages together, in minutes on this machine."""
    stated: list[str] | None = None
    """Dotted keys that the recipe states itself, which nothing overrides; absent in a recipe that was written by hand,
    whose loader fills it in."""
    chosen: dict[str, str] = {}
    """Reason of each setting that was chosen, by its dotted key; filled in by the stages."""

    def deadline(self, bound: str, until: float) -> float:
        """Return when to end a training that was planned to go on ``until`` then: ``SLACK`` of the budget later.

        Both are readings of ``time.monotonic``; ``inf`` where the recipe states the training's ``bound``.
        """
        return math.inf if self.states(bound) else until + SLACK * 60 * self.minutes

    def states(self, key: str) -> bool:
        """Return whether the recipe itself states ``key``, a part of it, or a section that contains it."""
        return any(f"{each}.".startswith(f"{key}.") or f"{key}.".startswith(f"{each}.") for each in self.stated or ())


def note_stated(values: dict[str, Any], given: Mapping[str, Any], overridden: Sequence[str]) -> None:
    """Note in a recipe's ``values``, if they have a budget, which keys the recipe ``given`` and its overrides state."""
    budget = values.get("budget")
    if isinstance(budget, dict):
        before = budget.get("stated")
        stated = [*(_stated(given) if before is None else before), *overridden]
        budget["stated"] = sorted(each for each in {*stated} if not each.startswith("budget"))


def _stated(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys of ``values``, those of list entries by their numbers."""
    for key, value in dotted(values).items():
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            for number, entry in enumerate(value):
                yield from (f"{key}.{number}.{inner}" for inner in dotted(entry))
        else:
            yield key


def _public(options: dict[str, Any]) -> dict[str, Any]:
    """Return options after a check that no source among them has a login, which would be copied into files."""
    for value in options.values():
        if isinstance(value, str):
            public_source(value)
    return options


@settings(kw_only=True)
class EnvSection(WorkerLimits):
    """Environment of the recipe and its options."""

    name: str
    """Registered name of the environment, see ``reflectrl check-env --list``."""
    options: Annotated[dict[str, Any], AfterValidator(_public)] = field(default_factory=dict)
    """Parameters of the environment's constructor, e.g. stage and horizon."""
    workers: CountOrZero = 0
    """Number of worker processes for environments, at most one per core; 0 runs them in the main process, without crash
    isolation."""


class DatasetSection(Section):
    """Dataset of questions about repositories, which gen-data makes for environments with the option ``dataset``."""

    repositories: Annotated[list[Source], Field(min_length=1)]
    """Folders, git URLs, ``pypi:NAME==VERSION`` (a package's source archive), ``company:nano`` or ``company:full``."""
    held_out: list[Source] = []
    """Further repositories, used only by the evaluation split ``unseen``."""
    writer: Literal["extractive", "paraphrased", "openai"] = "extractive"
    """Source of the questions: the files' headings, docstrings and columns; the same paraphrased, without words of the
    path and words that occur in only one file; or a chat endpoint."""
    files: Count | None = None
    """Number of files of each repository to ask about, drawn with the seed; absent: all files."""
    per_file: Count = 3
    """Maximum number of questions about a file."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of the writer ``openai``."""


@settings()
class HistorySection(History):
    """What prompts show of past steps, see ``reflectrl.prompts.History``."""


def in_full(history: object) -> object:
    """Return the value of ``prompt.history``, in which a number stands for the number of steps, as a section."""
    return {"steps": history} if type(history) is int else history


@settings(kw_only=True)
class PromptSection(PromptLayout):
    """The layout of every prompt, see ``reflectrl.prompts.PromptFormat``."""

    history: Annotated[HistorySection, BeforeValidator(in_full)] = HistorySection()
    """What is shown of past steps; a number ``n`` stands for ``{steps: n}``, the last ``n`` actions."""
    instructions: bool = True
    """Start each prompt with the environment's instructions."""

    def layout(self, instructions: str) -> PromptFormat:
        """Return the layout for an environment with these ``instructions``."""
        shared = {each.name: getattr(self, each.name) for each in fields(PromptLayout)}
        history = History(**asdict(self.history))  # of a plain class, so that layouts of any origin are equal
        return PromptFormat(instructions=instructions if self.instructions else "", **{**shared, "history": history})


class _Players(Section):
    """Players of an episode, by role; a key that is not a role is a seat of the user's own, and names its class."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[dict[str, Any], BeforeValidator(own_settings)]] = Field(init=False)

    @model_validator(mode="after")
    def _own_roles_have_names(self) -> _Players:
        taken = {"env", NOVELTY, *TEXT_REWARDS, *dir(_Players)}
        if odd := [name for name in self.own if name in taken or not re.fullmatch(r"[a-z][a-z0-9_]*", name)]:
            raise ValueError(
                f"a seat of your own is called {odd[0]!r}; expected lower-case letters, digits and '_', and a name "
                "that means nothing else"
            )
        return self

    @property
    def own(self) -> dict[str, dict[str, Any]]:
        """The seats of the user's own that are not empty, by role."""
        return {name: settings for name, settings in (self.__pydantic_extra__ or {}).items() if settings}

    @property
    def frozen(self) -> Iterator[tuple[SeatKind, SeatSection]]:
        """The library's seats that the recipe has a section for, with these."""
        return ((kind, section) for kind in SEATS if (section := getattr(self, kind.role.name)) is not None)


if TYPE_CHECKING:

    class PlayersSection(_Players):
        """Players of an episode; the roles of ``SEATS`` are its fields."""

        policy: PolicyPlayerSection = PolicyPlayerSection()

        def __getattr__(self, role: str) -> Any:
            """Return the section of a role."""
            ...

else:
    _SECTIONS = {kind.role.name: (kind.section, kind.default, kind.about) for kind in SEATS}
    _SECTIONS[POLICY.name] = (
        PolicyPlayerSection,
        PolicyPlayerSection(),
        "Settings of the policy's text, and a chat model to compare the policy with.",
    )
    PlayersSection = create_model(
        "PlayersSection",
        __base__=_Players,
        __doc__=_Players.__doc__,
        __module__=__name__,
        **{
            role: (section if default else section | None, Field(default, description=about))
            for role, (section, default, about) in _SECTIONS.items()
        },
    )


class DataSection(Section):
    """Stage 1a, gen-data (Algorithm 1, lines 1-20)."""

    teacher: Literal["expert", "openai", "random"] = "expert"
    """Teacher: the environment's expert (offline); a chat endpoint; or random actions without words, from which a
    recipe with neither SFT nor a reflector gets its tokenizer, and which add nothing to ``demonstrations``."""
    trajectory: Literal["teacher", "oracle"] = "oracle"
    """Source of the actions: the teacher (reflect, then choose), or the expert, with reflections based on a spoiler."""
    noise: Fraction = 0.0
    """Probability of a random action instead of the expert's (noisy-oracle trajectories)."""
    demonstrations: list[str] | None = None
    """Files of episodes from ``reflectrl play --save``, relative to the working folder. Their samples count towards
    ``samples``, and the teacher adds what is missing; steps of validation and test tasks, or in an initial state of
    one, are left out."""
    samples: Count = 100
    """Number of samples (steps) to collect, positive and negative together."""
    negatives: Fraction = 0.5
    """Probability of a negative sample at each step; 1 in Algorithm 1 (section 4.2)."""
    reflection_dropout: Fraction = 0.0
    """Fraction of the policy's rows whose reflection is removed or, equally often, replaced by another row's, so that
    the policy does not rely on reflections alone."""
    misread: Fraction = 0.0
    """Fraction of the rows of a policy that writes thoughts without a reflector which have thought and action of
    another row, as if the state had been misread; RL then has thoughts to improve."""
    concurrency: Count = 8
    """Number of teacher episodes played concurrently."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of the teacher ``openai``."""


class SFTPlayerSection(Section):
    """Stage 1b, supervised fine-tuning, for one player (section 4.1.2)."""

    steps: Count = 300
    """Maximum number of optimizer steps; training ends earlier with ``patience``, and the best weights are kept."""
    held_out: Annotated[float, Field(ge=0.0, le=0.5)] = 0.1
    """Fraction of the rows that training does not see, all of some tasks, or of some episodes where tasks are few: on
    them, 256 at most, its loss and accuracy are checked. With 0, or where they would be fewer than 16, none are, and
    the last weights are kept."""
    check_every: Count | None = None
    """Number of steps between checks, of which the last step is one as well; absent: a twentieth of ``steps``, at least
    10."""
    patience: Count | None = None
    """Number of successive checks, none better than the best by 0.005, after which the learning rate falls to 0,
    from the best weights on and within a quarter of the steps so far, and training ends; absent: never before
    ``steps``."""
    batch_size: Count = 32
    """Rows per optimizer step, of all processes together."""
    micro_batch_size: Count = 32
    """Rows per forward pass; the gradients of a batch are accumulated."""
    learning_rate: Positive = 2e-4
    """Peak learning rate."""
    warmup: Fraction = 0.1
    """Fraction of the steps with a rising learning rate."""
    lr_scheduler_type: Literal["cosine", "constant_with_warmup"] = "cosine"
    """Learning rate after the warm-up: falling along a cosine, or constant."""
    weight_decay: NonNegative = 0.001
    """AdamW weight decay."""
    max_grad_norm: Positive = 0.3
    """Maximum gradient norm; larger gradients are scaled down to it."""
    max_rows: Count | None = None
    """Use only the first ``max_rows`` rows; after fewer rows, a policy has more left to explore in RLFT."""


class SFTPolicySection(SFTPlayerSection):
    """Stage 1b, supervised fine-tuning, for the policy."""

    label_smoothing: Fraction = 0.0
    """Probability mass spread evenly over the menu's labels, so that the policy enters RLFT with some entropy."""
    own_reflections: Fraction = 0.0
    """Fraction of the rows with the teacher's reflection that show the trained reflector's instead, as at play, so
    that the policy learns how far to trust them; needs ``players.reflector.player=local``."""


class SFTSection(Section):
    """Stage 1b, supervised fine-tuning of both players, each from the base model."""

    reflector: SFTPlayerSection = SFTPlayerSection()
    """Settings of the reflector's training."""
    policy: SFTPolicySection = SFTPolicySection()
    """Settings of the policy's training, also used for a single player, except for its number of reflector rows."""
    enabled: bool = True
    """Run this stage; false starts RLFT from the base model (the "RLFT only" ablation)."""
    drop_long_rows: bool = False
    """Leave out rows that do not fit ``model.max_length`` even when cut as in rollouts, instead of refusing them."""


Tracker = Literal["aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"]


class TrackingSection(Section):
    """Experiment trackers, and what the run is called in them."""

    trackers: list[Tracker] = []
    """Trackers of those that ``accelerate`` knows; they must be installed. tensorboard, trackio, wandb and clearml also
    show a few recorded episodes every ``rlft.save_every`` iterations."""
    name: str | None = None
    """Name of the run, to which the stage's is added, for trackio the folder's too; null: that of the run folder."""
    group: str | None = None
    """Group of runs that belong together, such as the seeds of a sweep; a tag where a tracker has no groups."""
    tags: list[str] = []
    """Tags of the run, for trackers that have them; all record them with the recipe."""


def trackers_in_full(given: object) -> object:
    """Return the value of ``report_to``, in which names of trackers may stand alone, as a section."""
    if given == "none":
        return {}
    named = [given] if isinstance(given, str) else given
    return {"trackers": named} if isinstance(named, list) else given


class Recipe(Section):
    """One experiment."""

    name: str
    """Name of the run folder."""
    description: str = ""
    """Purpose of the recipe, in a sentence."""
    seed: CountOrZero = 0
    """Seed of all random draws."""
    budget: BudgetSection | None = None
    """Time for the run, from which the settings follow that the recipe does not state; absent: every setting has the
    fixed default of its section."""
    report_to: Annotated[TrackingSection, BeforeValidator(trackers_in_full)] = TrackingSection()
    """Experiment trackers for the metrics of each stage; a name or a list of names stands for ``{trackers: ...}``, and
    ``none`` for none."""
    env: EnvSection
    """Environment and its options."""
    dataset: DatasetSection | None = None
    """Dataset of tasks made from repositories; absent for environments with built-in tasks."""
    prompt: PromptSection = PromptSection()
    """Layout of the prompts."""
    model: ModelSection = ModelSection()
    """Base model of both players."""
    reflector_model: ModelSection | None = None
    """Base model of the reflector; absent: the same as the policy's."""
    players: PlayersSection = PlayersSection()
    """Players of an episode, by role."""
    data: DataSection = DataSection()
    """Settings of gen-data."""
    sft: SFTSection = SFTSection()
    """Settings of supervised fine-tuning."""
    rlft: RLFTSection | None = RLFTSection()
    """Settings of reinforcement learning; null for the "SFT only" ablation."""
    eval: EvalSection = EvalSection()
    """Settings of the evaluation."""

    def layout(self, instructions: str) -> PromptFormat:
        """Return the layout of the prompts for an environment with these ``instructions``."""
        read = {"policy": self.model, "reflector": self.reflector_model or self.model}
        seen = {role: section.images for role, section in read.items() if role == "policy"}
        for kind, section in self.seated:
            own = read.get(kind.role.name)
            seen[kind.role.name] = section.sees_pictures(base=own is not None and own.images)
        images = tuple(role for role, pictured in seen.items() if pictured)
        carry, roles = self.players.reflector.carry, own_roles(self.players.own)
        return replace(self.prompt.layout(instructions), images=images, carry=carry, roles=roles)

    @property
    def seated(self) -> Iterator[tuple[SeatKind, SeatSection]]:
        """The library's frozen players in training and evaluation, with their sections."""
        yield from self.players.frozen
        if self.eval.memory is not None:
            yield MEMORY, self.eval.memory

    @property
    def reading_roles(self) -> tuple[str, ...]:
        """Roles whose players read the states, not only the environment's hints."""
        return (POLICY.name, *(kind.role.name for kind, section in self.seated if section.reads_states))

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.rlft is None and "rlft" in self.eval.policies:
            raise ValueError("eval.policies names rlft but the recipe has no rlft section; remove one of the two")
        if not self.sft.enabled and "sft" in self.eval.policies:
            raise ValueError("eval.policies names sft but sft.enabled is false; remove one of the two")
        if self.budget is not None and self.dataset is not None:
            raise ValueError(
                "budget measures the environment before gen-data makes the tasks of dataset; remove budget and state "
                "the settings, or remove dataset"
            )
        learns = self.sft.enabled or self.players.reflector.player != "none"
        if self.data.teacher == "random" and learns and not self.data.demonstrations:
            raise ValueError(
                "data.teacher=random says nothing and knows no action, so nobody can learn from it; set "
                "sft.enabled=false and players.reflector.player=none, give data.demonstrations, or another teacher"
            )
        self._check_rewards()
        self._check_thoughts()
        self._check_memory()
        for _, section in self.seated:
            section.check(self)
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

    def _check_thoughts(self) -> None:
        """Refuse settings of thoughts if the policy writes none."""
        writes, policy = self.prompt.action_mode != "enumerated", self.players.policy
        if not writes and (policy.max_new_tokens, policy.temperature) != (64, 1.0):
            raise ValueError(
                "players.policy has settings of what a policy writes, but with prompt.action_mode=enumerated it writes "
                "nothing; remove max_new_tokens and temperature, or set prompt.action_mode to another"
            )
        if policy.server is not None:
            needs = {
                "another prompt.action_mode than enumerated, which writes nothing": writes,
                "model.lora, whose adapter a server is given before each rollout; all weights would take too long": (
                    self.model.lora is not None
                ),
                "prompt.labels=letters or numbers, since servers take no adapter with new tokens": (
                    self.prompt.labels != "added"
                ),
                "model.images=false": not self.model.images,
                "players.reflector.trained=false": not self.players.reflector.trained,
                "its base_url, an address such as http://127.0.0.1:8000/v1": policy.server.base_url is not None,
            }
            if missing := [need for need, there in needs.items() if not there]:
                raise ValueError(f"players.policy.server needs {'; '.join(missing)}: set these, or remove it")
        reflects = self.players.reflector.player != "none"
        thinks = self.prompt.action_mode in THOUGHTS
        if self.data.misread and (reflects or not thinks):
            missing = [f"prompt.action_mode to {' or '.join(THOUGHTS)}"] * (not thinks)
            missing += ["players.reflector.player to none"] * reflects
            raise ValueError(
                "data.misread changes what a policy without a reflector learns to think; remove it, or set "
                f"{' and '.join(missing)}"
            )
        if self.rlft is not None and self.rlft.terms.sft_thought is not None and self.players.corrector is None:
            raise ValueError(TOGETHER)
        if self.rlft is not None:
            try:
                check_action_mode(self.rlft, self.prompt.action_mode, reflects=self.players.reflector.trained)
            except InvalidInput as error:
                raise ValueError(f"rlft.{error}") from error

    def _check_rewards(self) -> None:
        if self.rlft is None:
            return
        mode = self.prompt.action_mode
        rating = {kind.role.name for kind, _ in self.players.frozen if kind.role.when == "episode_end"}
        known = {
            "env",
            NOVELTY,
            *rating,
            *self.players.own,
            *(name for name, modes in TEXT_REWARDS.items() if mode in modes),
        }
        if unknown := set(self.rlft.rewards) - known - set(TEXT_REWARDS):
            raise ValueError(
                f"rlft.rewards names {min(unknown)}, but no such player of the recipe rates episodes; known: "
                f"{', '.join(sorted(known))}"
            )
