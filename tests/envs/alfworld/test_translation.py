from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput
from reflectrl.envs.alfworld.games import make_game
from reflectrl.envs.alfworld.translation import translate

GAME = make_game("pick_and_place_simple", 5, object="Tomato", receptacle="Microwave", scene=14)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    translate.cache_clear()
    return tmp_path


def anew():
    """Translate as a new process would."""
    translate.cache_clear()
    return translate(GAME.domain, GAME.problem)


def files(home):
    return [path for path in home.rglob("*") if path.is_file()]


def test_a_translation_is_kept_and_read_back_as_it_was(home):
    first = anew()
    (kept,) = files(home)
    written = kept.stat().st_mtime_ns, kept.stat().st_ino
    assert anew() == first
    assert (kept.stat().st_mtime_ns, kept.stat().st_ino) == written


def test_what_was_kept_is_what_is_played(home):
    anew()
    (kept,) = files(home)
    other = make_game("pick_and_place_simple", 6, object="Tomato", receptacle="Microwave", scene=14)
    theirs = translate(other.domain, other.problem)
    (new,) = set(files(home)) - {kept}
    kept.write_bytes(new.read_bytes())
    assert anew() == theirs


@pytest.mark.parametrize("torn", [b"", b"no archive", b"x\x9cK\xaf\x02\x00\x02\x93\x01Q"])
def test_a_torn_file_is_written_anew(home, torn):
    first = anew()
    (kept,) = files(home)
    whole = kept.read_bytes()
    kept.write_bytes(torn)
    assert anew() == first
    assert kept.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(home):
    expected = anew()
    for path in files(home):
        path.unlink()
    (home / "reflectrl" / "alfworld").rename(home / "elsewhere")
    (home / "reflectrl" / "alfworld").write_text("a file where the folder should be")
    assert anew() == expected


def test_a_problem_that_cannot_be_translated_is_not_kept(home):
    translate.cache_clear()
    with pytest.raises(InvalidInput):
        translate(GAME.domain, GAME.problem.replace("(:goal", "(:gaol"))
    assert not files(home)
