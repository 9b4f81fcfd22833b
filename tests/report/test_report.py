"""Reports of run folders that are written here with the library's own writers."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from run_folders import HOSTILE, blocks, episode, iteration, make_run, tasks

from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import write_jsonl
from reflectrl.endpoint.account import Tokens
from reflectrl.endpoint.journal import PaidReply, RejectedCall
from reflectrl.report import print_table, write_report
from reflectrl.report.curves import curves, running_mean, success_band
from reflectrl.report.escape import escaped
from reflectrl.report.runs import Pace, Point, Run, read_runs
from reflectrl.report.table import table_rows
from reflectrl.rollout.metrics import wilson_interval

EVALUATED = (
    "eval-random-none-sampled",
    "eval-sft-local-sampled",
    "eval-rlft-local-sampled",
    "eval-expert-none-sampled",
)


def half_won(episodes=10):
    return [episode(f"t-{number}", success=number % 2 == 0) for number in range(episodes)]


def page_of(*runs):
    return write_report(runs, runs[0] / "report.html").read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Which elements a browser would make, each closed where it should be."""

    VOID = ("meta", "input")

    def __init__(self, page):
        super().__init__()
        self.seen, self.open, self.attributes, self.text = [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(autouse=True)
def _no_colours_on_request(monkeypatch):
    """Some continuous integration asks for colours in pipes; these tests are about pipes without them."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path):
    """A run that went through all stages."""
    played = {"random": [episode(success=False)], "sft": half_won(), "rlft": half_won(30), "expert": [episode()]}
    training = [[episode(f"{number}-{place}") for place in range(5)] for number in range(4)]
    return make_run(tmp_path / "nano", played, [iteration(number) for number in range(4)], training)


# ---- the table -------------------------------------------------------------------------------------------------------


def test_the_table_is_plain_when_it_is_piped(run, capsys):
    print_table([run])
    lines = capsys.readouterr().out.splitlines()
    assert re.split(" {2,}", lines[0]) == (
        ["run", "policy", "reflections by", "mode", "episodes", "success [95 %]", "return", "steps", "illegal"]
    )
    assert re.split(" {2,}", lines[3]) == (
        ["nano", "rlft", "local", "sampled", "30", "50% [33, 67]", "+0.25", "1.0", "50.0%"]
    )
    assert [line.split()[1] for line in lines[1:]] == ["random", "sft", "rlft", "expert"]


def test_a_long_run_name_is_not_cut_in_a_pipe(tmp_path, capsys):
    name = "dangerous_taxi-" + "n" * 150
    print_table([make_run(tmp_path / name, {"rlft": half_won()})])
    assert f"\n{name}  rlft" in capsys.readouterr().out


def test_a_name_that_looks_like_markup_or_a_terminal_command_is_shown_as_it_is(tmp_path, capsys):
    print_table([make_run(tmp_path / "[bold]:smile:\x1b[2J", {"rlft": half_won()})])
    assert "[bold]:smile:␛[2J  rlft" in capsys.readouterr().out


def test_runs_share_the_untrained_policies_and_keep_their_own_rows(tmp_path):
    played = {"random": [episode(success=False)], "rlft": half_won(), "expert": [episode()]}
    runs = read_runs([make_run(tmp_path / name, played) for name in ("nano", "blank")])
    assert [(name, row.policy) for name, row in table_rows(runs)] == [
        ("all runs", "random"),
        ("nano", "rlft"),
        ("blank", "rlft"),
        ("all runs", "expert"),
    ]


def test_untrained_policies_that_differ_are_both_shown(tmp_path):
    runs = read_runs([make_run(tmp_path / name, {"random": half_won(n)}) for name, n in (("a", 4), ("b", 6))])
    assert [name for name, _ in table_rows(runs)] == ["a", "b"]


def test_runs_of_the_same_name_are_told_apart_by_their_paths(tmp_path):
    paths = [make_run(tmp_path / place / "nano") for place in ("a", "b")]
    assert [run.name for run in read_runs(paths)] == [str(path) for path in paths]


def test_a_run_that_is_given_twice_is_shown_once(run, monkeypatch):
    monkeypatch.chdir(run)
    assert [each.name for each in read_runs([Path(), run])] == ["nano"]


def test_a_run_without_an_evaluation_says_so(tmp_path, capsys):
    print_table([make_run(tmp_path / "nano")])
    assert capsys.readouterr().out == "nano: not evaluated yet; run `reflectrl eval` for it.\n"


def test_what_the_tasks_are_is_said_once_below_the_table_with_the_split(tmp_path, capsys):
    played = {"random": half_won(), "rlft": half_won()}
    runs = [make_run(tmp_path / name, played, benchmark="ALFWorld <valid_seen>") for name in ("a", "b")]
    print_table(runs)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[4] == "Played on ALFWorld <valid_seen>, split test."
    assert page_of(*runs).count("<p>Played on ALFWorld &lt;valid_seen&gt;, split test.</p>") == 1


def test_runs_on_different_tasks_are_named_and_those_without_words_are_not(tmp_path, capsys):
    played = {"rlft": half_won()}
    words = {"a": "12 of 134 games", "b": "140 games", "c": "140 games", "d": ""}
    print_table([make_run(tmp_path / name, played, benchmark=said) for name, said in words.items()])
    assert capsys.readouterr().out.splitlines()[5:] == [
        "Played on a: 12 of 134 games, split test.",
        "Played on b, c: 140 games, split test.",
    ]


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_page_is_well_formed_and_stands_alone(run):
    page = page_of(run)
    outline = Outline(page)
    assert {"table", "svg", "details", "pre", "noscript"} <= set(outline.seen)
    assert not {"link", "img", "iframe"} & set(outline.seen)
    assert not [value for name, value in outline.attributes if name in ("src", "href") and not value.startswith("#")]
    assert "url(" not in page
    assert "prefers-color-scheme: dark" in page
    for figure in re.findall("<svg.*?</svg>", page):
        ElementTree.fromstring(figure)


def test_the_content_policy_names_the_one_script_and_no_other(run):
    page = page_of(run)
    scripts = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert len(scripts) == 1
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    kinds = [value for name, value in Outline(page).attributes if name == "type" and "/" in value]
    assert set(kinds) == {"text/plain", "application/json"}  # blocks of data, which no browser runs


def test_equal_runs_give_an_equal_page(run):
    assert page_of(run) == page_of(run)


def test_the_page_holds_every_evaluated_episode_and_those_recorded_in_training(run):
    found = blocks(page_of(run))
    assert list(found) == [f"nano/{name}" for name in (*EVALUATED, "training")]
    assert tasks(found["nano/eval-rlft-local-sampled"]) == [f"t-{number}" for number in range(30)]
    assert tasks(found["nano/training"]) == [f"{number}-{place}" for number in range(4) for place in range(5)]
    assert [each[4] for each in found["nano/training"]["episodes"]] == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5


def test_the_page_says_what_training_went_through_and_took(tmp_path):
    line = [*(iteration(number) for number in range(6)), *(iteration(number, stage="full") for number in range(6, 8))]
    path = make_run(tmp_path / "nano", metrics=line)
    (path / "recipe.yaml").write_text("rlft: {episodes: 8, gamma: 0.9}", encoding="utf-8")
    page = page_of(path)
    low, high = (round(100 * end) for end in wilson_interval(0.5, 2 * 8))
    cells = re.findall("<td[^>]*>(.*?)</td>", page)
    assert cells == ["main", "6", "0 to 5", "50% [35, 65]", "full", "2", "6 to 7", f"50% [{low}, {high}]"]
    assert "Training: 8 iterations, 80 environment steps, 4 s, reflection cache hit rate 90%." in page


def test_the_page_says_how_long_the_stages_took(tmp_path):
    path = make_run(tmp_path / "nano")
    done = {"done": True, "inputs": {}, "wall_seconds": 1234.56, "cpu_seconds": 99.0}
    (path / "stages.json").write_text(json.dumps({"sft": done, "rlft": {"done": False, "inputs": {}}, "x": 1}))
    assert re.findall("<td[^>]*>(.*?)</td>", page_of(path)) == ["sft", "1,234.6", "99.0", "rlft", "not done", ""]


PRICE = "endpoint: {model: gpt-4o, price: {prompt: 2.5, completion: 10}}"


@pytest.mark.parametrize(
    ("recipe", "model", "dollars", "note"),
    [
        (f"data: {{{PRICE}}}", "gpt-4o", "0.0035", "0.0035 dollars in all."),
        ("data: {endpoint: {model: <b>}}", "&lt;b&gt;", "not known", "The recipe has no price for some of them."),
        ("data: [", "", "not known", "The recipe has no price for some of them."),
    ],
)
def test_the_page_says_what_chat_models_were_asked_and_what_it_cost(tmp_path, recipe, model, dollars, note):
    path = make_run(tmp_path / "nano")
    (path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    replies = [PaidReply("a", "Good.", Tokens(1000, 50), False), PaidReply("b", "Bad.", Tokens(400, 0), True)]
    replies.append(PaidReply("a", None, Tokens(), False))  # to be forgotten: it was counted when it came
    write_jsonl(path / "calls" / "teacher" / "replies.jsonl", replies)
    write_jsonl(path / "calls" / "teacher" / "rejected.jsonl", [RejectedCall("c", "empty", ())])
    before = {file: file.read_bytes() for file in path.rglob("*.jsonl")}
    page = page_of(path)
    assert re.findall("<td[^>]*>(.*?)</td>", page) == ["teacher", model, "2", "1", "1,400", "50", dollars]
    assert note in page
    assert {file: file.read_bytes() for file in path.rglob("*.jsonl")} == before


def test_a_run_that_asked_nobody_has_no_table_of_calls(run):
    assert "Calls to chat models" not in page_of(run)


def test_nothing_that_an_environment_or_a_model_says_reaches_the_browser_as_a_command(tmp_path):
    said = episode(HOSTILE, text=HOSTILE, reflection=HOSTILE, menu=("wait", HOSTILE))
    path = make_run(tmp_path / "n<i>", {"rlft": [said]}, [iteration(0, stage=HOSTILE), iteration(1)], [[said]])
    (path / "recipe.yaml").write_text(f"description: {HOSTILE}", encoding="utf-8")
    page = page_of(path)
    outline = Outline(page)
    assert outline.seen.count("script") == 4  # ours, the index, and two blocks
    assert "n<i>" in outline.text
    harmless = "</pre><script>alert('x')</script> & ␛[31mred␛[0m ␀␇ \ufffdgnp.exe"
    assert "".join(outline.text).count(harmless) == 2  # the stage in the table, and the recipe; curves cut its name
    for block in blocks(page).values():
        assert block["texts"].count(harmless) == 1  # task, observation, reflection and action are one text
        assert len(block["texts"]) == 2
    assert not set(page) & {"\x00", "\x07", "\x1b", "\u202e"}


def test_a_text_without_end_is_cut_and_says_so():
    assert escaped("<" * 5000) == "&lt;" * 4000 + " [1000 more characters]"


def test_lone_surrogates_can_be_written():
    assert escaped("a\ud800b\x85c") == "a\ufffdb\ufffdc"


# ---- curves ----------------------------------------------------------------------------------------------------------


def points(*values, stage="main"):
    return [Point(number, stage, value, value, 0.5, number) for number, value in enumerate(values)]


def trained(name, line):
    return Run(name, Path(name), "", (), tuple(line), ())


def test_the_running_mean_covers_five_iterations_and_begins_anew_with_each_stage():
    line = [*points(1, 0, 0, 0, 0, 1, 1), *points(0, 1, stage="full")]
    means = running_mean(line, [point.success for point in line])
    assert means == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 5, 2 / 5, 0, 1 / 2])


def test_each_run_has_a_line_in_each_panel_and_a_name_in_the_legend():
    drawn = curves([trained("one", points(0.1, 0.2)), trained("none", []), trained("two", points(0.3, 0.1))])
    assert re.findall('<li class="swatch (c\\d)">(\\w+)</li>', drawn) == [("c0", "one"), ("c2", "two")]
    assert drawn.count('<path class="mean"') == 2 * 3


def test_a_success_rate_is_drawn_between_zero_and_one():
    (places,) = re.findall('class="raw" d="M([^"]*)"', curves([trained("one", points(0, 1, 0.5))]).split("</svg>")[0])
    assert [float(place.split()[1]) for place in places.split("L")] == [192.0, 18.0, 105.0]


def test_all_six_quantities_are_drawn_where_the_files_have_them(run):
    titles = ["success rate", "return", "entropy, nats a step", "steps an episode", "reflections from the cache"]
    titles.append("environment steps a second")
    assert re.findall("<figcaption>(.*?)</figcaption>", curves(read_runs([run]))) == titles
    old = trained("old", points(0.1, 0.2))
    assert re.findall("<figcaption>(.*?)</figcaption>", curves([old])) == titles[:3]
    few = replace(old, paces=(Pace(1.0, 0.5, 20.0),))  # training was killed before it wrote the second line
    assert re.findall("<figcaption>(.*?)</figcaption>", curves([few])) == [*titles[:3], *titles[4:]]


def test_the_band_is_the_wilson_interval_of_the_running_mean():
    run = replace(trained("one", points(0.0, 0.5, 1.0)), episodes=8)
    assert success_band(run) == [wilson_interval(0.0, 8), wilson_interval(0.25, 16), wilson_interval(0.5, 24)]
    assert curves([run]).count('class="band"') == 1
    assert 'class="band"' not in curves([trained("one", points(0.5))])  # the recipe does not say how many episodes


def test_stages_are_marked_where_there_is_more_than_one():
    two = [*points(0.1, 0.2)[:1], Point(1, "dropoff", 0.5, 0.5, 0.5, 9)]
    assert curves([trained("one", two)]).count(">dropoff</text>") == 3
    assert 'class="stage"' not in curves([trained("one", points(0.1, 0.2))])


@pytest.mark.parametrize("line", [points(0.5), points(0.5, 0.5), points(1e-12, 2e-12), points(-1e9, 1e9)])
def test_short_flat_and_steep_curves_are_drawn(line):
    for figure in re.findall("<svg.*?</svg>", curves([trained("one", line)])):
        assert len(ElementTree.fromstring(figure).findall("g/path")) == 2
        assert "nan" not in figure


def test_a_long_curve_is_thinned_out_and_keeps_its_end():
    drawn = curves([trained("one", points(*[0.0] * 4999, 1.0))])
    places = re.findall('class="raw" d="M([^"]*)"', drawn)[0].split("L")
    assert len(places) <= 400
    assert places[-1] == "350.0 18.0"


# ---- what is missing or wrong ----------------------------------------------------------------------------------------


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    page = page_of(make_run(tmp_path / "nano"))
    Outline(page)
    assert "nano: not evaluated yet" in page
    assert "No iteration of training yet" in page


def test_missing_trajectories_are_named(run):
    for path in (run / "trajectories").iterdir():
        path.unlink()
    page = page_of(run)
    assert "eval-rlft-local-sampled.jsonl is missing" in page
    assert "no episodes of training are recorded here." in page


def test_no_run_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="no run folder was given; expected at least one"):
        write_report([], tmp_path / "report.html")


@pytest.mark.parametrize(
    "report", [lambda path: print_table([path]), lambda path: write_report([path], path.with_name("r.html"))]
)
@pytest.mark.parametrize("name", ["empty", "gone", "file"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, report, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(
        InvalidInput, match=f"{name} is no run folder: its recipe.yaml cannot be read .*; expected a folder"
    ):
        report(tmp_path / name)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("metrics.jsonl", '{"iteration": 0}', "metrics.jsonl, line 1 lacks field 'e"),
        ("metrics.jsonl", "[]", "metrics.jsonl, line 1 is \\[\\]; expected an object"),
        ("metrics.jsonl", "{", "metrics.jsonl, line 1 is not JSON"),
        (
            "throughput.jsonl",
            '{"seconds": NaN, "reflection_hit_rate": 0}',
            "line 1, seconds is nan; expected a number that is",
        ),
        ("throughput.jsonl", '{"seconds": 1e300, "reflection_hit_rate": 0}', "line 1 holds a number beyond 1e"),
        ("eval.jsonl", "{}", "eval.jsonl, line 1 lacks field 'metrics'"),
        ("stages.json", "{", "stages.json is not the ledger of a run folder"),
        ("calls/teacher/replies.jsonl", "{}", "replies.jsonl, line 1 lacks field"),
        ("trajectories/advantages-00000.jsonl", '["a"]', "line 1\\[0\\] is 'a'; expected a number"),
        ("trajectories/eval-rlft-local-sampled.jsonl", "{}", "sampled.jsonl, line 1 names the format None"),
    ],
)
def test_a_damaged_file_is_named_and_the_old_report_stays(run, file, line, message):
    page = page_of(run)
    (run / file).parent.mkdir(parents=True, exist_ok=True)
    (run / file).write_text(line + "\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=message):
        write_report([run], run / "report.html")
    assert (run / "report.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize("out", ["", "gone/report.html", "recipe.yaml/report.html"])
def test_a_report_that_cannot_be_written_is_refused_and_leaves_nothing(run, out):
    before = sorted(run.iterdir())
    with pytest.raises(InvalidInput, match=r"cannot be written|is a folder"):
        write_report([run], run / out)
    assert sorted(run.iterdir()) == before


def test_the_command_prints_the_table_and_says_where_the_page_is(run):
    code = "from reflectrl.cli import main; main()"
    command = [sys.executable, "-c", code, "report", "."]
    done = subprocess.run(command, cwd=run, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "report: report.html"
    assert "nano  rlft" in done.stdout
    assert (run / "report.html").is_file()
