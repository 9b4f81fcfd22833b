"""Settings of RLFT that have an effect with some of the policy's action modes only."""

from __future__ import annotations

from reflectrl.config.rlft import TEXT_REWARDS, RLFTSettings
from reflectrl.core import InvalidInput
from reflectrl.prompts.format import ActionMode


def check_action_mode(settings: RLFTSettings, mode: ActionMode, *, reflects: bool) -> None:
    """Check that settings about what a policy writes, or about its menu, have an effect with its action mode.

    Args:
        settings: settings of the training.
        mode: action mode of the policy.
        reflects: whether a reflector is trained as well, which writes in any mode.

    Raises:
        InvalidInput: a setting that has no effect.

    """
    silent, setting = mode == "enumerated", "the prompt's action_mode"
    if silent and not reflects and settings.thought_lambda != RLFTSettings.thought_lambda:
        raise InvalidInput(
            f"thought_lambda={settings.thought_lambda:g} was given, but with {setting}=enumerated there are no "
            f"thoughts; remove it, or set {setting} to thought_choice or json"
        )
    if silent and settings.terms.sft_thought is not None:
        raise InvalidInput(
            f"terms.sft_thought was given, but with {setting}=enumerated there are no thoughts to correct; remove it "
            f"and the corrector, or set {setting} to thought_choice or json"
        )
    if settings.terms.kl is not None and mode == "json":
        raise InvalidInput(
            "terms.kl is exact over the menu, which an action in JSON is not drawn from; remove it, or set "
            f"{setting} to enumerated or thought_choice"
        )
    if mode != "json" and settings.fallback_credit != RLFTSettings.fallback_credit:
        raise InvalidInput(
            f"fallback_credit={settings.fallback_credit} was given, but with {setting}={mode} each answer names a "
            f"legal action; remove it, or set {setting} to json"
        )
    for source in (each for each in settings.rewards if mode not in TEXT_REWARDS.get(each, (mode,))):
        raise InvalidInput(
            f"rewards names {source}, but {setting} is {mode}; set that to {' or '.join(TEXT_REWARDS[source])}, or "
            "remove the reward"
        )
