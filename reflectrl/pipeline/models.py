"""``RunModels``: environments and local models of a run, made from its recipe and its folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from typing import Any

from transformers.utils import logging as transformers_logging

from reflectrl.config import Recipe
from reflectrl.config.environment import recipe_env
from reflectrl.config.model import ModelSection
from reflectrl.core import NatLangEnv
from reflectrl.core.layout import BASE, BASE_REFLECTOR, DATASET, POLICY, REFLECTOR, REFLECTOR_RLFT, sft_rows_file
from reflectrl.core.seeds import derive_seed
from reflectrl.data_gen.rows import read_rows
from reflectrl.models.builtin import make_base
from reflectrl.models.encode import PromptEncoder
from reflectrl.models.load import BUILTIN, LanguageModel, load_model, new_model
from reflectrl.models.precision import with_precision
from reflectrl.models.tokenizer import label_ids
from reflectrl.pipeline.folder import RunFolder
from reflectrl.prompts import PromptFormat, labels


class RunModels:
    """Environments and local models of one run, which are loaded when asked for."""

    def __init__(self, recipe: Recipe, run: RunFolder) -> None:
        transformers_logging.disable_progress_bar()  # its progress bars would break the stage's own
        transformers_logging.set_verbosity_error()
        self.recipe = recipe
        self.run = run
        self._whole_dataset = False

    def env(self, options: Mapping[str, Any]) -> NatLangEnv:
        """Return a new environment; ``options`` override the recipe's."""
        if self.recipe.dataset is not None and not self._whole_dataset:
            self.run.verified(DATASET, "gen-data")
            self._whole_dataset = True
        return recipe_env(self.recipe, self.run.path, options)

    @cached_property
    def instructions(self) -> str:
        """Instructions of the recipe's environment."""
        with closing(self.env({})) as env:
            return env.instructions

    @cached_property
    def layout(self) -> PromptFormat:
        """Layout of the prompts."""
        return self.recipe.layout(self.instructions)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Labels of the longest menu."""
        with closing(self.env({})) as env:
            return labels(self.layout.labels, env.max_actions)

    def section(self, role: str) -> ModelSection:
        """Return the model section of the ``reflector`` or the ``policy``, with the precision of this run."""
        section = self.recipe.reflector_model if role == "reflector" else None
        return with_precision(section or self.recipe.model)

    def base(self, role: str) -> ModelSection:
        """Return the section of a role with a base that can be loaded; the built-in base is written to the folder."""
        files = (self.run.verified(sft_rows_file(name), "gen-data") for name in ("reflector", "policy"))
        rows = [row for file in files for row in read_rows(file)]
        return make_base(
            self.section(role),
            self.run / self._base_folder(role),
            corpus=[row.prompt.text + row.written(self.layout.action_mode) for row in rows],
            labels=self.labels,
            seed=derive_seed(self.recipe.seed, "base"),
        )

    def _base_folder(self, role: str) -> str:
        return BASE_REFLECTOR if role == "reflector" and self.recipe.reflector_model else BASE

    def load(self, name: str, *, trainable: bool = False) -> LanguageModel:
        """Load a model of this run by the name of its folder; ``base`` is the policy before any training."""
        if name == BASE:
            seed = derive_seed(self.recipe.seed, "new", "policy")
            return new_model(self.base("policy"), labels=self.labels, seed=seed)
        made_by = "rlft" if name in (POLICY, REFLECTOR_RLFT) else "sft"
        role = "reflector" if name in (REFLECTOR, REFLECTOR_RLFT) else "policy"
        section, folder = self.section(role), self.run.verified(name, made_by)
        base = self._base_folder(role)
        if section.lora is not None and section.name == BUILTIN and (self.run / base).is_dir():
            self.run.verified(base, "sft")
        return load_model(folder, section, trainable=trainable)

    def frozen(self, section: ModelSection, role: str) -> LanguageModel:
        """Return a model that is not trained."""
        lm = new_model(with_precision(section), labels=(), seed=derive_seed(self.recipe.seed, "new", role))
        lm.model.requires_grad_(False)
        return lm

    def encoder(self, lm: LanguageModel) -> PromptEncoder:
        """Return the encoder of a policy's prompts."""
        ids = label_ids(lm.tokenizer, self.labels)
        return PromptEncoder(lm.tokenizer, ids, self.recipe.model.max_length, pictures=lm.pictures)
