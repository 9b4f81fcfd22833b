"""``SFTProgress``: one check of supervised fine-tuning on held-out rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

from reflectrl.core.metric import metric


@dataclass(frozen=True)
class SFTProgress:
    """Loss and accuracy of one player at a check; a single player has a record as reflector and one as policy."""

    step: int
    """Number of optimizer steps that were made."""
    loss: float | None = metric("loss")
    """Mean loss of the training rows since the check before, in nats; ``None`` if a single player had none."""
    held_out_loss: float = metric("held_out_loss")
    """Mean loss of the held-out rows, in nats."""
    accuracy: float = metric("accuracy", fraction=True)
    """Fraction of the held-out rows whose target the player would choose: a policy's label as the most probable of its
    menu, given the teacher's thought if it writes one; a text, a policy's answer in JSON included, to the last token in
    greedy decoding."""
    word_accuracy: float | None = metric("word_accuracy", fraction=True)
    """Fraction of the words of the held-out texts that are the most probable ones after the teacher's words before
    them; ``None`` for a policy that writes nothing."""


def best_check(checks: Collection[Sequence[SFTProgress]]) -> int:
    """Return the place of the check whose weights are kept: the one with the lowest held-out loss, the last of equals.

    Args:
        checks: the checks of each player that the model is trained as, at the same steps; of a single player's two
            losses, the mean counts.

    """
    losses = [fmean(each.held_out_loss for each in row) for row in zip(*checks, strict=True)]
    return min(reversed(range(len(losses))), key=losses.__getitem__)
