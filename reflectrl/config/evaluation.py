"""The recipe's section ``eval``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from reflectrl.config.memory import MemoryPlayerSection
from reflectrl.core.settings import Count, Section
from reflectrl.endpoint.endpoint import Endpoint

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
"""Pattern of names that may be part of a file name."""
_REFLECTIONS = ("local", "remote", "expert", "none", "self", "blank", "shuffled")
"""Names that ``eval.reflectors`` may not use, because other rows have them."""


class ReflectorSection(Section):
    """Another reflector for the RLFT policy at evaluation (section 6): that of a run, or one behind an endpoint."""

    name: str
    """Name in the table and in the files of its episodes."""
    run: str | None = None
    """Folder of a run or of an exported agent whose fine-tuned reflector is taken; a path from the working folder."""
    endpoint: Endpoint | None = None
    """Chat endpoint to ask instead."""

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
    """Trials over the same tasks, of which later ones remember what succeeded in earlier ones (RAP, section 3)."""

    count: Annotated[int, Field(ge=2)] = 3
    """Trials; each plays every task of the split once, sampled."""
    policies: Annotated[list[Literal["sft", "rlft", "remote"]], Field(min_length=1)] = ["rlft"]
    """Policies of ``eval.policies`` that play them."""
    begin_with: Literal["nothing", "teacher"] = "nothing"
    """What is remembered in the first trial: nothing, so that it is one without a memory (the paper's ReAct), or the
    teacher's successful episodes, which the later trials remember as well (the paper's RAP_train)."""
    control: bool = True
    """Play the same trials without any memory too, which tells what trying again is worth alone; in a recipe without a
    memory there are no others."""


class EvalSection(Section):
    """Evaluation on a fixed task list."""

    split: str | list[str] = "test"
    """Task split to play, or a list of them; each is played by itself."""
    tasks: list[str] = []
    """Only tasks whose id starts with one of these; empty for all."""
    groups: list[str] = []
    """Beginnings of task ids: the tasks of each get rows of their own, from the same episodes."""
    env: dict[str, Any] = {}
    """Environment options that differ from ``env.options``."""
    max_tasks: Count | None = None
    """The first so many tasks of the split; absent: all."""
    episodes: Count = 300
    """Sampled episodes of a split; the tasks are played in turn."""
    batch_size: Count = 64
    """Episodes played side by side; it does not change the result."""
    policies: list[Literal["random", "zero_shot", "base", "sft", "rlft", "expert", "remote"]] = [
        "random",
        "sft",
        "rlft",
        "expert",
    ]
    """Rows of the table; ``base`` is the policy before any training, ``zero_shot`` the same without reflections, and
    ``remote`` the endpoint of ``players.policy``."""
    greedy: bool = True
    """Also play each task once with the most probable action."""
    controls: list[Literal["blank", "shuffled", "expert"]] = []
    """Play the RLFT policy with blank, shuffled or the expert's reflections as well."""
    reflectors: list[ReflectorSection] = []
    """Play the RLFT policy with other reflectors as well."""
    memory: MemoryPlayerSection | None = None
    """A memory of the teacher's successful episodes for trained policies at evaluation alone, which were trained
    without one; absent: that of ``players.memory``, if any."""
    trials: TrialsSection | None = None
    """Also play the tasks in trials that remember each other; absent: none."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits to play."""
        return (self.split,) if isinstance(self.split, str) else tuple(self.split)

    @model_validator(mode="after")
    def _each_once(self) -> EvalSection:
        if not self.splits or not all(re.fullmatch(NAME, split) for split in self.splits):
            raise ValueError(f"split is {self.split!r}; expected the name of one or several splits, such as test")
        names = [reflector.name for reflector in self.reflectors]
        for key, values in (("split", self.splits), ("groups", self.groups), ("reflectors", names)):
            if twice := [value for value in dict.fromkeys(values) if list(values).count(value) > 1]:
                raise ValueError(f"{key} has {twice[0]!r} more than once; name each once")
        return self
