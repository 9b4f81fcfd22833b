from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput, ReflectRLError, WorkFailed, nearest


def test_exit_codes_are_2_for_input_and_1_for_work():
    assert (InvalidInput.exit_code, WorkFailed.exit_code) == (2, 1)


@pytest.mark.parametrize(("error", "builtin"), [(InvalidInput, ValueError), (WorkFailed, RuntimeError)])
def test_errors_are_caught_as_ours_and_as_the_builtin_kind(error, builtin):
    assert issubclass(error, ReflectRLError)
    assert issubclass(error, builtin)


def test_nearest_puts_a_close_name_first_and_lists_all_sorted():
    assert nearest("dropof", ["pickup", "dropoff", "full"]) == "did you mean 'dropoff'? Known: dropoff, full, pickup."


def test_nearest_does_not_guess_from_afar():
    assert nearest("xyz", ["pickup", "full"]) == "Known: full, pickup."


def test_nearest_of_nothing_says_none():
    assert nearest("xyz", []) == "Known: none."
