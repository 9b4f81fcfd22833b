"""``TextSpace``: the space of observations and actions, as gymnasium asks for one.

Gymnasium batches an unknown space as a ``Tuple`` of copies, so a vector environment takes and returns tuples of texts.
It cannot pass them through shared memory: ``AsyncVectorEnv`` needs ``shared_memory=False``, as it then says itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium

from reflectrl.core.errors import InvalidInput


class TextSpace(gymnasium.Space[str]):
    """The space of all texts.

    ``sample`` draws one of ``offered``, which an environment sets to the legal actions of its state. In a vector
    environment the space is a copy without them, so the caller passes them as a mask:
    ``envs.action_space.sample(mask=tuple(infos["actions"]))``.
    """

    def __init__(self, offered: Sequence[str] = ()) -> None:
        super().__init__(None, str)
        self.offered = offered
        """Texts that ``sample`` draws from."""

    @property
    def is_np_flattenable(self) -> bool:
        """False, because text cannot be flattened to an array."""
        return False

    def sample(self, mask: Sequence[str] | None = None, probability: None = None) -> str:
        """Draw one text uniformly.

        Args:
            mask: the texts to draw from, in place of ``offered``; an empty mask, as after an episode's end, gives "".
            probability: must be ``None``; it is part of gymnasium's signature.

        Raises:
            InvalidInput: a mask that is no sequence of texts, a probability, or nothing to draw from.

        """
        if probability is not None:
            raise InvalidInput("TextSpace.sample was given probabilities; expected none: give the legal texts as mask.")
        if mask is None:
            if not self.offered:
                raise InvalidInput(
                    "an action was to be sampled where none is known to be legal; reset the environment first, and "
                    "give vector environments sample(mask=tuple(infos['actions']))."
                )
            mask = self.offered
        if not isinstance(mask, list | tuple) or not all(isinstance(text, str) for text in mask):
            raise InvalidInput(f"TextSpace.sample was given mask={mask!r}; expected a tuple of legal texts.")
        return mask[int(self.np_random.integers(len(mask)))] if mask else ""

    def contains(self, x: object) -> bool:
        """Return whether ``x`` is a text."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` is a text space; all text spaces are equal."""
        return isinstance(other, TextSpace)

    def __repr__(self) -> str:
        """Return a short form for gymnasium's messages."""
        return "TextSpace()"
