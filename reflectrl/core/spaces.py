"""``TextSpace``, and the functions by which gymnasium's ``AsyncVectorEnv`` passes its texts between processes.

Gymnasium batches an unknown space as a ``Tuple`` of copies, so a vector environment takes and returns tuples of texts.
Only shared memory, which ``AsyncVectorEnv`` uses by default, needs functions for the space.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_char
from typing import Any

import gymnasium
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

from reflectrl.core.errors import InvalidInput

MAX_SHARED_BYTES = 1 << 18
"""Maximum length of a text in shared memory, in bytes of UTF-8."""


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


class SharedTexts(Sequence[str]):
    """View of the texts that worker processes wrote last; a deep copy is a tuple, which no longer changes."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def __len__(self) -> int:
        return len(self._memory)

    def __getitem__(self, index: Any) -> Any:
        return self._memory[index].value.decode()

    def __deepcopy__(self, _: object) -> tuple[str, ...]:
        return tuple(self)


@create_shared_memory.register(TextSpace)
def _create(space: TextSpace, n: int = 1, ctx: Any = None) -> Any:  # noqa: ARG001 - gymnasium's signature
    return ctx.Array(c_char * (MAX_SHARED_BYTES + 1), n)


@read_from_shared_memory.register(TextSpace)
def _read(space: TextSpace, shared_memory: Any, n: int = 1) -> SharedTexts:  # noqa: ARG001 - gymnasium's signature
    return SharedTexts(shared_memory.get_obj())


@write_to_shared_memory.register(TextSpace)
def _write(space: TextSpace, index: int, value: str, shared_memory: Any) -> None:  # noqa: ARG001 - as above
    content = value.encode()
    if len(content) > MAX_SHARED_BYTES:
        raise InvalidInput(
            f"an observation of {len(content):,} bytes was to go through shared memory; expected at most "
            f"{MAX_SHARED_BYTES:,}: make AsyncVectorEnv with shared_memory=False."
        )
    shared_memory.get_obj()[index].value = content  # ends at the first NUL; environment texts contain none
