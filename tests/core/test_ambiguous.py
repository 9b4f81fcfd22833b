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


def test_two_pasts_whose_last_state_looks_the_same_are_found_with_the_actions_that_they_need() -> None:
    found = ambiguous_states(Note(), episodes=6, seed=0)
    assert found is not None
    assert (found.text, found.pasts) == ("Doors.", (("walk", "walk"),) * 2)
    assert found.tasks == tuple(f"train-{door}" for door in found.actions)
    assert len({*found.actions} & {*DOORS}) == 2
    assert (found.share, found.unexplained) == (pytest.approx(1 / 3), 0)
    assert found.privileged == 0
    assert found == ambiguous_states(Note(), episodes=6, seed=0)
    assert str(found) in check_env(Note())


def test_an_expert_that_knows_what_no_player_can_is_found_by_its_different_actions_after_equal_pasts() -> None:
    found = ambiguous_states(Guessed(), episodes=6, seed=0)
    assert found is not None
    assert (found.share, found.privileged) == (found.unexplained, pytest.approx(1 / 3))
    assert "Put what is needed into the text." in str(found)


@pytest.mark.parametrize("env", [Told(), Unknown(), make_env("number_line", size=6)])
def test_nothing_is_found_where_the_text_tells_all(env: NatLangEnv) -> None:
    assert ambiguous_states(env, episodes=6, seed=0) is None
