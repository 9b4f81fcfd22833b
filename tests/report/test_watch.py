"""``reflectrl watch``: the report's page over real HTTP, of runs that grow, begin, vanish and are damaged meanwhile."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import httpx2
import pytest
from chromium import faults_at_widths
from command_line import refused
from faulty import wait_until
from rich.console import Console
from run_folders import PACE, episode, iteration, make_run, unpacked, write_ledger
from trained_runs import small_recipe
from warm_processes import WarmProcess, command_line

from reflectrl.config import dump_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import append_jsonl
from reflectrl.prompts import PromptFormat
from reflectrl.report.follow import FollowedRuns
from reflectrl.report.progress import HEADS, progress
from reflectrl.report.runs import read_run
from reflectrl.report.terminal import latest_runs
from reflectrl.report.watch import REST, LivePage
from reflectrl.rollout.record import Header, write_trajectories

GOING = {"done": False, "inputs": {}}
DONE = {"done": True, "inputs": {}, "wall_seconds": 60.0, "cpu_seconds": 9.0}


def training(folder: Path, iterations: int = 2) -> Path:
    """Write a run in the middle of RLFT, with one recorded episode an iteration."""
    recorded = [[episode(f"task-{number}")] for number in range(iterations)]
    run = make_run(folder, {}, [iteration(number) for number in range(iterations)], recorded)
    recipe = f"name: {folder.name}\nrlft: {{episodes: 4, lessons: [{{iterations: 10}}]}}"
    (run / "recipe.yaml").write_text(recipe, encoding="utf-8")
    write_ledger(run, sft=DONE, rlft=GOING)
    return run


def go_on(run: Path, number: int) -> None:
    """Add an iteration to a run, its episode first, as RLFT does."""
    header = Header("corridor", {}, PromptFormat())
    write_trajectories(run / "trajectories" / f"rlft-{number:05d}.jsonl", header, [episode(f"task-{number}")])
    append_jsonl(run / "metrics.jsonl", [iteration(number)])


# ---- the runs that are followed --------------------------------------------------------------------------------------


def test_only_a_run_whose_files_changed_is_read_again(tmp_path: Path) -> None:
    one, two = training(tmp_path / "one"), training(tmp_path / "two")
    followed = FollowedRuns([tmp_path])
    assert followed.look()
    assert not followed.look()
    (first, second) = followed.runs
    append_jsonl(two / "metrics.jsonl", [iteration(2)])
    assert followed.look()
    assert followed.runs[0] is first
    assert [len(run.points) for run in followed.runs] == [2, 3]
    assert len(second.points) == 2
    shutil.rmtree(one)
    training(tmp_path / "three")
    assert followed.look()
    assert [run.name for run in followed.runs] == ["three", "two"]


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    run = training(tmp_path / "one")
    followed = FollowedRuns([run])
    line = json.dumps(iteration(2)) + "\n"
    for part, points in ((line[:50], 2), (line[50:-1], 2), ("\n", 3)):
        with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(part)
        assert followed.look()
        assert [len(each.points) for each in followed.runs] == [points]


def test_a_damaged_run_is_named_and_the_others_stay(tmp_path: Path) -> None:
    training(tmp_path / "good")
    bad = training(tmp_path / "bad")
    page = LivePage([tmp_path])
    assert "cannot be read" not in page.text()
    whole = (bad / "metrics.jsonl").read_text(encoding="utf-8")
    (bad / "metrics.jsonl").write_text("{<b>\n", encoding="utf-8")
    after = renewed(page)
    assert "cannot be read: " in after
    assert "metrics.jsonl, line 1 is not JSON" in after
    assert "<b>" not in after
    assert '<li class="swatch c0">good</li>' in after
    (bad / "metrics.jsonl").write_text(whole, encoding="utf-8")
    assert "cannot be read" not in renewed(page)


def test_an_unreadable_file_of_one_run_is_named_and_all_runs_stay(tmp_path: Path) -> None:
    good, bad = training(tmp_path / "good"), training(tmp_path / "bad")
    file = bad / "trajectories" / "rlft-00000.jsonl"
    file.unlink()
    file.mkdir()
    page = LivePage([tmp_path])
    assert page.text().count("2 of 10 iterations") == 2
    assert "bad: its episodes cannot be read: " in page.text()
    assert page.episodes("good/training")
    go_on(good, 2)
    assert "3 of 10 iterations" in renewed(page)


def renewed(page: LivePage) -> str:
    """Return the page once it is another one."""
    before = page.look()
    wait_until(lambda: page.look() != before)
    return page.text()


def test_a_folder_without_runs_waits_for_the_first(tmp_path: Path) -> None:
    page = LivePage([tmp_path])
    assert f"No run has begun in {tmp_path} yet." in page.text()
    training(tmp_path / "one")
    assert "2 of 10 iterations" in renewed(page)
    shutil.rmtree(tmp_path / "one")
    assert "No run has begun" in renewed(page)
    with pytest.raises(InvalidInput, match="no folder is at .*gone"):
        LivePage([tmp_path, tmp_path / "gone"])


def test_episodes_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    run = training(tmp_path / "one")
    page = LivePage([run])
    assert 'id="source-0"' not in page.text()
    told = json.loads(page.episodes("one/training") or "")
    block = unpacked(told["block"])
    assert [block["texts"][each[0]] for each in block["episodes"]] == ["task-0", "task-1"]
    assert told["pictures"] == []
    assert page.episodes("../one/training") is None
    (run / "trajectories" / "rlft-00001.jsonl").unlink()
    with pytest.raises(InvalidInput):
        page.episodes("one/training")


def test_episodes_are_packed_once_for_all_and_again_after_a_rest(tmp_path: Path) -> None:
    run = training(tmp_path / "one", iterations=100)
    seconds = []
    for page in [LivePage([run]) for _ in range(3)]:
        page.look()
        began = time.monotonic()
        page.episodes("one/training")
        seconds.append(time.monotonic() - began)
    page = LivePage([run])
    page.look()
    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(page.episodes, ["one/training"] * 3)
    ended = time.monotonic()
    assert all(other is first for other in others)
    assert page.episodes("one/training") is first
    (run / "trajectories" / "advantages-00000.jsonl").write_text("", encoding="utf-8")
    later = page.episodes("one/training")
    assert time.monotonic() - ended > 0.5 * REST * min(seconds)  # the first may have waited for a busy processor
    (said,) = json.loads(later or "")["missing"]  # the page shows it below the episodes
    assert "advantages-00000.jsonl does not fit the episodes beside it" in said


# ---- how far they are ------------------------------------------------------------------------------------------------


def test_a_lesson_that_ended_early_leaves_fewer_iterations_to_come(tmp_path: Path) -> None:
    lines = [iteration(number, lesson="easy" if number < 10 else "hard") for number in range(30)]
    run = make_run(tmp_path / "one", {}, lines)
    lessons = "[{name: easy, iterations: 400, success_threshold: 0.8}, {name: hard, iterations: 40}]"
    (run / "recipe.yaml").write_text(f"rlft: {{episodes: 4, lessons: {lessons}}}", encoding="utf-8")
    write_ledger(run, sft=DONE, rlft=GOING)
    now = progress(read_run(run, "one"))
    assert now.done == "30 of 50 iterations"
    assert now.seconds_left == 20 * PACE["seconds"]


def test_results_that_vanish_while_they_are_counted_do_not_matter(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", {}, [iteration(0)])
    write_ledger(run, rlft=DONE, eval=GOING)
    (run / "eval.partial.jsonl").symlink_to("gone")  # it is listed, and no longer there when it is read
    (run / "eval.partial-1.jsonl").write_text("{}\n", encoding="utf-8")
    assert progress(read_run(run, "one")).done == "1 rows"


def test_a_terminal_shows_the_runs_that_were_written_last_and_counts_the_others() -> None:
    rows = [(f"run-{number:02}", *["x"] * (len(HEADS) - 1)) for number in range(60)]
    written = {row[0]: float(number % 30) for number, row in enumerate(rows)}
    console = Console(file=StringIO(), force_terminal=True, width=120, height=14)
    with console.capture() as shown:
        console.print(latest_runs(rows, written, console))
    lines = shown.get().splitlines()
    assert len(lines) <= console.height
    names = re.findall("run-\\d\\d", shown.get())
    assert names == ["run-26", "run-27", "run-28", "run-29", "run-56", "run-57", "run-58", "run-59"]
    assert "and 52 more, which were written earlier" in lines[-1]
    with console.capture() as shown:
        console.print(latest_runs(rows[:3], written, console))
    assert "more" not in shown.get()


# ---- over HTTP -------------------------------------------------------------------------------------------------------


@contextmanager
def watching(log: Path, *runs: Path) -> Iterator[str]:
    """Run the command in a process of its own, which Ctrl-C has to end with 0; yields the address of the page."""
    process = WarmProcess(log, command_line, "watch", *map(str, runs), "--port", "0")
    try:
        wait_until(lambda: (log.is_file() and "http://" in process.said) or process.poll() is not None)
        yield re.findall(r"http://\S+", process.said)[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.said.count("\n") == 1, process.said
    finally:
        if process.poll() is None:
            process.kill()


def events(url: str) -> Iterator[str]:
    """Yield the versions that the server tells."""
    with httpx2.stream("GET", f"{url}/events", timeout=60) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: "):
                yield line.removeprefix("data: ")


@pytest.mark.slow
def test_a_client_is_told_while_a_real_run_trains_and_is_evaluated(tmp_path: Path) -> None:
    runs, recipe = tmp_path / "runs", tmp_path / "recipe.yaml"
    runs.mkdir()
    recipe.write_text(dump_recipe(small_recipe("rlft.lessons.0.iterations=30")), encoding="utf-8")
    with watching(tmp_path / "watch.log", runs) as url:
        told = events(url)
        first = next(told)
        assert "No run has begun" in httpx2.get(url).text
        command = ("run", "--recipe", str(recipe), "--runs", str(runs), "--run", "one")
        trained = WarmProcess(tmp_path / "run.log", command_line, *command)
        versions, stages = [first], set()
        for version in told:
            versions.append(version)
            page = httpx2.get(url).text
            stages |= set(re.findall(r"<td>(gen-data|sft of the policy|rlft|eval)</td>", page))
            if "One run a recipe" in page:  # the verdict on its evaluation
                break
        assert trained.wait() == 0, trained.said
        assert len(set(versions)) == len(versions) > 3
        assert "rlft" in stages
        assert {"Success rate", "Return"} <= set(re.findall("<figcaption>(.*?)</figcaption>", page))
        reply = httpx2.get(f"{url}/episodes", params={"of": "one/eval-rlft-local-sampled"})
        block = unpacked(reply.json()["block"])
        assert len(block["episodes"]) == 12
        assert block["tokens"]  # of the prompts that the policy read


@pytest.mark.slow
def test_only_its_own_page_is_answered_and_nothing_is_written(tmp_path: Path) -> None:
    run = training(tmp_path / "one")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with watching(tmp_path / "watch.log", run) as url:
        port = url.rpartition(":")[2]

        def answer(path: str = "/", method: str = "GET", **headers: str) -> tuple[int, str]:
            got = httpx2.request(method, f"{url}{path}", headers=headers)
            return got.status_code, got.text

        assert answer()[0] == 200
        for name in (f"localhost:{port}", "127.0.0.1:9", "[::1]:1", f"LOCALHOST:{port}"):  # a tunnel has its own port
            assert answer(Host=name)[0] == 200
        for path in ("/", "/events", "/episodes?of=one/training"):
            status, said = answer(path, Host="evil.example")
            assert (status, said) == (
                403,
                "the header Host names 'evil.example'; expected 127.0.0.1, localhost or an IP address, or a "
                "--served-as.",
            )
            for origin in ("http://evil.example", "http://[evil", "null", f"http://localhost:{port}"):
                assert answer(path, Origin=origin)[0] == 403
        assert answer(Origin=url)[0] == 200
        for path in ("/report.html", "/../recipe.yaml", "/episodes", "/episodes?of=../recipe.yaml", "//evil.example/"):
            assert answer(path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert answer(method=method)[0] == 501
        with socket.create_connection(("127.0.0.1", int(port))) as odd:  # a client that speaks something else
            odd.sendall(b"\x16\x03\x01\x00\r\n\r\n")
            odd.recv(100)
        with socket.create_connection(("127.0.0.1", int(port))) as odd:
            odd.sendall(b"GET http://[odd HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 404 " in odd.recv(100)
        assert answer()[0] == 200
        (run / "trajectories" / "rlft-00001.jsonl").write_text("{\n", encoding="utf-8")
        status, said = answer("/episodes?of=one/training")
        assert status == 409
        assert "rlft-00001.jsonl, line 1 is not JSON" in said
    damaged = run / "trajectories" / "rlft-00001.jsonl"
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == {**before, damaged: b"{\n"}


def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    assert "no folder is at" in refused("watch", tmp_path / "gone", "--port", 0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"127.0.0.1 port {port}" in refused("watch", tmp_path, "--port", port)
    assert "no such host port 0" in refused("watch", tmp_path, "--host", "no such host", "--port", 0)


@pytest.mark.slow
def test_a_page_that_others_can_reach_says_so(tmp_path: Path) -> None:
    process = WarmProcess(
        tmp_path / "log",
        command_line,
        "watch",
        str(tmp_path),
        "--port",
        "0",
        "--host",
        "0.0.0.0",
        "--served-as",
        "runs.example",
    )
    try:
        wait_until(lambda: "http://" in process.said if process.log.is_file() else False)
        assert "warning: other machines can reach 0.0.0.0 and read these runs; no key protects them." in process.said
        port = process.said.rpartition(":")[2].strip()
        for name, status in ((socket.gethostname(), 200), ("runs.example", 200), ("evil.example", 403)):
            assert httpx2.get(f"http://127.0.0.1:{port}", headers={"Host": name}).status_code == status
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.slow
def test_runs_are_followed_on_the_terminal(tmp_path: Path) -> None:
    run = training(tmp_path / "runs" / "one")
    process = WarmProcess(tmp_path / "log", command_line, "runs", str(run.parent), "--watch")
    try:
        wait_until(lambda: process.log.is_file() and "2 of 10 iterations" in process.said)
        go_on(run, 2)
        wait_until(lambda: "3 of 10 iterations" in process.said)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


# ---- in a browser ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_changes_in_place(browser, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    run = training(tmp_path / "runs" / "one")
    faults: list[str] = []
    (run / "trajectories" / "advantages-00000.jsonl").write_text("", encoding="utf-8")
    with watching(tmp_path / "watch.log", run.parent) as url:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(url)
        expect(page.locator(".row .name")).to_have_text(["task-1", "task-0"])
        expect(page.locator("#absent")).to_contain_text("does not fit the episodes beside it")
        page.locator(".row").last.click()
        page.locator("#runs summary").click()
        page.locator("#runs details").scroll_into_view_if_needed()
        page.evaluate("window.seen = [...document.querySelectorAll('#runs details, #viewer, #slider')]")
        go_on(run, 2)
        expect(page.locator(".row .name")).to_have_text(["task-2", "task-1", "task-0"])
        expect(page.locator("#progress td").nth(2)).to_have_text("3 of 10 iterations")
        expect(page.locator("#progress time")).to_have_text(re.compile(r"^\d+ s ago$"))
        assert page.locator(".row[aria-selected=true] .name").inner_text() == "task-0"
        assert page.locator("#runs details").get_attribute("open") is not None
        assert page.evaluate("window.seen.every(each => each.isConnected)")  # nothing was loaded anew
        links = page.locator("#curves .save").count()
        assert links == page.locator("figure").count()
        training(run.parent / "two")
        expect(page.locator(".legend li")).to_have_text(["one", "two"])
        expect(page.locator("#source optgroup")).to_have_count(2)
        assert page.locator("#curves .save").count() == page.locator("figure").count() == links
        assert page.locator(".row[aria-selected=true] .name").inner_text() == "task-0"
        shutil.rmtree(run)
        expect(page.locator(".legend li")).to_have_text(["two"])
        expect(page.locator(".row .name")).to_have_text(["task-1", "task-0"])
        assert not page.locator("#link").is_visible()
    expect(page.locator("#link")).to_have_text("The server cannot be reached; this is what it said last. Trying again.")
    page.close()
    assert [fault for fault in faults if "ERR_CONNECTION_REFUSED" not in fault and "ERR_INCOMPLETE" not in fault] == []


@pytest.mark.slow
def test_axe_finds_nothing_wrong_with_the_live_page(browser, tmp_path: Path) -> None:
    training(tmp_path / "one")
    (training(tmp_path / "two") / "metrics.jsonl").write_text("{\n", encoding="utf-8")
    with watching(tmp_path / "watch.log", tmp_path) as url:
        page = browser.new_page()
        page.goto(url)
        page.wait_for_selector(".episode")
        assert faults_at_widths(page) == []
        page.close()


@pytest.mark.slow
def test_a_page_that_began_without_runs_shows_the_first_in_a_frame_of_another_page(browser, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    with watching(tmp_path / "watch.log", tmp_path) as url:
        page = browser.new_page()
        page.set_content(f'<iframe src="{url}" width="900" height="700"></iframe>')  # as a notebook shows it
        inside = page.frame_locator("iframe")
        expect(inside.locator("#progress p")).to_contain_text("No run has begun")
        assert not inside.locator("#viewer").is_visible()
        training(tmp_path / "one")
        expect(inside.locator(".row .name")).to_have_text(["task-1", "task-0"])
        expect(inside.locator("figure").first).to_be_visible()
        page.close()
