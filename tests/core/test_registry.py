from __future__ import annotations

import os
import subprocess
import sys

import gymnasium
import pytest

from reflectrl.core import InvalidInput, env_names, make_env, register_env, registry
from reflectrl.envs.dangerous_taxi import DangerousTaxi
from reflectrl.envs.number_line import NumberLine


@pytest.fixture
def table():
    """Put the table of environments back as it was."""
    before = dict(registry._TARGETS)
    yield
    registry._TARGETS.clear()
    registry._TARGETS.update(before)


def test_the_built_in_environments_are_known():
    assert {"dangerous_taxi", "number_line"} <= set(env_names())


def test_make_env_passes_options_by_name():
    env = make_env("dangerous_taxi", stage="dropoff", horizon=7)
    assert isinstance(env, DangerousTaxi)
    assert (env.stage, env.horizon) == ("dropoff", 7)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(InvalidInput, match=r"environment 'dangerous_taxy' is unknown; did you mean 'dangerous_taxi'\?"):
        make_env("dangerous_taxy")


def test_an_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(InvalidInput, match=r"'dangerous_taxi' has no option 'stages'; did you mean 'stage'\?"):
        make_env("dangerous_taxi", stages="pickup")


def test_what_follows_a_colon_is_the_first_option():
    env = make_env("dangerous_taxi:dropoff", horizon=7)
    assert (env.name, env.stage, env.horizon) == ("dangerous_taxi", "dropoff", 7)


@pytest.mark.usefixtures("table")
def test_only_the_first_colon_counts():
    class Place(NumberLine):
        def __init__(self, path):
            super().__init__()
            self.path = path

    register_env("place", Place)
    assert make_env("place:C:/games/a b:2.z8").path == "C:/games/a b:2.z8"


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("dangerous_taxy:full", {}, r"environment 'dangerous_taxy' is unknown; did you mean 'dangerous_taxi'\?"),
        ("dangerous_taxi:ful", {}, r"stage 'ful' of 'dangerous_taxi' is unknown; did you mean 'full'\?"),
        ("dangerous_taxi:", {}, r"'dangerous_taxi:' was given; expected 'dangerous_taxi', or its first option after"),
        ("dangerous_taxi:full", {"stage": "pickup"}, r"'dangerous_taxi:full' was given stage='pickup' besides; leave"),
        ("number_line:7", {}, r"size='7' was given to 'number_line'; expected 4 or more numbers"),
        ("textworld", {}, r"'textworld' cannot be made: missing a required argument: 'games'; give it as an option"),
    ],
)
def test_a_name_with_a_colon_that_cannot_be_made_is_refused(name, options, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        make_env(name, **options)


@pytest.mark.usefixtures("table")
def test_a_name_with_a_colon_is_not_registered():
    with pytest.raises(InvalidInput, match="'line:mine' was registered; expected a name without a colon"):
        register_env("line:mine", NumberLine)


@pytest.mark.usefixtures("table")
def test_a_registered_class_is_made():
    register_env("class_of_mine", NumberLine)
    assert isinstance(make_env("class_of_mine", size=5), NumberLine)


@pytest.mark.usefixtures("table")
def test_a_registered_path_is_made():
    register_env("path_of_mine", "reflectrl.envs.number_line:NumberLine")
    assert isinstance(make_env("path_of_mine"), NumberLine)


@pytest.mark.usefixtures("table")
def test_registering_the_same_twice_is_fine_and_another_is_refused():
    register_env("taken", NumberLine)
    register_env("taken", NumberLine)
    with pytest.raises(InvalidInput, match="'taken' is registered as .*NumberLine.* already; choose another name"):
        register_env("taken", DangerousTaxi)
    assert isinstance(make_env("taken"), NumberLine)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("no_such_module:Env", "which cannot be imported: No module named 'no_such_module'"),
        ("reflectrl.envs.number_line:Nobody", "which cannot be imported: .*no attribute 'Nobody'"),
        ("reflectrl.core:Task", "expected a subclass of reflectrl.NatLangEnv"),
        ("reflectrl.core:make_env", "expected a subclass of reflectrl.NatLangEnv"),
    ],
)
def test_a_target_that_is_no_environment_is_refused(target, sentence):
    register_env("broken", target)
    with pytest.raises(InvalidInput, match=sentence):
        make_env("broken")


@pytest.mark.usefixtures("table")
def test_a_class_without_a_name_is_refused(corridor):
    register_env("nameless", type(corridor(name="")))
    with pytest.raises(InvalidInput, match="has no name; set the class attribute name = 'nameless'"):
        make_env("nameless")


def test_gymnasium_makes_our_environments():
    env = gymnasium.make("reflectrl/DangerousTaxi-v0", stage="full")
    assert isinstance(env.unwrapped, DangerousTaxi)
    assert env.unwrapped.stage == "full"
    _, info = env.reset(seed=0)
    assert len(env.step(info["actions"][0])) == 5


@pytest.mark.parametrize(
    "program",
    [
        "import gymnasium, reflectrl; gymnasium.make('reflectrl/NumberLine-v0')",
        "import gymnasium; gymnasium.make('reflectrl:reflectrl/NumberLine-v0')",
    ],
    ids=["imported", "named in the id"],
)
def test_importing_reflectrl_is_all_that_gymnasium_needs(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("table")
def test_gymnasium_makes_what_register_env_adds():
    register_env("line_of_mine", NumberLine)
    assert isinstance(gymnasium.make("reflectrl/LineOfMine-v0").unwrapped, NumberLine)


PLUGIN = """
print("plugin imported")
from reflectrl.envs.number_line import NumberLine
class Elsewhere(NumberLine):
    name = "elsewhere"
"""
USER = """
import reflectrl
assert "elsewhere" in reflectrl.env_names()
print("listed")
reflectrl.check_env(reflectrl.make_env("elsewhere", size=6))
print("checked")
"""


def with_plugin(folder, code, program):
    """Run ``program`` where a package is installed that brings the environment ``elsewhere`` from ``code``."""
    (folder / "elsewhere_pkg.py").write_text(code)
    info = folder / "elsewhere_pkg-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere-pkg\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[reflectrl.envs]\nelsewhere = elsewhere_pkg:Elsewhere\n")
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)


def test_an_installed_package_brings_an_environment_by_entry_point(tmp_path):
    done = with_plugin(tmp_path, PLUGIN, USER)
    assert done.stderr == ""
    assert done.stdout.split("\n")[:3] == ["listed", "plugin imported", "checked"]  # imported only when made


COMMANDS = """
import sys
from reflectrl.cli import main
for arguments in (["check-env", "--list"], ["check-env", "number_line"], ["check-env", "elsewhere"]):
    sys.argv = ["reflectrl", *arguments]
    try:
        main()
    except SystemExit as left:
        print("exit", left.code)
"""


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("raise ValueError('no luck')", "cannot be imported: it raised ValueError: no luck."),
        ("import sys; sys.exit(3)", "cannot be imported: it called sys.exit(3)."),
        ("raise KeyboardInterrupt", "cannot be imported: it raised KeyboardInterrupt."),
        ("class Odd(BaseException): pass\nraise Odd('x')", "cannot be imported: it raised Odd: x."),
        ("def f(", "cannot be imported: it raised SyntaxError: "),
        ("import nothing_such", "cannot be imported: No module named 'nothing_such'."),
        ("def __getattr__(name): raise RuntimeError(name)", "cannot be imported: it raised RuntimeError: Elsewhere."),
        (f"{PLUGIN}    def __init__(self): raise SystemExit", "cannot be made: it called sys.exit(None); correct it"),
        (f"{PLUGIN}    def __init__(self): raise KeyboardInterrupt", "cannot be made: it raised KeyboardInterrupt;"),
    ],
)
def test_a_package_that_breaks_is_named_in_a_sentence_and_breaks_nothing_else(tmp_path, code, sentence):
    done = with_plugin(tmp_path, code, COMMANDS)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: environment 'elsewhere' ")
    assert sentence in done.stderr
    said = done.stdout.splitlines()
    assert {"elsewhere", "number_line"} <= set(said)
    assert any(line.startswith("number_line: every check passed") for line in said)
    assert [line for line in said if line.startswith("exit")] == ["exit 0", "exit 0", "exit 2"]


def test_ctrl_c_while_a_package_is_imported_is_no_fault_of_the_package(tmp_path):
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nfor _ in range(10**8): pass"
    program = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{COMMANDS}"
    done = with_plugin(tmp_path, code, program)
    assert done.stdout.splitlines()[-1] == "exit 130"
    assert "elsewhere" not in done.stderr
