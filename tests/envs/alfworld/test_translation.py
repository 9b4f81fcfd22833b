from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput
from reflectrl.envs.alfworld.games import make_game
from reflectrl.envs.alfworld.translation import packed_translation, translate

GAME, OTHER = (make_game("pick_and_place_simple", seed, object="Tomato", scene=14) for seed in (5, 6))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    packed_translation.cache_clear()
    return tmp_path


def translated(game):
    """Translate as a new process would."""
    packed_translation.cache_clear()
    return translate(game.domain, game.problem)


def files(home):
    return {path for path in home.rglob("*") if path.is_file()}


def test_a_translation_is_kept_and_the_kept_one_is_used_unless_it_is_damaged(home):
    first = translated(GAME)
    (kept,) = files(home)
    whole, written = kept.read_bytes(), kept.stat().st_mtime_ns
    assert translated(GAME) == first
    assert kept.stat().st_mtime_ns == written
    other = translated(OTHER)
    (new,) = files(home) - {kept}
    kept.write_bytes(new.read_bytes())
    assert translated(GAME) == other != first
    for damaged in (b"", b"no archive", b"x\x9cK\xaf\x02\x00\x02\x93\x01Q"):  # the last one is an archive of no JSON
        kept.write_bytes(damaged)
        assert translated(GAME) == first
        assert kept.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(home):
    (home / "reflectrl").write_text("a file where the folder should be")
    assert translated(GAME).facts


def test_a_problem_that_cannot_be_translated_is_not_kept(home):
    with pytest.raises(InvalidInput):
        translate(GAME.domain, GAME.problem.replace("(:goal", "(:gaol"))
    assert not files(home)
