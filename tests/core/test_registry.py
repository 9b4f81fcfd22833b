from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from corridor import corridor
from faulty import restored_registry

from reflectrl.core import InvalidInput, check_env, env_names, make_env, register_env
from reflectrl.core.registry import env_package
from reflectrl.envs.dangerous_taxi import DangerousTaxi
from reflectrl.envs.number_line import NumberLine


@pytest.fixture
def table():
    """Put the table of environments back as it was."""
    with restored_registry():
        yield


def test_make_env_passes_options():
    assert {"dangerous_taxi", "number_line"} <= set(env_names())
    for env in (make_env("dangerous_taxi", stage="dropoff", horizon=7), make_env("dangerous_taxi:dropoff", horizon=7)):
        assert isinstance(env, DangerousTaxi)
        assert (env.name, env.stage, env.horizon) == ("dangerous_taxi", "dropoff", 7)


@pytest.mark.usefixtures("table")
def test_only_the_first_colon_counts():
    class Place(NumberLine):
        def __init__(self, path):
            super().__init__()
            self.path = path

    register_env("place", Place)
    assert make_env("place:C:/games/a b:2.z8").path == "C:/games/a b:2.z8"


@pytest.mark.usefixtures("table")
def test_a_class_registered_under_the_name_of_its_module_is_still_the_class():
    register_env("note", "note:Note")
    assert type(make_env("note:Note")).__name__ == "Note"


@pytest.mark.usefixtures("table")
def test_options_have_the_annotated_types_as_a_file_would_hold_them():
    class Typed(NumberLine):
        def __init__(self, scale: float, names: tuple[str, ...], folder: Path, other=None):
            super().__init__()
            self.given = scale, names, folder, other

    class Untyped(NumberLine):
        def __init__(self, size: Unknown):  # noqa: F821
            super().__init__(size)

    register_env("typed", Typed)
    assert make_env("typed", scale=1, names=["a"], folder="/tmp", other=b"x").given == (1, ["a"], "/tmp", b"x")
    register_env("untyped", Untyped)
    assert make_env("untyped", size=5).size == 5


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("name", "options", "facts"),
    [
        ("dangerous_taxy:full", {}, "'dangerous_taxy'.*'dangerous_taxi'"),
        ("dangerous_taxi", {"stages": "pickup"}, "'dangerous_taxi'.*'stages'.*'stage'"),
        ("dangerous_taxi:ful", {}, "'ful'.*'full'"),
        ("dangerous_taxi:full", {"stage": "pickup"}, "'dangerous_taxi:full'.*stage='pickup'"),
        ("number_line:7", {}, "size='7'"),
        ("no_module", {}, "'no_module'.*'no_such_module'"),
        ("a_record", {}, "'a_record'.*NatLangEnv"),
        ("nameless", {}, "'nameless'"),
        ("dangerous_taxi", {"horizon": True}, "horizon=True; expected a valid integer"),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused(name, options, facts):
    register_env("no_module", "no_such_module:Env")
    register_env("a_record", "reflectrl.core:Task")
    register_env("nameless", type(corridor(name="")))
    with pytest.raises(InvalidInput, match=facts):
        make_env(name, **options)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("target", [NumberLine, "reflectrl.envs.number_line:NumberLine"])
def test_a_registered_environment_is_made_by_us_and_by_gymnasium(target):
    for _ in range(2):  # the same twice is fine
        register_env("line_of_mine", target)
    assert isinstance(make_env("line_of_mine", size=5), NumberLine)
    env = gymnasium.make("reflectrl/LineOfMine-v0", size=5)
    assert (type(env.unwrapped), env.unwrapped.size) == (NumberLine, 5)
    shown = gymnasium.make("reflectrl/LineOfMine-v0", size=5, render_mode="ansi")
    assert shown.reset(seed=0)[0] == shown.render()
    with pytest.raises(InvalidInput, match="expected 'ansi'"):
        gymnasium.make("reflectrl/LineOfMine-v0", render_mode="human")
    _, info = env.reset(seed=0)
    assert len(env.step(info["actions"][0])) == 5
    with pytest.raises(InvalidInput, match="'line_of_mine'"):
        register_env("line_of_mine", DangerousTaxi)
    for name in ("line:mine", "line of mine"):
        with pytest.raises(InvalidInput, match=f"'{name}'"):
            register_env(name, NumberLine)
    for wrong in (NumberLine(), int):
        with pytest.raises(InvalidInput, match=r"expected a subclass of reflectrl\.NatLangEnv"):
            register_env("mine", wrong)
    register_env("another_line_of_mine", target)


def test_importing_reflectrl_is_all_that_gymnasium_needs():
    program = "import gymnasium; gymnasium.make('reflectrl:reflectrl/NumberLine-v0')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PLUGIN = """
from reflectrl.envs.number_line import NumberLine
class Elsewhere(NumberLine):
    name = "elsewhere"
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Install a package whose code brings the environment ``elsewhere``."""

    def install(code):
        (tmp_path / "elsewhere_pkg.py").write_text(code)
        info = tmp_path / "elsewhere_pkg-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere-pkg\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[reflectrl.envs]\nelsewhere = elsewhere_pkg:Elsewhere\n")
        monkeypatch.syspath_prepend(tmp_path)
        return tmp_path

    yield install
    sys.modules.pop("elsewhere_pkg", None)


def test_an_installed_package_brings_an_environment_by_entry_point(plugin):
    plugin(PLUGIN)
    assert "elsewhere" in env_names()
    assert "elsewhere_pkg" not in sys.modules  # imported only when made
    check_env(make_env("elsewhere", size=6))
    assert [env_package(name) for name in ("elsewhere:6", "number_line")] == ["elsewhere-pkg 1.0", ""]


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("raise ValueError('no luck')", "ValueError: no luck"),
        ("import nothing_such", "'nothing_such'"),
        (f"{PLUGIN}    def __init__(self): raise SystemExit", r"sys\.exit\(None\)"),
    ],
)
def test_a_package_that_breaks_is_named_and_breaks_nothing_else(plugin, code, facts):
    plugin(code)
    assert {"elsewhere", "number_line"} <= set(env_names())
    make_env("number_line")
    with pytest.raises(InvalidInput, match=f"'elsewhere'.*{facts}"):
        make_env("elsewhere")
