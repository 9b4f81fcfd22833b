"""Reports of run folders that are written with the library's own writers."""

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
from run_folders import HOSTILE, PACE, blocks, episode, evaluated, iteration, make_run, tasks, write_ledger
from typer.testing import CliRunner

from reflectrl.cli.app import app
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import write_jsonl
from reflectrl.endpoint.account import Tokens
from reflectrl.endpoint.journal import PaidReply, RejectedCall
from reflectrl.report import report
from reflectrl.report.curves import curves
from reflectrl.report.markup import escaped
from reflectrl.report.page import report_page
from reflectrl.report.runs import RunData, read_runs
from reflectrl.report.series import running_mean, success_band
from reflectrl.report.tables import print_table, table_rows
from reflectrl.rollout.iteration import Iteration, SFTProgress, Throughput, wilson_interval

EVALUATED = ("random-none", "sft-local", "rlft-local", "expert-none")


def half_won(episodes=10):
    return [episode(f"t-{number}", success=number % 2 == 0) for number in range(episodes)]


def page_of(*runs):
    return report(runs, runs[0] / "report.html").read_text(encoding="utf-8")


def cells(page):
    return re.findall("<td[^>]*>(.*?)</td>", page)


class Outline(HTMLParser):
    """Parser that collects the elements of a page, and checks that each is closed properly."""

    VOID = ("meta", "input")

    def __init__(self, page):
        super().__init__()
        self.seen, self.open, self.attributes, self.text = [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        self.open += [tag] * (tag not in self.VOID)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(autouse=True)
def _no_colours_on_request(monkeypatch):
    """Unset the variables by which some continuous integration requests colours in pipes."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path):
    """A run with all stages."""
    played = {"random": [episode(success=False)], "sft": half_won(), "rlft": half_won(30), "expert": [episode()]}
    training = [[episode(f"{number}-{place}") for place in range(5)] for number in range(4)]
    return make_run(tmp_path / "nano", played, [iteration(number) for number in range(4)], training)


# ---- the table -------------------------------------------------------------------------------------------------------


def test_the_table_is_plain_when_piped(run, tmp_path, capsys):
    print_table(read_runs([run]))
    lines = capsys.readouterr().out.splitlines()
    assert re.split(" {2,}", lines[0]) == (
        ["run", "policy", "reflections by", "mode", "episodes", "success [95 %]", "return", "steps", "illegal"]
    )
    assert re.split(" {2,}", lines[3]) == (
        ["nano", "rlft", "local", "sampled", "30", "50% [33, 67]", "+0.25", "1.0", "50.0%"]
    )
    assert [line.split()[1] for line in lines[1:]] == ["random", "sft", "rlft", "expert"]
    for name, shown in ("dangerous_taxi-" + "n" * 150, None), ("[bold]:smile:\x1b[2J", "[bold]:smile:␛[2J"):
        print_table(read_runs([make_run(tmp_path / name, {"rlft": half_won()})]))
        assert f"\n{shown or name}  rlft" in capsys.readouterr().out


def test_runs_share_untrained_policies_that_agree(tmp_path, monkeypatch):
    played = {"random": [episode(success=False)], "rlft": half_won(), "expert": [episode()]}
    runs = read_runs([make_run(tmp_path / name, played) for name in ("nano", "blank")])
    rows = [(name, row.policy) for name, row in table_rows(runs)]
    assert rows == [("all runs", "random"), ("nano", "rlft"), ("blank", "rlft"), ("all runs", "expert")]
    differ = [make_run(tmp_path / place / "same", {"random": half_won(n)}) for place, n in (("a", 4), ("b", 6))]
    assert [name for name, _ in table_rows(read_runs(differ))] == [str(path) for path in differ]
    monkeypatch.chdir(differ[0])
    assert [each.name for each in read_runs([Path(), differ[0]])] == ["same"]  # the same folder twice


def test_the_tasks_are_named_below_the_table(tmp_path, capsys):
    words = {"a": "12 of <134> games", "b": "140 games", "c": "140 games", "d": ""}
    runs = [make_run(tmp_path / name, {"rlft": half_won()}, benchmark=said) for name, said in words.items()]
    print_table(read_runs(runs))
    assert capsys.readouterr().out.splitlines()[5:] == [
        "Played on a: 12 of <134> games, split test.",
        "Played on b, c: 140 games, split test.",
    ]
    assert page_of(*runs).count("<p>Played on a: 12 of &lt;134&gt; games, split test.</p>") == 1


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_page_is_well_formed_stands_alone_and_allows_its_own_scripts(run):
    page = page_of(run)
    outline = Outline(page)
    assert {"table", "svg", "details", "pre", "noscript"} <= set(outline.seen)
    assert not {"link", "img", "iframe"} & set(outline.seen)
    assert not [value for name, value in outline.attributes if name in ("src", "href") and not value.startswith("#")]
    assert "url(" not in page
    for figure in re.findall("<svg.*?</svg>", page):
        ElementTree.fromstring(figure)
    scripts = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert len(scripts) == 2
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed};" in page
    kinds = [value for name, value in outline.attributes if name == "type" and "/" in value]
    assert set(kinds) == {"text/plain", "application/json"}  # blocks of data, which browsers do not execute
    assert page_of(run) == page
    found = blocks(page)
    assert list(found) == [*(f"nano/eval-{name}-sampled" for name in EVALUATED), "nano/training"]
    assert tasks(found["nano/eval-rlft-local-sampled"]) == [f"t-{number}" for number in range(30)]
    assert tasks(found["nano/training"]) == [f"{number}-{place}" for number in range(4) for place in range(5)]
    assert [each[4] for each in found["nano/training"]["episodes"]] == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5


OPENED = """
import sys
from collections import Counter
from pathlib import Path
opened = Counter()
sys.addaudithook(lambda event, given: event == "open" and opened.update([Path(str(given[0])).name]))
from reflectrl.report import report
report([Path(sys.argv[1])])
found = ((name, count) for name, count in sorted(opened.items()) if name.startswith(("eval-", "rlft-")))
print(*(f"{name}={count}" for name, count in found), file=sys.stderr)
"""


@pytest.mark.slow
def test_each_file_of_episodes_is_read_once(run):
    done = subprocess.run([sys.executable, "-c", OPENED, str(run)], capture_output=True, text=True, check=True)
    once = [f"eval-{name}-sampled.jsonl=1" for name in sorted(EVALUATED)]
    training = ["rlft-00000.jsonl=2", *(f"rlft-{number:05d}.jsonl=1" for number in range(1, 4))]  # the first is counted
    assert done.stderr.split() == [*once, *training]


def test_the_page_says_what_training_went_through_and_took(tmp_path):
    line = [*(iteration(number) for number in range(6)), *(iteration(number, lesson="full") for number in range(6, 8))]
    path = make_run(tmp_path / "nano", metrics=line)
    (path / "recipe.yaml").write_text(
        "rlft: {episodes: 8, gamma: 0.9, lessons: [{iterations: 6}, {iterations: 6}]}", encoding="utf-8"
    )
    done = {"done": True, "inputs": {}, "wall_seconds": 1234.56, "cpu_seconds": 99.0}
    write_ledger(path, sft=done, rlft={"done": False, "inputs": {}}, x=1)
    page = page_of(path)
    low, high = (round(100 * end) for end in wilson_interval(0.5, 2 * 8))
    stages = ["main", "50% [35, 65]", "6", "0 to 5", "full", f"50% [{low}, {high}]", "2", "6 to 7"]
    going = ["nano", "rlft", "8 of 12 iterations", "0.0", "50%", "50%", "", "20.6", ""]
    assert cells(page) == [*going, *stages, "sft", "1,234.6", "99.0", "rlft", "not done", ""]
    assert "Training: 8 iterations, 80 environment steps, 4 s, reflection cache hit rate 90%." in page


PRICE = "endpoint: {model: gpt-4o, price: {prompt: 2.5, completion: 10}}"


@pytest.mark.parametrize(
    ("recipe", "model", "dollars", "note"),
    [
        (f"data: {{{PRICE}}}", "gpt-4o", "0.0045", "0.0045 dollars in all."),
        ("data: {endpoint: {model: a, base_url: http://localhost:1/v1}}", "a", "none", "None of them costs anything."),
        ("data: {endpoint: {model: <b>}}", "&lt;b&gt;", "not known", "The recipe has no price for some of them."),
        ("data: [", "", "not known", "The recipe has no price for some of them."),
    ],
)
def test_the_page_says_what_chat_models_were_asked_and_what_it_cost(tmp_path, recipe, model, dollars, note):
    path = make_run(tmp_path / "nano")
    (path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    replies = [
        PaidReply("a", "Good.", Tokens(1000, 50), False),
        PaidReply("b", "1", Tokens(400, 0), True, words="Bad."),
    ]
    replies.append(PaidReply("a", None, Tokens(), False))  # revokes the first, which was counted on arrival
    replies.append(PaidReply("d", None, Tokens(400, 0), False, sent=True))
    write_jsonl(path / "calls" / "teacher" / "replies.jsonl", replies)
    write_jsonl(path / "calls" / "teacher" / "rejected.jsonl", [RejectedCall("c", "empty", ())])
    before = {file: file.read_bytes() for file in path.rglob("*.jsonl")}
    page = page_of(path)
    assert cells(page) == ["teacher", model, "2", "1", "1", "1,400", "50", dollars]
    assert note in page
    assert "Requests without a reply: 1" in page
    assert {file: file.read_bytes() for file in path.rglob("*.jsonl")} == before


def test_hostile_texts_do_nothing_in_the_page(tmp_path):
    said = episode(HOSTILE, text=HOSTILE, reflection=HOSTILE, menu=("wait", HOSTILE))
    path = make_run(tmp_path / "n<i>", {"rlft": [said]}, [iteration(0, lesson=HOSTILE), iteration(1)], [[said]])
    (path / "recipe.yaml").write_text(f"description: {HOSTILE}", encoding="utf-8")
    page = page_of(path)
    outline = Outline(page)
    assert outline.seen.count("script") == 7  # our two scripts, clocks, index, pictures, and two blocks
    assert "n<i>" in outline.text
    harmless = "</pre><script>alert('x')</script> & ␛[31mred␛[0m ␀␇ \ufffdgnp.exe"
    assert "".join(outline.text).count(harmless) == 2  # in the table of stages and in the recipe; curves cut the name
    for block in blocks(page).values():
        assert block["texts"].count(harmless) == 1  # task, observation, reflection and action share one text
        assert len([text for text in block["texts"] if "alert" not in text]) == 2  # "wait", and the prompt's past
    assert not set(page) & {"\x00", "\x07", "\x1b", "\u202e"}
    assert escaped("<" * 5000) == "&lt;" * 4000 + " [1000 more characters]"
    assert escaped("a\ud800b\x85c") == "a\ufffdb\ufffdc"


# ---- curves ----------------------------------------------------------------------------------------------------------


def points(*values, lesson="main"):
    rows = (iteration(at, lesson=lesson, success=value, episode_return=value) for at, value in enumerate(values))
    return [Iteration(**row) for row in rows]


def trained(name, line):
    return RunData(name, Path(name), "", (), tuple(line), ())


def titles(drawn):
    return re.findall("<figcaption>(.*?)</figcaption>", drawn)


def heights(drawn):
    """Return the vertical places of the unsmoothed success rate, from the top."""
    (path,) = re.findall('class="raw" d="M([^"]*)"', drawn.split("</svg>")[0])
    return [float(place.split()[1]) for place in path.split("L")]


def test_each_run_has_a_line_in_each_panel_it_has_data_for(run):
    drawn = curves([trained("one", points(0.1, 0.2)), trained("none", []), trained("two", points(0.3, 0.1))])
    assert re.findall('<li class="swatch (c\\d)">(\\w+)</li>', drawn) == [("c0", "one"), ("c2", "two")]
    assert drawn.count('<path class="mean"') == 2 * 7
    assert 'class="lesson"' not in drawn
    two = [*points(0.1), points(0.1, 0.5, lesson="dropoff")[1]]
    assert curves([trained("one", two)]).count(">dropoff</text>") == 7
    every = ["Success rate", "Return", "Steps an episode", "Entropy (nats a step)", "Loss", "Gradient norm"]
    every += ["Learning rate", "Environment steps a second", "Reflections from the cache"]
    assert titles(curves(read_runs([run]))) == every
    killed = trained("killed", points(0.1, 0.2))
    assert titles(curves([killed])) == every[:7]
    few = replace(killed, paces=(Throughput(iteration=0, **PACE),))  # before it wrote the second line
    assert titles(curves([few])) == every


def test_runs_that_differ_in_the_seed_share_a_colour_and_have_a_mean_with_a_band(tmp_path):
    for name, seed, success in (("a", 0, 0.4), ("other", 0, 0.9), ("b", 1, 0.8)):
        line = [iteration(at, success=success) for at in range(20 + seed)]
        changed = ["rlft.gamma=0.5"] if name == "other" else []
        evaluated(tmp_path / name, 0.9, 0.5, "name=<&>", f"seed={seed}", *changed, metrics=line)
    page = curves(read_runs([tmp_path / name for name in ("a", "other", "b")]))
    assert re.findall('<li class="swatch (c\\d)">(.*?)</li>', page) == [
        ("c0", "&lt;&amp;&gt; rlft.gamma=0.9, 2 runs"),
        ("c1", "other"),
    ]
    panel = page.split("</svg>")[0]
    groups = re.findall('<g class="(c\\d)" data-run="(\\d)"><title>([^<]*)</title>(.*?)</g>', panel)
    assert [(colour, run, title) for colour, run, title, _ in groups] == [
        ("c0", "0", "a"),
        ("c0", "2", "b"),
        ("c0", "2", "&lt;&amp;&gt; rlft.gamma=0.9, 2 runs"),
        ("c1", "1", "other"),
    ]
    places = {title: re.findall("[ML]([\\d.]+) ([\\d.]+)", paths.split("mean")[-1]) for _, _, title, paths in groups}
    assert len(places["a"]) == 20
    heights = [{float(y) for _, y in places[title][:20]} for title in ("a", "b", groups[2][2])]
    assert heights[2] == {sum(map(max, heights[:2])) / 2}
    assert 'class="band"' in groups[2][3]
    assert "mean" not in groups[0][3] + groups[1][3]


def test_a_seed_that_has_just_begun_leaves_the_mean_of_the_others(tmp_path):
    for seed, many in ((0, 1), (1, 20)):
        lines = [iteration(at, success=0.4 + 0.4 * seed) for at in range(many)]
        evaluated(tmp_path / f"{seed}", 0.9, 0.5, f"seed={seed}", metrics=lines)
    panel = curves(read_runs([tmp_path / "0", tmp_path / "1"])).split("</svg>")[0]
    (run, paths), *more = re.findall('data-run="(\\d)"><title>[^<]*2 runs</title>(.*?)</g>', panel)
    assert (run, more) == ("1", [])  # the clock of the longest run
    band, mean = (re.findall("[ML][\\d.]+ ([\\d.]+)", path) for path in re.findall(' d="(.*?)"', paths))
    assert len(mean) == 20
    assert [float(y) for y in mean[:2]] == [87.6, 52.8]  # 60 %, then the 80 % of the one that goes on
    assert len(band) == 2


def test_a_run_has_the_colour_of_its_curves(tmp_path):
    for name, seed, gamma in (("a", 0, 0.9), ("b", 1, 0.9), ("other", 0, 0.5)):
        changed = (f"seed={seed}", f"rlft.gamma={gamma}")
        evaluated(tmp_path / name, 0.9, 0.5, *changed, metrics=[iteration(0)])
    page = report_page(read_runs([tmp_path / name for name in ("a", "b", "other")]))
    assert re.findall('<li class="swatch (.*?)">', page) == ["c0", "c1"]
    assert re.findall('<h3 class="swatch (.*?)">(.*?)</h3>', page) == [("c0", "a"), ("c0", "b"), ("c1", "other")]


def test_what_updates_of_one_pass_cannot_measure_is_named_and_not_drawn(tmp_path):
    def drawn(**values):
        lines = [iteration(number, **{name: value[number] for name, value in values.items()}) for number in range(2)]
        return curves(read_runs([make_run(tmp_path / str(len(list(tmp_path.iterdir()))), metrics=lines)]))

    single = drawn(kl=(-6e-9, 2e-8), clipped=(0.0, 0.0), success=(0.0, 0.0), validation_success=(0.0, 0.0))
    assert "0 throughout, but for rounding, and not drawn: KL divergence, Clipped steps.</p>" in single
    assert not {"KL divergence", "Clipped steps"} & set(titles(single))
    assert {"Success rate", "Validation success"} <= set(titles(single))  # no success at all is a result
    several = drawn(kl=(1e-5, 2e-4), clipped=(0.0, 0.01))
    assert {"KL divergence", "Clipped steps"} <= set(titles(several))
    assert "not drawn" not in several


def figure(drawn, title):
    """Return the text of the labels, and the vertical places of the lines by their classes, of one panel."""
    (svg,) = re.findall(f"<figcaption>{re.escape(title)}</figcaption>(<svg.*?</svg>)", drawn)
    root = ElementTree.fromstring(svg)
    lines = {path.get("class"): path.get("d")[1:].split("L") for path in root.findall("g/path")}
    ys = {name: [float(place.split()[1]) for place in places] for name, places in lines.items()}
    return {text.text: float(text.get("y")) - 4 for text in root.findall("text[@text-anchor='end']")}, ys


def test_a_constant_is_drawn_at_its_value_on_an_axis_with_0(tmp_path):
    run = make_run(tmp_path / "one", metrics=[iteration(number, learning_rate=1e-3, loss=-2.0) for number in range(9)])
    drawn = curves(read_runs([run]))
    labels, lines = figure(drawn, "Learning rate")
    assert lines["mean"] == [labels["0.0010"]] * 9
    assert labels["0.0020"] < labels["0.0010"] < labels["0.0000"]
    labels, lines = figure(drawn, "Loss")
    assert lines["mean"] == [labels["-2"]] * 9
    assert labels["0"] < labels["-2"] < labels["-4"]


def test_a_schedule_is_drawn_without_a_mean(tmp_path):
    rates = [1e-3 * 0.8**number for number in range(20)]
    lines = [iteration(number, learning_rate=rate, grad_norm=rate) for number, rate in enumerate(rates)]
    drawn = curves(read_runs([make_run(tmp_path / "one", metrics=lines)]))
    _, scheduled = figure(drawn, "Learning rate")
    _, measured = figure(drawn, "Gradient norm")
    assert scheduled == {"mean": measured["raw"]}
    assert measured["mean"] != measured["raw"]


def test_validation_is_drawn_where_it_was_played_and_its_best_is_named(tmp_path):
    lines = [iteration(number, validation_success=rate) for number, rate in enumerate([None, 0.9, None, 0.7])]
    run = make_run(tmp_path / "one", metrics=lines)
    drawn = titles(curves(read_runs([run])))
    assert "Validation success" in drawn
    assert "Greedy validation success" not in drawn
    page = report([run], tmp_path / "report.html").read_text()
    assert "best validation 90% after iteration 1, last 70%" in page


def test_the_validation_before_training_and_the_expert_are_shown(tmp_path):
    lines = [iteration(0, validation_start=0.4, validation_expert=0.95), iteration(1, validation_success=0.6)]
    run = make_run(tmp_path / "one", metrics=lines)
    _, drawn = figure(curves(read_runs([run])), "Validation success")
    assert len(drawn["raw"]) == 2  # a line from the start to the first validation
    page = report([run], tmp_path / "report.html").read_text()
    assert "last 60%, validation of the weights before RLFT 40%, of the expert 95%" in page


def test_thoughts_are_drawn_where_a_policy_writes(tmp_path):
    panels = {
        "thought_tokens": "Tokens written a step",
        "thought_distinct": "Distinct thoughts",
        "thought_templates": "Distinct templates",
        "thought_bleu": "Self-BLEU of thoughts",
        "thought_misread": "Misread states",
        "thought_consistent": "Consistent thoughts",
        "thought_corrected": "Corrected thoughts",
    }
    silent = titles(curves(read_runs([make_run(tmp_path / "silent", metrics=[iteration(n) for n in range(3)])])))
    lines = [iteration(number, **dict.fromkeys(panels, 0.25 * number)) for number in range(3)]
    drawn = titles(curves(read_runs([make_run(tmp_path / "one", metrics=lines)])))
    assert set(panels.values()).isdisjoint(silent)
    assert set(drawn) - set(silent) == set(panels.values())


def test_each_group_of_tasks_has_a_panel(tmp_path):
    lines = [iteration(number, success_by_group={"red": 0.5, "<b>": 0.1 * number}) for number in range(3)]
    validated = iteration(3, success_by_group={"red": 1.0}, validation_by_group={"a/b": 0.5})
    run = make_run(tmp_path / "one", metrics=[*lines, validated])
    drawn = titles(curves(read_runs([run])))
    assert drawn[-3:] == ["Success rate of &lt;b&gt;", "Success rate of red", "Validation success of a/b"]


def test_checks_of_sft_are_drawn_by_step_also_before_rlft(tmp_path):
    run = make_run(tmp_path / "one")
    checks = [
        SFTProgress(step, loss, 0.5 - step / 100, step / 40, None) for step, loss in ((10, None), (20, 0.8), (30, 0.4))
    ]
    write_jsonl(run / "sft" / "policy-training.jsonl", checks)
    with (run / "sft" / "policy-training.jsonl").open("a") as file:
        file.write('{"step": 40, "lo')  # the stage is at work
    drawn = curves(read_runs([run]))
    assert titles(drawn) == ["Loss of the policy", "Accuracy of the policy"]
    assert '<li class="swatch c0">one</li>' in drawn
    labels, lines = figure(drawn, "Loss of the policy")
    assert (len(lines["mean"]), len(lines["raw"])) == (3, 2)
    assert lines["raw"] == [labels["0.8"], labels["0.4"]]
    assert lines["mean"][1] > lines["mean"][0] > labels["0.8"]
    assert "step" in labels


def test_a_running_mean_covers_earlier_iterations_of_the_same_stage(tmp_path):
    lines = [iteration(number, lesson="pickup" if number < 3 else "full") for number in range(5)]
    [run] = read_runs([make_run(tmp_path / "one", metrics=lines)])
    assert running_mean(run.points, [0.0, 2.0, 4.0, 6.0, 8.0], 2) == [0.0, 1.0, 3.0, 6.0, 7.0]
    assert running_mean(run.points[1::3], [2.0, 8.0], 3) == [2.0, 8.0]  # iterations 1 and 4


def test_lines_have_a_band_of_wilson_intervals():
    run = replace(trained("one", points(0.0, 0.5, 1.0)), episodes=8)
    assert success_band(run) == [wilson_interval(0.0, 8), wilson_interval(0.25, 16), wilson_interval(0.5, 24)]
    assert curves([run]).count('class="band"') == 1
    for line in (points(0.5), points(0.5, 0.5), points(1e-12, 2e-12), points(-1e9, 1e9)):
        for figure in re.findall("<svg.*?</svg>", curves([trained("one", line)]))[:6]:  # all but the learning rate
            assert len(ElementTree.fromstring(figure).findall("g/path")) == 2  # no band: episodes are not known
            assert "nan" not in figure
    assert heights(curves([trained("one", points(0, 1, 0.5))])) == [192.0, 18.0, 105.0]
    *drawn, last = heights(curves([trained("one", points(*[0.0] * 4999, 1.0))]))
    assert len(drawn) < 400
    assert last == 18.0


# ---- what is missing or wrong ----------------------------------------------------------------------------------------


def test_what_is_not_there_yet_or_no_longer_is_named(run, tmp_path, capsys):
    young = make_run(tmp_path / "young")
    page = page_of(young)
    Outline(page)
    print_table(read_runs([young]))
    for text in page, capsys.readouterr().out:
        assert "young: not evaluated yet" in text
    for path in (run / "trajectories").iterdir():
        path.unlink()
    page = page_of(run)
    assert "eval-rlft-local-sampled.jsonl is missing" in page
    assert "no episodes of training are recorded here." in page


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for given, name in (([], "no run folder"), ([tmp_path / "empty"], "empty"), ([tmp_path / "gone"], "gone")):
        with pytest.raises(InvalidInput, match=name):
            print_table(read_runs(given))
        with pytest.raises(InvalidInput, match=name):
            report(given, tmp_path / "report.html")


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("metrics.jsonl", '{"iteration": 0}', "metrics.jsonl, line 1 .*'lesson'"),
        ("throughput.jsonl", json.dumps({"iteration": 0, **PACE, "seconds": 1e300}), "line 1 .*1e"),
        ("metrics.jsonl", json.dumps({**iteration(0), "of_another_version": 1}), "line 1 .*'of_another_version'"),
        ("stages.json", "{", "stages.json"),
        ("calls/teacher/replies.jsonl", "{}", "replies.jsonl, line 1"),
        ("trajectories/advantages-00000.jsonl", '["a"]', "line 1\\[0\\] is 'a'"),
    ],
)
def test_a_damaged_file_is_named_and_the_old_report_stays(run, file, line, message):
    page = page_of(run)
    (run / file).parent.mkdir(parents=True, exist_ok=True)
    (run / file).write_text(line + "\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=message):
        report([run], run / "report.html")
    assert (run / "report.html").read_text(encoding="utf-8") == page


def test_the_command_prints_the_table(run, monkeypatch, capsys):
    monkeypatch.chdir(run)
    before = sorted(run.iterdir())
    for out in ("", "gone/report.html", "recipe.yaml/report.html"):
        with pytest.raises(InvalidInput):
            report([run], run / out)
    assert sorted(run.iterdir()) == before
    assert capsys.readouterr().out == ""
    done = CliRunner().invoke(app, ["report", "."])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "report: report.html"
    assert "nano  rlft" in done.stdout
    assert (run / "report.html").is_file()
