"""Texts that need a memory are found by playing."""

from __future__ import annotations

import pytest
from note import DOORS, Note

from reflectrl.core import NatLangEnv, Observation, check_env, make_env
from reflectrl.core.check import ambiguous_states


class Told(Note):
    """Note whose doors show it again."""

    def observe(self) -> Observation:
        seen = super().observe()
        return Observation(f"{seen.text} The note: {self._door}.", seen.actions)


class Guessed(Note):
    """Note that shows nothing, so that only its expert knows the door."""

    def observe(self) -> Observation:
        return Observation("Somewhere.", super().observe().actions)


class Unknown(Note):
    """Note without an expert."""

    def expert(self) -> None:
        return None


def test_ambiguous_states_are_found() -> None:
    found = ambiguous_states(Note(), episodes=6, seed=0)
    assert found is not None
    assert (found.text, found.pasts) == ("Doors.", (("walk", "walk"),) * 2)
    assert found.tasks == tuple(f"train-{door}" for door in found.actions)
    assert len({*found.actions} & {*DOORS}) == 2
    assert (found.share, found.unexplained) == (pytest.approx(1 / 3), 0)
    assert found.privileged == 0
    assert found == ambiguous_states(Note(), episodes=6, seed=0)
    assert str(found) in check_env(Note())


def test_a_privileged_expert_is_found() -> None:
    found = ambiguous_states(Guessed(), episodes=6, seed=0)
    assert found is not None
    assert (found.share, found.privileged) == (found.unexplained, pytest.approx(1 / 3))
    assert "Put what is needed into the text." in str(found)


@pytest.mark.parametrize("env", [Told(), Unknown(), make_env("number_line", size=6)])
def test_unambiguous_states_are_not_found(env: NatLangEnv) -> None:
    assert ambiguous_states(env, episodes=6, seed=0) is None
