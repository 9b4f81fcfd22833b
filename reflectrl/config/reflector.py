"""Recipe section of the reflector, and the requirements for training it along with the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from reflectrl.core.settings import Count, CountOrZero, NonNegative, Section
from reflectrl.endpoint.endpoint import Endpoint

if TYPE_CHECKING:
    from reflectrl.config.schema import Recipe


class ReflectorPlayerSection(Section):
    """The player that reflects before each action (section 4.1); it is frozen unless ``trained``."""

    player: Literal["local", "remote", "expert", "none", "self"] = "local"
    """The fine-tuned local model, an endpoint, the expert, none, or the policy itself (appendix F.2)."""
    trained: bool = False
    """Train ``local`` in RLFT as well, with the policy's advantages, as a separate adapter on the policy's base. Its
    reflections are sampled at ``temperature`` in RLFT, and greedy elsewhere."""
    max_new_tokens: Count = 100
    """Maximum length of a local model's reflection, in tokens; the default is the public code's."""
    temperature: NonNegative = 0.0
    """Sampling temperature of a local model; at 0 it is greedy, so that its reflections can be cached exactly."""
    cache_size: CountOrZero = 100_000
    """Maximum number of cached reflections of a greedy model; 0 for none. A model in training has no cache."""
    endpoint: Endpoint = Endpoint()
    """Chat endpoint of ``remote``."""
    carry: bool = False
    """Show the reflector its reflection of the step before, for it to rewrite: a memory of constant length, which the
    policy reads in its latest form only. The expert's reflections then build on each other, too."""

    @property
    def temperature_at_play(self) -> float:
        """Sampling temperature outside of RLFT: ``temperature`` for a frozen reflector, 0 for one that RLFT trains."""
        return 0.0 if self.trained else self.temperature


def check_carry(recipe: Recipe) -> None:
    """Check that the reflector of a recipe with ``carry`` reads what it is shown.

    Raises:
        ValueError: it does not.

    """
    player = recipe.players.reflector.player
    if recipe.players.reflector.carry and player in ("none", "expert"):
        raise ValueError(
            "players.reflector.carry shows the reflector its last reflection, but players.reflector.player is "
            f"{player}, which reads none; set player to local, remote or self, or carry to false"
        )


def check_trained_reflector(recipe: Recipe) -> None:
    """Check that a recipe whose reflector is trained meets the requirements of that setting.

    Raises:
        ValueError: it does not; the message lists what is missing.

    """
    settings, model, rlft = recipe.players.reflector, recipe.model, recipe.rlft
    memory = recipe.players.memory
    needs = {
        f"player=local, a model of this process, not {settings.player}": settings.player == "local",
        "model.lora, an adapter for each player on one base, e.g. model.lora: {r: 64}": model.lora is not None,
        "the policy's base for both, so no reflector_model": recipe.reflector_model is None,
        "a base of text, so model.images=false": not model.images,
        "a temperature above 0, at which its reflections are sampled": settings.temperature > 0,
        "sft.enabled=true, which teaches it first": recipe.sft.enabled,
        "an rlft section": rlft is not None,
        "prompt.action_mode=enumerated or thought_choice, not json": recipe.prompt.action_mode != "json",
        "carry=false: a reflection that is sampled along with the action is not shown again": not settings.carry,
        "no players.corrector, which knows no reflections": recipe.players.corrector is None,
        "no rlft.terms.kl, which knows menus alone": rlft is None or rlft.terms.kl is None,
        "a memory whose key is observation or none: it speaks before the reflection is there": (
            memory is None or memory.key in ("observation", "none")
        ),
    }
    if missing := [need for need, there in needs.items() if not there]:
        raise ValueError(
            f"players.reflector.trained=true needs {'; '.join(missing)}: change that, or set trained to false"
        )
