"""The page of ``reflectrl serve`` in a real browser, and pages of other origins."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from agent_server import KEY, STATE, in_process
from chromium import chromium, faults_at_widths
from faulty import wait_until
from warm_processes import WarmProcess, command_line

from reflectrl.pipeline.agent import Agent
from reflectrl.prompts.format import History

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def ask_on(page: Any) -> None:
    page.fill("#observation", STATE["observation"])
    page.fill("#actions", "\n".join(STATE["actions"]))
    page.click("button[type=submit]")
    page.wait_for_selector("#reply:not([hidden])")


def test_a_person_tries_states_after_typing_the_key(browser: Any, url: str, client: httpx2.Client) -> None:
    page = browser.new_page()
    wrong: list[str] = []
    asked: list[str] = []
    page.on("console", lambda line: wrong.append(line.text) if "401" not in line.text else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    page.wait_for_selector("#key")
    assert "the key is missing or wrong" in page.inner_text("#wrong")
    page.fill("#key", KEY)
    page.dispatch_event("#key", "change")
    page.wait_for_selector("text=small (policy after RLFT), for the environment number_line")
    assert page.inner_text("#wrong") == ""
    ask_on(page)
    acted = client.post("/act", json=STATE).json()
    assert [acted["said"]["reflector"], acted["action"]] == page.locator("#words dd").all_inner_texts()
    chances = [f"{100 * probability:.1f} %" for probability in acted["probabilities"]]
    assert page.locator("#menu td:last-child").all_inner_texts() == chances
    assert page.locator("#menu tr.chosen td").first.inner_text() == acted["action"]
    with page.expect_request("**/act") as second:
        page.click("text=I played it")
        ask_on(page)
    assert second.value.post_data_json["history"] == [acted["action"]]
    assert page.inner_text("#past") == f"Played before: {acted['action']}"
    listed = page.locator("#list h3").all_inner_texts()
    assert listed == ["GET /health", "POST /act", "GET /v1/models", "POST /v1/chat/completions"]
    assert page.locator("#list dt", has_text="structured_outputs").count() == 1
    page.click("text=New episode")
    page.fill("#observation", "<b>bold</b>")
    page.fill("#actions", "<i>go</i>\n<i>go</i>")
    page.click("button[type=submit]")
    page.wait_for_selector("#wrong:not(:empty)")
    assert "repeats an action, '<i>go</i>'" in page.inner_text("#wrong")
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert {address.split("/")[2] for address in asked} == {url.split("/")[2]}
    assert [line for line in wrong if "422" not in line] == []
    page.close()


def test_axe_finds_nothing_wrong(browser: Any, url: str) -> None:
    page = browser.new_page()
    page.goto(url)
    page.fill("#key", KEY)
    page.dispatch_event("#key", "change")
    page.wait_for_selector("text=small (policy after RLFT)")
    ask_on(page)
    assert faults_at_widths(page) == []
    page.close()


def test_an_agent_that_reads_common_actions_and_rewards_gets_them(browser: Any, agent: Agent) -> None:
    history = History(4, show="transitions", reward=True)
    reads = replace(agent, layout=replace(agent.layout, menu="first", history=history))
    page = browser.new_page()
    with in_process(reads) as client:

        def answer(route: Any) -> None:
            asked = route.request
            given = {"content": asked.post_data, "headers": {"content-type": "application/json"}}
            got = client.request(asked.method, asked.url.removeprefix("http://behind.example/agent"), **given)
            route.fulfill(status=got.status_code, headers=dict(got.headers), body=got.content)

        page.route("http://behind.example/agent/**", answer)  # as a proxy with a prefix passes it on
        page.goto("http://behind.example/agent/")
        page.wait_for_selector("#first:not([hidden])")
        assert page.is_hidden("#key")
        page.fill("#common", "add one\nsubtract one")
        ask_on(page)
        assert page.is_visible("#whole")
        page.click("#play")
        assert page.is_visible("#reply")  # it waits for the reward
        page.fill("#reward", "-0.5")
        page.click("#play")
        with page.expect_request("**/act") as second:
            ask_on(page)
        acted = client.post("/act", json=second.value.post_data_json).json()
        shown = page.locator("#menu td:last-child").all_inner_texts()
    page.close()
    sent = second.value.post_data_json
    assert (sent["common"], sent["rewards"], sent["visited"]) == (STATE["actions"], [-0.5], [STATE["observation"]])
    assert shown == [f"{100 * probability:.1f} %" for probability in acted["probabilities"]]


def test_the_page_may_run_its_own_script_only(url: str) -> None:
    with httpx2.Client(base_url=url, trust_env=False) as client:
        home, docs = client.get("/"), client.get("/docs")
    assert home.text == docs.text
    assert "://" not in home.text
    policy = home.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert home.text.count("<script") == home.text.count("<style") == 1


# ---- other origins ---------------------------------------------------------------------------------------------------


@contextmanager
def elsewhere() -> Iterator[str]:
    """Serve an empty page at another origin."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


ASK = """async ([url, key, body]) => {
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json", "x-stainless-lang": "js" };
  try {
    const answer = await fetch(`${url}/act`, { method: "POST", headers, body: JSON.stringify(body) });
    return (await answer.json()).action;
  } catch (error) {
    return error.name;
  }
}"""


def test_only_a_page_of_an_allowed_origin_reads_replies(
    browser: Any, url: str, client: httpx2.Client, run: Path, tmp_path: Path
) -> None:
    acted = client.post("/act", json=STATE).json()["action"]
    with elsewhere() as allowed, elsewhere() as other:
        arguments = ("serve", str(run), "--port", "0", "--api-key-env", "SERVE_KEY", "--allow-origin", allowed)
        process = WarmProcess(tmp_path / "log", command_line, *arguments, env={"SERVE_KEY": KEY})
        try:
            wait_until(lambda: (process.log.exists() and "http" in process.said) or process.poll() is not None)
            open_server = process.said.split()[-1]
            page = browser.new_page()
            page.goto(allowed)
            assert page.evaluate(ASK, [open_server, KEY, STATE]) == acted
            assert page.evaluate(ASK, [open_server, "sk-other", STATE]) != acted
            assert page.evaluate(ASK, [url, KEY, STATE]) == "TypeError"  # a server that allows none
            page.goto(other)
            assert page.evaluate(ASK, [open_server, KEY, STATE]) == "TypeError"
            page.close()
        finally:
            process.kill()
