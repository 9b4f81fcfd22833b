"""The recipe's section ``eval``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from reflectrl.core.settings import Count, Section
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.seats.memory import MemoryPlayerSection

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
"""Pattern of names that may be part of a file name."""
_REFLECTIONS = ("local", "server", "remote", "expert", "none", "self", "blank", "shuffled")
"""Names that ``eval.reflectors`` may not use, because other rows of the table have them."""


class ReflectorSection(Section):
    """Another reflector for the RLFT policy at evaluation (section 6): from another run, or behind an endpoint."""

    name: str
    """Name of the reflector in the table and in the names of episode files."""
    run: str | None = None
    """Folder of a run or exported agent whose fine-tuned reflector is used; relative to the working folder."""
    endpoint: Endpoint | None = None
    """Chat endpoint to use instead of a run's reflector."""

    @model_validator(mode="after")
    def _one_of_two(self) -> ReflectorSection:
        if not re.fullmatch(NAME, self.name):
            raise ValueError(f"a reflector is called {self.name!r}; expected letters, digits, '.', '_' and '-' only")
        if self.name in _REFLECTIONS:
            raise ValueError(f"a reflector may not be called {self.name!r}, which means another one; rename it")
        if (self.run is None) == (self.endpoint is None):
            raise ValueError("a reflector is taken from a run or asked through an endpoint; set one of the two")
        return self


class TrialsSection(Section):
    """Repeated trials on the same tasks, with a memory of the successes of earlier trials (RAP, section 4.1)."""

    count: Annotated[int, Field(ge=2)] = 3
    """Number of trials; each plays every task of the split once, with sampled actions."""
    policies: Annotated[list[Literal["sft", "rlft", "remote"]], Field(min_length=1)] = ["rlft"]
    """Policies of ``eval.policies`` that play the trials."""
    begin_with: Literal["nothing", "examples", "teacher"] = "nothing"
    """Content of the memory in the first trial: nothing; two episodes of the teacher, the same for all tasks of a type,
    whole if the memory's ``max_chars`` allows it, which later trials do not see (``examples``, as in the paper's ReAct,
    which has no planner); or the teacher's successful episodes, which later trials keep (``teacher``, the paper's
    RAP_train)."""
    control: bool = True
    """Also play the same trials without a memory, which measures the effect of repetition alone; in a recipe without a
    memory these are the only trials."""


class EvalSection(Section):
    """Evaluation on a fixed task list."""

    split: str | list[str] = "test"
    """Task split to play, or a list of splits, which are played separately."""
    tasks: list[str] = []
    """Prefixes of task ids; only tasks with one of them are played, all if empty."""
    groups: list[str] = []
    """Prefixes of task ids; the table has additional rows for the tasks of each prefix, from the same episodes."""
    env: dict[str, Any] = {}
    """Environment options that differ from ``env.options``."""
    max_tasks: Count | None = None
    """Number of tasks of a split to play, from its first; absent: all."""
    episodes: Count = 300
    """Number of episodes per split with sampled actions; the tasks are played in turn."""
    batch_size: Count = 64
    """Number of episodes played in parallel; it does not change the result."""
    policies: Annotated[
        list[Literal["random", "zero_shot", "base", "sft", "rlft", "expert", "remote"]], Field(min_length=1)
    ] = ["random", "sft", "rlft", "expert"]
    """Policies to evaluate; ``base`` is the policy before any training, ``zero_shot`` the same without reflections, and
    ``remote`` the endpoint of ``players.policy``."""
    greedy: bool = True
    """Also play each task once with the most probable action."""
    controls: list[Literal["blank", "shuffled", "expert"]] = []
    """Also play the RLFT policy with blank, shuffled or the expert's reflections."""
    reflectors: list[ReflectorSection] = []
    """Also play the RLFT policy with other reflectors."""
    memory: MemoryPlayerSection | None = None
    """Memory of the teacher's successful episodes at evaluation only, for policies that were trained without a memory;
    absent: that of ``players.memory``, if any."""
    trials: TrialsSection | None = None
    """Also play the tasks in repeated trials, with a memory of earlier trials; absent: no trials."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits to play."""
        return (self.split,) if isinstance(self.split, str) else tuple(self.split)

    @model_validator(mode="after")
    def _each_once(self) -> EvalSection:
        if not self.splits or not all(re.fullmatch(NAME, split) for split in self.splits):
            raise ValueError(f"split is {self.split!r}; expected the name of one or several splits, such as test")
        names = [reflector.name for reflector in self.reflectors]
        lists = {"split": self.splits, "groups": self.groups, "policies": self.policies, "controls": self.controls}
        trials = {} if self.trials is None else {"trials.policies": self.trials.policies}
        for key, values in {**lists, **trials, "reflectors": names}.items():
            if twice := [value for value in dict.fromkeys(values) if list(values).count(value) > 1]:
                raise ValueError(f"{key} has {twice[0]!r} more than once; name each once")
        return self
