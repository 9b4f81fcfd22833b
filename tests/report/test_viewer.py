"""The trajectory viewer in a real browser, opened from the disk, with all network access blocked."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
from run_folders import HOSTILE, episode, forget_digests, iteration, make_run

from reflectrl import make_env
from reflectrl.core import Task, Turn, Utterance, Written
from reflectrl.core.jsonl import write_jsonl
from reflectrl.prompts import PromptFormat
from reflectrl.report.page import write_report
from reflectrl.report.runs import read_runs
from reflectrl.rollout.turn import policy_views


def long(task, rewards, *, success=True, text="Room"):
    """Return an episode of several steps: ``Room 1``, ``Room 2``, ..."""
    played = episode(task, success=success)
    (turn,) = played.turns

    def at(number: int, reward: float) -> Turn:
        return replace(turn, observation=replace(turn.observation, text=f"{text} {number}"), rewards={"env": reward})

    return replace(played, turns=tuple(at(number, reward) for number, reward in enumerate(rewards, start=1)))


@pytest.fixture
def opened(browser):
    """Function that opens a report; the test fails if the page used the network or had an error."""
    contexts, faults = [], []

    def open_report(path, address="", *, width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: request.url.startswith("file://") or faults.append(request.url))
        page.on("console", lambda message: message.type == "error" and faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append("a dialog opened"), dialog.dismiss()))
        page.route(lambda url: not url.startswith("file://"), lambda route: route.abort())
        page.set_default_timeout(30_000)
        page.goto(f"file://{path}{address}")
        if options.get("java_script_enabled", True):
            page.wait_for_selector(".episode, #episodes .note", state="attached")
        return page

    open_report.faults = faults
    yield open_report
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of two runs, the first with recorded training and tasks that only RLFT solved; they share one task."""
    folder = tmp_path_factory.mktemp("runs")
    sft = [episode("north"), long("south", (-0.1, -0.2, -0.3, -0.4), success=False), episode("east", success=False)]
    lost = replace(episode("west", success=False), terminated=True, truncated=False)
    rlft = [episode("north"), long("south", (-0.1, 1.0), text="Hall"), episode("east"), lost]
    training = [[episode(f"walk-{number}", success=number > 0)] * 2 for number in range(3)]
    one = make_run(folder / "one", {"sft": sft, "rlft": rlft}, [iteration(number) for number in range(3)], training)
    (one / "recipe.yaml").write_text("rlft: {gamma: 0.5, episodes: 4}", encoding="utf-8")
    write_jsonl(one / "trajectories" / "advantages-00001.jsonl", [[0.75], [-0.25]])
    two = make_run(folder / "two", {"rlft": [long("south", (0.0, 0.0, 1.0), text="Cellar")]})
    return write_report(read_runs([one, two]), folder / "report.html")


def address(of, **more):
    return "#" + "&".join(f"{name}={value}" for name, value in {"of": of, **more}.items())


SFT, RLFT = "one/eval-sft-local-sampled", "one/eval-rlft-local-sampled"
UNNAMED = """() => [...document.querySelectorAll('button, input, select, [tabindex], [role]')].filter(element =>
    element.getAttribute('role') !== 'presentation' && !element.textContent.trim()
    && !element.getAttribute('aria-label') && !(element.labels && element.labels.length)).map(e => e.outerHTML)"""
"""Script that returns the controls of the page without an accessible name."""


def lists(page, tasks):
    """Wait until the list shows these tasks, because episodes of another source are unpacked in the background."""
    from playwright.sync_api import expect

    expect(page.locator(".row .name")).to_have_text(tasks)


def names(page):
    return page.locator(".row .name").all_inner_texts()


def seen(page):
    """Return the observations that are shown."""
    return page.locator(".step pre").all_inner_texts()


# ---- opening, filtering ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_opens_with_the_trained_policy_and_filters(opened, report):
    page = opened(report)
    assert page.locator("#source option:checked").inner_text() == "rlft, sampled, reflections by local (4)"
    lists(page, ["west", "north", "south", "east"])
    page.select_option("#order", "recorded")
    lists(page, ["north", "south", "east", "west"])
    assert page.locator(".whose").inner_text() == "one: rlft, sampled, reflections by local"
    assert seen(page) == ["Room 1."]
    assert page.evaluate(UNNAMED) == []
    assert page.locator("#list").get_attribute("aria-activedescendant") == "row-0"
    page.select_option("#outcome", "failure")
    lists(page, ["west"])
    page.select_option("#outcome", "success")
    page.fill("#task", "S")
    lists(page, ["south", "east"])
    assert page.locator("#count").inner_text() == "2 of 4 episodes"
    page.fill("#task", "nowhere")
    assert page.locator("#episodes").inner_text() == "No episode fits these filters."
    page.fill("#task", "")
    page.select_option("#source", label="sft, sampled, reflections by local (3)")
    page.select_option("#outcome", "out of time")
    lists(page, ["south", "east"])
    assert not page.locator("#iteration").is_visible()
    page.select_option("#outcome", "")
    page.select_option("#source", label="training (6)")
    page.select_option("#order", "newest")
    lists(page, ["walk-2", "walk-2", "walk-1", "walk-1", "walk-0", "walk-0"])
    page.select_option("#order", "failed")
    lists(page, ["walk-0", "walk-0", "walk-1", "walk-1", "walk-2", "walk-2"])
    assert page.locator(".numbers dt").all_inner_texts() == ["reward", "reward-to-go"]  # none recorded for iteration 0
    page.fill("#iteration", "1")
    lists(page, ["walk-1", "walk-1"])
    assert page.locator(".numbers dd").all_inner_texts() == ["+1.00", "+1.00", "+0.75"]  # the last is the advantage


@pytest.mark.slow
def test_episodes_are_sorted_by_outcome_return_and_length(opened, report):
    page = opened(report)
    for order, tasks in {
        "failed": ["west", "north", "south", "east"],
        "low": ["west", "south", "north", "east"],
        "high": ["north", "east", "south", "west"],
        "long": ["south", "north", "east", "west"],
        "short": ["north", "east", "west", "south"],
    }.items():
        page.select_option("#order", order)
        lists(page, tasks)
        assert page.locator(".episode h3").inner_text() == tasks[0]
    page.wait_for_url(lambda url: "order=short" in url)
    lists(opened(report, page.evaluate("location.hash")), ["north", "east", "west", "south"])


@pytest.mark.slow
def test_tasks_on_which_runs_disagree_come_first(opened, tmp_path):
    one = [long("z", (0.1,), success=False), long("y", (0.5,)), long("x", (0.2,)), long("w", (0.3,))]
    two = [long("z", (0.1,), success=False), long("y", (0.9,)), long("x", (0.2,), success=False)]
    runs = [make_run(tmp_path / name, {"rlft": played}) for name, played in (("one", one), ("two", two))]
    path = write_report(read_runs(runs), tmp_path / "report.html")
    page = opened(path)
    page.select_option("#order", "apart")
    lists(page, ["x", "y", "z", "w"])  # first success of one alone, then returns
    assert page.locator(".row small").first.inner_text() == "1 of 2 runs won · return +0.20 · 1 step"
    page.wait_for_url(lambda url: "order=apart" in url)
    lists(opened(path, page.evaluate("location.hash")), ["x", "y", "z", "w"])
    alone = opened(write_report(read_runs(runs[:1]), tmp_path / "alone.html"), "#of=one&order=apart")
    assert alone.locator("#order option[value=apart]").count() == 0
    assert alone.locator("#order").input_value() == "failed"


@pytest.mark.slow
def test_the_worst_groups_of_tasks_lead_to_their_first_failure(opened, report, tmp_path):
    def of(group, *outcomes):
        tasks = [Task(f"{group}-{number}", {"group": group}) for number in range(len(outcomes))]
        return [replace(episode(success=won), task=task) for task, won in zip(tasks, outcomes, strict=True)]

    run = make_run(tmp_path / "one", {"rlft": [*of("red", True, True), *of("blue", True, False)]})
    page = opened(write_report(read_runs([run]), tmp_path / "report.html"))
    rows = page.locator("#groups tbody tr")
    assert rows.all_inner_texts() == ["blue\t50% [9, 91]\t2"]
    page.select_option("#outcome", "success")
    rows.locator("a").click()
    lists(page, ["blue-1", "red-0", "red-1", "blue-0"])
    assert page.locator(".episode h3").inner_text() == "blue-1"
    assert not opened(report).locator("#groups").is_visible()


# ---- stepping --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_step_shows_menu_probabilities_reward_and_what_is_to_go(opened, report):
    page = opened(report, address(RLFT, episode=1))
    assert seen(page) == ["Hall 1"]
    assert page.locator(".numbers dd").all_inner_texts() == ["−0.10", "+0.40"]  # -0.1 + 0.5 * 1
    assert page.locator(".menu li").all_inner_texts() == ["left\n25.0%", "right\n75.0%"]
    assert page.locator(".menu .chosen").inner_text() == "right\n75.0%"
    assert page.locator(".menu i").evaluate_all("bars => bars.map(bar => bar.style.width)") == ["25%", "75%"]
    assert page.locator("blockquote").inner_text() == "Good."
    rows = page.locator(".overview tbody tr").all_inner_texts()
    assert [row.split() for row in rows] == [["1", "right", "−0.10", "+0.40"], ["2", "right", "+1.00", "+1.00"]]


@pytest.mark.slow
def test_the_prompt_is_what_the_policy_read_to_the_letter(opened, report):
    page = opened(report, address(RLFT, episode=1))
    first, second = (each.prompt.text for each in policy_views(long("south", (-0.1, 1.0), text="Hall"), PromptFormat()))
    assert not page.locator(".prompt pre").is_visible()
    page.locator(".prompt summary").click()
    assert page.locator(".prompt pre").text_content() == first
    page.click("#forward")
    assert page.locator(".prompt pre").is_visible()
    assert page.locator(".prompt pre").text_content() == second
    assert "right" in page.locator(".prompt .past").text_content()


@pytest.mark.slow
def test_a_prompt_is_shown_token_by_token_and_what_was_cut_is_struck_out(opened, trained_run, tmp_path):
    folder = forget_digests(shutil.copytree(trained_run(), tmp_path / "one"))
    page = opened(write_report(read_runs([folder]), tmp_path / "whole.html"))
    page.locator(".prompt summary").click()
    text = page.locator(".prompt pre").text_content()
    assert page.locator(".prompt del").count() == 0
    page.get_by_role("button", name="tokens", exact=True).click()
    tokens = page.locator(".token").all_text_contents()
    assert "".join(tokens).replace("↵", "") == text
    assert page.locator(".prompt summary").inner_text() == f"Prompt that the policy read: {len(tokens)} tokens"
    page.click("#forward")
    assert page.locator(".token").count() > 10  # it goes on so
    recipe = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(re.sub("max_length: .*", f"max_length: {len(tokens) - 2}", recipe))
    page = opened(write_report(read_runs([folder]), tmp_path / "cut.html"))
    page.locator(".prompt summary").click()
    unread = page.locator(".prompt del").all_text_contents()
    read = page.locator(".prompt span.part").all_text_contents()
    assert unread
    assert sorted("".join((*read, *unread)).replace("[...]", "")) == sorted(text)
    assert page.locator(".prompt summary").inner_text().endswith("cut to fit; struck out: what it did not read")
    page.get_by_role("button", name="tokens", exact=True).click()
    assert "".join(page.locator(".token").all_text_contents()).replace("↵", "") == "".join(read)


@pytest.mark.slow
def test_a_corrected_thought_is_shown_with_what_was_struck_out_and_added(opened, tmp_path):
    (turn,) = episode().turns
    choice = replace(turn.decision.choice, written=Written("It is lower.", (1,), (0.0,), 1))
    said = {"corrector": Utterance("It is higher.")}
    turn = replace(turn, decision=replace(turn.decision, choice=choice), said=said)
    path = make_run(tmp_path / "one", {"rlft": [replace(episode(), turns=(turn,))]})
    page = opened(write_report(read_runs([path]), path / "report.html"))
    assert page.locator("blockquote").all_inner_texts() == ["It is lower.", "It is lower. higher."]
    assert (page.locator("del").inner_text(), page.locator("ins").inner_text()) == ("lower.", "higher.")


@pytest.mark.slow
def test_pictures_of_a_state_are_drawn(opened, tmp_path):
    env = make_env("gym_cards", game="number_line", observation="image")
    env.reset(seed=0)
    (turn,) = episode().turns
    turns = tuple(
        replace(turn, observation=replace(turn.observation, text=text, images=env.observation.images))
        for text in ("", "Room 1.")
    )
    path = make_run(tmp_path / "one", {"rlft": [replace(episode(), turns=turns)]})
    page = opened(write_report(read_runs([path]), path / "report.html"))
    page.wait_for_function("document.querySelector('.picture').naturalWidth === 300")
    assert seen(page) == []
    page.click("#forward")
    assert (seen(page), page.locator(".picture").count()) == (["Room 1."], 1)


@pytest.mark.slow
def test_keys_buttons_slider_and_table_step_and_keys_typed_elsewhere_do_not(opened, report):
    page = opened(report, address(SFT, episode=1, order="recorded"))
    shown = [seen(page)]
    for key in ("ArrowRight", "l", "ArrowLeft", "End", "h", "Home", "ArrowLeft"):
        page.keyboard.press(key)
        shown.append(seen(page))
    assert [int(text.split()[1]) for (text,) in shown] == [1, 2, 3, 2, 4, 3, 1, 1]
    chosen = []
    for key in ("ArrowDown", "j", "k", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
        chosen.append(page.locator(".row[aria-selected=true] .name").inner_text())
    assert chosen == ["east", "east", "south", "north", "north"]
    page.keyboard.press("/")
    page.keyboard.type("sl/?")
    assert page.locator("#task").input_value() == "sl/?"
    page.locator("#task").fill("south")
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    assert seen(page) == ["Room 2"]
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    page.click("#forward")
    page.click("#last")
    page.click("#last", force=True)  # it is the last step, and the focus stays
    assert seen(page) == ["Room 4"]
    page.locator("#slider").focus()
    page.keyboard.press("ArrowLeft")
    assert seen(page) == ["Room 3"]
    page.locator(".overview tbody tr").first.click()
    assert page.locator("#place").inner_text() == "1 / 4"
    page.keyboard.press("ArrowRight")
    assert page.locator(".overview .now").inner_text().split()[0] == "2"
    page.locator("#task").fill("")
    page.locator("nav a").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".row[aria-selected=true] .name").inner_text() == "south"


# ---- comparing, and the address --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_policies_are_compared_on_one_task_step_by_step(opened, report):
    page = opened(report, address(SFT))
    page.select_option("#beside", label="rlft, sampled, reflections by local (4)")
    page.select_option("#outcome", "differ")
    lists(page, ["south", "east"])
    assert page.locator(".row .marks").first.inner_text().split() == ["◷", "✓"]
    for shown in (["Room 1", "Hall 1"], ["Room 2", "Hall 2"], ["Room 3", "Hall 2"]):
        assert seen(page) == shown
        page.click("#forward")
    assert "the episode ended here" in page.locator(".episode").last.inner_text()
    assert page.locator("#place").inner_text() == "4 / 4"


@pytest.mark.slow
def test_repetitions_of_a_task_are_compared_in_their_order(opened, tmp_path):
    sft = [long("a", (1.0,), text=f"sft {number}") for number in range(3)]
    rlft = [long("a", (1.0,), text=f"rlft {number}") for number in range(2)]
    path = make_run(tmp_path / "one", {"sft": sft, "rlft": rlft})
    page = opened(write_report(read_runs([path]), path / "report.html"), address(SFT, beside=RLFT))
    for pair in (["sft 0 1", "rlft 0 1"], ["sft 1 1", "rlft 1 1"], ["sft 2 1", "rlft 1 1"]):
        assert seen(page) == pair
        page.locator("#viewer").press("j")


@pytest.mark.slow
def test_the_address_leads_back_to_the_step(opened, report):
    page = opened(report, address(SFT, beside="two/eval-rlft-local-sampled"))
    page.fill("#task", "sou")
    page.click("#forward")
    page.wait_for_url(lambda url: "step=2" in url)
    again = opened(report, page.evaluate("location.hash"))
    assert seen(again) == ["Room 2", "Cellar 2"]
    lists(again, ["south"])
    assert again.locator("#viewer").evaluate("viewer => viewer.getBoundingClientRect().top < innerHeight / 2")
    assert again.locator(".whose").all_inner_texts()[1].startswith("two: rlft")
    again.fill("#task", "north")
    assert "No episode of this task is here." in again.locator(".episode").last.inner_text()
    odd = opened(report, "#of=gone&episode=9999&step=-3&iteration=x&outcome=%00&%")  # an address of another report
    assert odd.locator(".episode").count() == 1
    assert odd.locator("#place").inner_text().startswith("1 / ")


# ---- hostile, small, dark, silent ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_hostile_text_is_shown_and_never_obeyed_and_no_other_script_runs(opened, report, tmp_path):
    text = f"{HOSTILE} <img src=x onerror=alert(1)> </script><!--<script> {{}} ${{1}} \u2028"
    said = episode(text, text=text, reflection=text, menu=("wait", text))
    path = make_run(tmp_path / "<b>&", {"rlft": [said]}, [iteration(0, lesson=text)], [[said]])
    (path / "recipe.yaml").write_text(text, encoding="utf-8")
    page = opened(write_report(read_runs([path]), path / "report.html"))
    inside = "</pre><script>alert('x')</script> & ␛[31mred␛[0m ␀␇ \ufffdgnp.exe <img src=x onerror=alert(1)>"
    for place in (".row .name", ".episode h3", ".episode pre", "blockquote", ".menu .chosen span:first-child"):
        assert inside in page.locator(place).first.text_content()
    assert page.locator("img, main b:not([style]), :not(section, body) > script").count() == 0
    assert page.locator("#runs details").count() == 1  # the text has not closed the elements around it
    changed = report.read_text(encoding="utf-8").replace("<main>", "<main><script>document.title = 'obeyed'</script>")
    (tmp_path / "changed.html").write_text(changed, encoding="utf-8")
    assert opened(tmp_path / "changed.html").title() == "one, two: Reflect-RL"
    assert "Content Security Policy" in opened.faults.pop()


@pytest.mark.slow
def test_narrow_screens_dark_ones_and_those_without_scripts_have_a_page(opened, report):
    page = opened(report, address(SFT, beside=RLFT, episode=1), width=320, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    assert page.locator("#forward").is_visible()
    colours = "getComputedStyle(document.body).backgroundColor + getComputedStyle(document.body).color"
    assert page.evaluate(colours) == "rgb(18, 22, 28)rgb(230, 233, 238)"
    silent = opened(report, java_script_enabled=False)
    assert silent.locator("table").first.is_visible()
    assert silent.locator("svg").first.is_visible()
    assert "needs JavaScript" in silent.locator("noscript").inner_text()
    assert not silent.locator("#viewer").is_visible()


@pytest.mark.slow
def test_a_damaged_block_is_a_sentence(opened, report, tmp_path):
    text = re.sub('id="source-0">.{4}', 'id="source-0">AAAA', report.read_text(encoding="utf-8"))
    (tmp_path / "damaged.html").write_text(text, encoding="utf-8")
    page = opened(tmp_path / "damaged.html", address(SFT))
    assert "cannot be unpacked" in page.locator("#episodes .note").inner_text()
    page.keyboard.press("j")
    page.select_option("#source", "1")
    page.wait_for_selector(".row")
    lists(page, ["west", "north", "south", "east"])


@pytest.mark.slow
def test_ten_thousand_episodes_open_filter_and_scroll_with_few_elements(opened, tmp_path):
    path = make_run(tmp_path / "large", {"rlft": [episode("t-won"), episode("t-lost", success=False)]})
    (file,) = (path / "trajectories").iterdir()
    head, won, lost = file.read_text(encoding="utf-8").splitlines(keepends=True)
    kinds = [lost.replace("t-lost", "t-won"), *[won] * 9]
    file.write_text(head + "".join(kinds[n % 10].replace("t-won", f"task-{n}") for n in range(10_000)), "utf-8")
    page = opened(write_report(read_runs([path]), path / "report.html"))
    assert page.locator("#count").inner_text() == "10,000 episodes"
    page.locator("#list").evaluate("list => { list.scrollTop = list.scrollHeight }")
    page.wait_for_selector("#row-9999")
    assert names(page)[-1] == "task-9999"
    page.fill("#task", "task-77")
    page.select_option("#outcome", "out of time")
    lists(page, ["task-770", *(f"task-77{number}0" for number in range(10))])
    assert page.locator(".row").count() < 200
