"""Environments of OpenEnv on real servers: games of others, and servers that fail."""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from command_line import refused

from reflectrl.core import Task, check_env, make_env
from reflectrl.core.errors import EnvFailed

pytest.importorskip("openenv", reason="needs the extra openenv")
pytestmark = pytest.mark.slow
FAULTS = "openenv:openenv_faults:app"


@pytest.fixture
def make():
    """Make environments, and close them after the test."""
    with contextlib.ExitStack() as opened:

        def one(name, **options):
            env = make_env(name, **options)
            opened.callback(env.close)
            return env

        yield one


@pytest.fixture(scope="module", autouse=True)
def _kept():
    """Keep the server with faults for all tests; the last environment that is closed would stop it."""
    env = make_env(FAULTS)
    yield
    env.close()


def begun(env, number=0):
    """Begin a task; return the text of its first state."""
    return env.reset(seed=0, options={"task": Task(f"seed-{number}", {"seed": number})})[0]


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    """Name of the package that OpenEnv itself writes: its environment echoes."""
    folder = tmp_path_factory.mktemp("packages")
    program = Path(sys.executable).with_name("openenv")
    without_uv = {**os.environ, "PATH": ""}  # it would download packages for a lock file
    command = [program, "init", "an_echo", "--output-dir", folder]
    subprocess.run(command, check=True, capture_output=True, env=without_uv)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield "openenv:an_echo"


def test_the_environment_that_openenv_writes_is_played(echo, make):
    env = make(echo)
    check_env(env)
    assert begun(env) == "echoed_message: An Echo environment ready!\nmessage_length: 0"
    assert env.instructions == "message: Message to echo back"
    text, reward, *_ = env.step("hello")
    assert (text, reward) == ("echoed_message: hello\nmessage_length: 5", 0.5)
    other = make(echo)  # in another server, since one takes one session at a time
    assert begun(other).startswith("echoed_message: An Echo")
    assert env.step("there")[0].startswith("echoed_message: there")


def test_a_game_of_textarena_is_played_in_free_text(make):
    env = make("openenv:textarena_env", variables={"TEXTARENA_ENV_ID": "Mastermind-v0"})
    check_env(env)
    assert begun(env).startswith("[GAME] You are playing Mastermind.")
    text, reward, *_, info = env.step("what?")
    assert text.startswith("[Player] [what?]\n[GAME] You attempted an invalid move.")
    text, *_ = env.step("[1 2 3 4]")
    assert text.splitlines()[1].startswith("[GAME] Submitted [1 2 3 4]. Feedback: ")
    assert (env.max_actions, info["illegal"], reward) == (0, False, 0.0)


def test_a_subclass_gives_a_game_of_others_an_expert_and_other_rewards(make):
    env = make("reflectrl.envs.openenv_game:Mastermind", horizon=10)
    check_env(env)
    for number in range(3):
        begun(env, number)
        guesses, over = [], False
        while not over:
            guesses.append(env.expert())
            _, reward, *ends, info = env.step(guesses[-1])
            over = any(ends)
        assert (reward, info["success"], len({*guesses})) == (1.0, True, len(guesses))
    begun(env)
    env.step("[1 2 3 4]")
    told = "Submitted [5 6 5 6]. Feedback: 4 black peg(s), 0 white peg(s)"  # which the game did not say
    *answered, info = env.step(told)[1:]
    assert (answered, info["illegal"]) == ([0.0, False, False], True)
    assert env.expert()
    assert env.step("what?")[1:4] == (0.0, True, False), "TextArena itself would pay for the digits that were found"


def test_on_a_server_that_takes_seeds_tasks_differ_and_an_episode_can_be_copied(make):
    env = make(FAULTS)
    check_env(env)
    assert [begun(env, number) for number in range(3)] == ["Say red.", "Say blue.", "Say green."]
    env.step("blue")
    twin = copy.copy(env)
    assert twin.observation == env.observation
    twin.close()


def test_a_map_of_ones_own_takes_the_place_of_ours(make):
    env = make(FAULTS, text_map="shouting:Shouting", penalty=0.25)
    assert begun(env, 3) == "SAY WHITE."
    text, reward, *_, info = env.step("white")
    assert (text, reward) == ("That was no action: it is not shouted.\nSAY WHITE.", -0.25)
    assert info["illegal"] is True
    too_long = "W" * 100_000
    assert env.step(too_long)[0] == "That was no action: the server takes no such action.\nSAY WHITE."
    assert env.step("WHITE")[1:3] == (1.0, True)
    assert "cannot be played with text_map='nowhere:Map'" in refused("check-env", FAULTS, "text_map=nowhere:Map")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("nan", "raised ValueError: the server ended the episode without a reward"),
        ("perhaps", "raised ValueError: the server says success='no'; expected true or false"),
        ("raise", r"raised RuntimeError: Server error: nothing was computed \(code: EXECUTION_ERROR\)"),
        ("wait", r"raised TimeoutError: the server at http://\S+ did not answer within 10 s"),
        ("die", r"raised ConnectionError: the server at http://\S+ ended the session"),
    ],
)
def test_a_fault_is_a_sentence_and_the_next_episode_is_played(said, sentence, make):
    env = make(FAULTS, timeout_s=10.0 if said == "wait" else 30.0)
    begun(env, 1)
    with pytest.raises(EnvFailed, match=rf"^environment 'openenv' failed in task 'seed-1' .*: it {sentence}; fix it"):
        env.step(said)
    assert begun(env, 2) == "Say green."
    assert env.step("green")[1:3] == (1.0, True)


def test_a_server_ends_with_the_last_of_its_environments_and_gets_keys_by_their_names(make, monkeypatch):
    monkeypatch.setenv("A_KEY", "spoken")
    one, other = (make(FAULTS, variables={"FIELD": "$A_KEY"}) for _ in range(2))
    assert one.instructions == "spoken: The word to say."
    begun(one)
    started = servers()
    one.close()
    assert servers() == started
    other.close()
    assert len(servers()) == len(started) - 1
    assert begun(other, 1) == "Say blue."  # in a new one
    missing = refused("check-env", FAULTS, "variables={FIELD: $NO_SUCH_KEY}")
    assert "the option variables.FIELD is $NO_SUCH_KEY, which is not set; " in missing


def servers():
    """Return the servers that this process has started and not ended."""
    return {child.pid for child in psutil.Process().children() if "uvicorn.Server" in "".join(child.cmdline())}


def test_a_silent_address_is_refused_after_the_time_for_an_answer():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = refused("check-env", f"openenv:http://127.0.0.1:{silent.getsockname()[1]}", "timeout_s=0.1")
    assert "(raised ReadTimeout: timed out); expected the address" in said


class Hosted:
    """A server on one port that can be ended and started again, and whose port nobody else gets meanwhile."""

    def __init__(self):
        self.reserved = socket.socket()  # it never listens, so that the port refuses connections without a server
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("127.0.0.1", 0))
        self.port = self.reserved.getsockname()[1]
        self.process = None

    def start(self, **variables):
        tests = str(Path(__file__).parents[2])
        command = [sys.executable, "-m", "uvicorn", "openenv_faults:app", "--port", str(self.port)]
        environment = {**os.environ, **variables, "PYTHONPATH": tests}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        while "Uvicorn running" not in self.process.stderr.readline():
            assert self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def hosted():
    server = Hosted()
    server.start()
    yield server
    server.kill()
    server.reserved.close()


def test_a_server_that_is_restarted_in_an_episode_ends_it_and_serves_the_next(hosted, make):
    env = make(f"openenv:http://127.0.0.1:{hosted.port}")
    begun(env, 1)
    hosted.kill()
    hosted.start()  # its new session would take the action, but is in no episode
    with pytest.raises(EnvFailed, match="after 0 steps, at action 'blue': it raised ConnectionError: the server at"):
        env.step("blue")
    assert begun(env, 1) == "Say blue."
    hosted.kill()
    hosted.start(MAX_CONCURRENT_ENVS="1")
    assert begun(env, 1) == "Say blue."  # the start of an episode is asked for again
    other = make(f"openenv:http://127.0.0.1:{hosted.port}")
    with pytest.raises(EnvFailed, match=r"1/1 sessions active.*; let it serve more, or play fewer episodes at a time"):
        begun(other)
    hosted.kill()
    with pytest.raises(
        EnvFailed, match=r"at the start of task 'seed-1': it raised ConnectionError: the server at \S+ "
    ):
        begun(env, 1)
    hosted.start(FIELD="spoken")
    with pytest.raises(EnvFailed, match="is another version now, with other messages; start again"):
        begun(env, 1)
