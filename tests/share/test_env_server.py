"""Our environments behind OpenEnv's server, played by OpenEnv's own client and by our environment for its servers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import httpx2
import pytest
from command_line import refused
from orders import Orders
from warm_processes import WarmProcess, command_line

from reflectrl.core import NatLangEnv, check_env, make_env

pytest.importorskip("openenv", reason="needs the extra openenv")
from fastapi.testclient import TestClient  # noqa: E402 - only where it is installed
from openenv.core import GenericEnvClient  # noqa: E402

from reflectrl.share.env_server import env_app  # noqa: E402

pytestmark = pytest.mark.slow
KEY = "a-key-of-the-test"
ALLOWED = {"Authorization": f"Bearer {KEY}"}
Serve = Callable[..., str]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Serve an environment in a process of its own and return its address; SIGINT ends all of them."""
    processes: list[tuple[WarmProcess, str]] = []

    def one(*arguments: str) -> str:
        log = tmp_path_factory.mktemp("server") / "log"
        given = ("env", "serve", *arguments, "--port", "0")
        process = WarmProcess(log, command_line, *given, env={"SERVE_KEY": KEY})
        while "\n" not in (said := log.read_text() if log.exists() else ""):
            assert process.poll() is None, said
            time.sleep(0.02)
        processes.append((process, said))
        assert said.startswith(f"serving {arguments[0]} on http://127.0.0.1:")
        return said.split(" on ")[1].split()[0]

    yield one
    for process, said in processes:
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
        assert process.said == said


@pytest.fixture(scope="module")
def line(serve: Serve) -> str:
    return serve("number_line", "size=9", "--sessions", "6", "--api-key-env", "SERVE_KEY")


@pytest.fixture(scope="module")
def orders(serve: Serve) -> str:
    return serve("orders:Orders", "--served-as", "page.example")


@pytest.fixture
def open_session(line: str) -> Iterator[Callable[[], Any]]:
    """Open sessions with OpenEnv's client, and close them after the test."""
    opened = []

    def one(**headers: str) -> Any:
        client = GenericEnvClient(line, headers={**ALLOWED, **headers}).sync()
        opened.append(client)
        return client.connect()

    yield one
    for client in opened:
        client.close()


def local(split: str, index: int, seed: int) -> NatLangEnv:
    """Return our environment at the start of the task."""
    env = make_env("number_line", size=9)
    env.reset(seed=seed, options={"task": env.split_tasks(split)[index]})
    return env


def seen(env: NatLangEnv, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client should be shown of an environment's state."""
    metadata = {name: info[name] for name in ("task", "success", "illegal", "truncated") if name in info}
    shown = env.observation
    return {"text": shown.text, "task": shown.task, "legal_actions": list(shown.actions), "metadata": metadata}


def test_openenvs_client_plays_the_episode_that_we_play(open_session: Callable[[], Any]) -> None:
    client, env = open_session(), local("test", 3, 5)
    begun = client.reset(seed=5, split="test", index=3)
    assert begun.observation["text"] == env.observation.text
    done = False
    while not done:
        action = str(env.hints().action)
        _, reward, ended, truncated, info = env.step(action)
        result = client.step({"action": action})
        done = ended or truncated
        shown = {**seen(env, {**info, "truncated": truncated}), **({"legal_actions": []} if done else {})}
        assert (result.observation, result.reward, result.done) == (shown, reward, done)
    assert result.metadata == {"task": env.task.id, "success": True, "illegal": False, "truncated": False}
    assert client.state()["step_count"] == env.steps


def test_sessions_are_apart_and_one_too_many_is_refused(open_session: Callable[[], Any]) -> None:
    one, other = open_session(), open_session()
    first = one.reset(seed=1, index=0).observation
    other.reset(seed=1, index=7)
    other.step({"action": "add one"})
    assert one.reset(seed=1, index=0).observation == first
    for _ in range(4):
        open_session().reset()
    one_more = open_session()
    with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
        one_more.reset()


def test_what_is_wrong_is_a_sentence_and_the_episode_goes_on(open_session: Callable[[], Any]) -> None:
    client = open_session()
    with pytest.raises(RuntimeError, match="has not been reset yet|was called before reset"):
        client.step({"action": "add one"})
    client.reset(seed=0)
    for action in ("jump", "", "\u53f3", "\x07", "word " * 20_000):
        with pytest.raises(RuntimeError, match="is not a legal action of 'number_line' here; ") as caught:
            client.step({"action": action})
        assert len(str(caught.value)) < 500
    with pytest.raises(RuntimeError, match=r"task 10000 of 'test' was asked for; expected 0 to \d+\."):
        client.reset(split="test", index=10_000)
    for index in ("a", 1.5):
        with pytest.raises(RuntimeError, match=f"task {index!r} of 'train' was asked for; expected 0 to "):
            client.reset(index=index)
    with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
        client.step({"move": "add one"})
    assert client.step({"action": "add one"}).reward is not None


class OnceMade(Orders):
    """An environment that can be made once, before the first session."""

    made = count()

    def __init__(self, password: str) -> None:
        super().__init__()
        if next(self.made):
            raise OSError(password)


def test_a_session_that_cannot_be_made_tells_no_options() -> None:
    app = TestClient(env_app(f"{__name__}:OnceMade", {"password": KEY}, sessions=2))
    with app.websocket_connect("/ws") as session:
        session.send_json({"type": "reset", "data": {}})
        said = session.receive_text()
    assert f"Environment factory '{__name__}' failed to create instance." in said
    assert KEY not in said


def test_key_host_and_page_are_checked(line: str, open_session: Callable[..., Any]) -> None:
    with pytest.raises(ConnectionError, match="403"):
        open_session(Authorization="Bearer another")
    for page in ("https://page.example", "http://203.0.113.5", "http://127.0.0.1:1", "http://localhost:3000", "null"):
        with pytest.raises(ConnectionError, match="403"):
            open_session(Origin=page)
        for path in ("reset", "mcp"):  # a form of any page may send it, and needs no permission of ours for that
            answer = httpx2.post(f"{line}/{path}", content=b"{}", headers={**ALLOWED, "Origin": page})
            assert (answer.status_code, page in answer.json()["detail"]) == (403, True)
    assert open_session(Origin=line).reset().done is False
    assert httpx2.post(f"{line}/reset", json={}, headers={**ALLOWED, "Origin": line}).status_code == 200
    assert httpx2.get(f"{line}/schema").status_code == 401
    assert httpx2.get(f"{line}/schema", headers={**ALLOWED, "Host": "page.example"}).status_code == 421
    for path in ("docs", "redoc"):  # FastAPI's pages would run scripts of another server
        assert httpx2.get(f"{line}/{path}", headers=ALLOWED).status_code == 404
    told = httpx2.get(f"{line}/metadata", headers=ALLOWED).json()
    assert (told["name"], told["description"]) == ("number_line", make_env("number_line").instructions)
    splits = httpx2.get(f"{line}/number_line/splits", headers=ALLOWED).json()
    assert [split["name"] for split in splits] == ["train", "validation", "test"]


def test_served_and_played_by_us_it_is_the_same_environment(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINE_KEY", KEY)
    env = make_env(f"openenv:{line}", key="$LINE_KEY", horizon=9)
    check_env(env)
    assert env.max_actions == 2
    task = env.split_tasks("train")[2]
    text, info = env.reset(seed=0, options={"task": task})
    here = make_env("number_line", size=9)
    assert here.reset(seed=task.options["seed"])[0] == text
    assert here.observation.actions == info["actions"]
    assert here.step("add one")[:2] == env.step("add one")[:2]
    env.close()
    monkeypatch.delenv("LINE_KEY")
    assert "the option key is $LINE_KEY, which is not set; " in refused("check-env", f"openenv:{line}", "key=$LINE_KEY")
    assert "401" in refused("check-env", f"openenv:{line}")


def test_an_environment_without_menus_is_served_too(orders: str) -> None:
    env = make_env(f"openenv:{orders}", penalty=0.5)
    check_env(env)
    assert env.max_actions == 0
    assert env.instructions == "action: Say what is wanted: a colour and an animal."
    env.close()
    with GenericEnvClient(orders, headers={"Origin": "https://page.example"}).sync() as client:  # of --served-as
        assert client.reset().done is False


def test_an_environment_that_cannot_be_made_is_not_served() -> None:
    assert "did you mean 'number_line'?" in refused("env", "serve", "number_lin")
    assert "has no option 'x'" in refused("env", "serve", "number_line", "x=1")
    assert "holds no key" in refused("env", "serve", "number_line", "--api-key-env", "NO_SUCH_VARIABLE")


def test_a_package_without_a_server_is_refused_with_its_last_words() -> None:
    said = refused("check-env", "openenv:no_such_package")
    assert "no OpenEnv server answers for 'no_such_package'" in said
    assert "No module named 'no_such_package'" in said
    assert "no OpenEnv server answers for 'http://127.0.0.1:9'" in refused("check-env", "openenv:http://127.0.0.1:9")
    assert "expected 1 or more" in refused("check-env", "openenv:http://127.0.0.1:9", "seeds=0")
