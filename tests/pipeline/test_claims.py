"""Claims: what a file may say, and what finished runs say of it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_line import reflectrl, refused
from run_folders import evaluated

from reflectrl.core import InvalidInput
from reflectrl.pipeline.claims import Finding, judge, plan_claims, read_claims, waiting_runs
from reflectrl.report.forest import ForestRow, forest
from reflectrl.report.gain import Interval

SHIPPED = Path(__file__).parents[2] / "benchmarks" / "claims.yaml"
LINE = "says: It is so., source: ours, recipes: [number_line/nano], seeds: 0-2"
SVG = "{http://www.w3.org/2000/svg}"
SILENT = "{set: {players.reflector.player: none}}"


def found(folder: Path, less: str) -> Finding:
    """Judge the claim that number_line/nano is better than another side, by the runs in a folder."""
    file = folder / "claims.yaml"
    file.write_text(f"claim: {{{LINE}, less: {less}}}")
    [pair] = plan_claims(read_claims(file), folder)
    return judge(pair)


@pytest.mark.slow
def test_the_shipped_claims_are_about_recipes_that_there_are(tmp_path: Path) -> None:
    pairs = plan_claims(read_claims(SHIPPED), tmp_path)
    runs = waiting_runs(pairs)
    assert len(runs) == len({run.folder for run in runs}) < sum(len(pair.more) + len(pair.less) for pair in pairs)
    for pair in pairs:
        more, less = ([run.folder for run in side] for side in (pair.more, pair.less))
        assert more != less or pair.claim.more.rows != pair.claim.less.rows


@pytest.mark.parametrize(
    ("before", "verdict"),
    [([0.5, 0.52, 0.48], "holds"), ([0.9, 0.5, 0.6], "cannot be told"), ([0.9] * 3, "does not hold")],
)
def test_two_policies_of_the_same_runs_are_compared_run_by_run(
    tmp_path: Path, before: list[float], verdict: str
) -> None:
    for seed, sft in enumerate(before):
        evaluated(tmp_path / f"number_line-nano-seed{seed}", 0.9, sft, episodes=1000)
    finding = found(tmp_path, "{policy: sft}")
    assert (finding.runs, finding.verdict) == (3, verdict)


def test_two_recipes_are_compared_as_groups_once_both_have_three_runs(tmp_path: Path) -> None:
    assert found(tmp_path, SILENT).verdict == "too few runs"
    file = tmp_path / "claims.yaml"
    [pair] = plan_claims(read_claims(file), tmp_path)
    for run in pair.more:
        evaluated(run.folder, 0.9, 0.5)
    for run in pair.less:
        finding = judge(pair)
        assert (finding.verdict, finding.improvement) == ("too few runs", None)
        evaluated(run.folder, 0.5, 0.3, "players.reflector.player=none")
    finding = judge(pair)
    assert (finding.runs, finding.verdict, finding.improvement) == (3, "holds", 1.0)
    assert finding.cells()[3:] == ("90 % [86, 93]", "50 % [44, 56]", "+40 points [+33, +46]", "100", "holds")


@pytest.mark.parametrize(
    ("claim", "facts"),
    [
        ("less: {policy: sftt}", "claim.less.policy: its recipe does not evaluate 'sftt'; did you mean 'sft'"),
        ("more: {reflections: blank}", "claim.more.reflections: its recipe does not evaluate 'blank'"),
        ("less: {split: tesst}", "claim.less.split: .*'tesst'"),
        ("less: {}", "compares a side with itself"),
        ("less: {policy: sft}, seeds: 0-1", "claim.seeds: given 0-1; expected 3 or more"),
    ],
)
def test_a_claim_that_can_have_no_verdict_is_refused_before_work(tmp_path: Path, claim: str, facts: str) -> None:
    (tmp_path / "claims.yaml").write_text(f"claim: {{says: x, source: y, recipes: [number_line/nano], {claim}}}")
    with pytest.raises(InvalidInput, match=facts):
        waiting_runs(plan_claims(read_claims(tmp_path / "claims.yaml"), tmp_path))


def test_recipes_of_one_name_in_two_folders_have_runs_of_their_own(tmp_path: Path) -> None:
    files = [tmp_path / folder / "x.yaml" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("extends: number_line/nano")
    (tmp_path / "claims.yaml").write_text(
        f"claim: {{says: x, source: y, recipes: {[*map(str, files)]}, less: {{policy: sft}}}}"
    )
    pairs = plan_claims(read_claims(tmp_path / "claims.yaml"), tmp_path)
    assert len(waiting_runs(pairs)) == sum(len(pair.more) for pair in pairs) == 20


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("[]", "holds no claims"),
        ("a: {says: x}", "a.source: nothing was given"),
        ("a: {says: x, source: y, recipes: [], les: {}}", "a.les: unknown key"),
        ("a: {says: x, source: y, recipes: [z], effect: 0}", "a.effect: given 0"),
        ("a: {says: x, source: y, recipes: [z], more: {mode: odd}}", "a.more.mode: given"),
        ("a: 3", "a.says"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, text: str, facts: str) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=facts):
        read_claims(file)


def test_an_unknown_claim_or_recipe_is_refused_before_work(tmp_path: Path) -> None:
    assert "'negative'; did you mean 'negatives'?" in refused("claims", SHIPPED, "--only", "negative")
    file = tmp_path / "claims.yaml"
    file.write_text("a: {says: x, source: y, recipes: [number_line/nona], less: {policy: sft}}")
    assert "number_line/nona" in refused("claims", file)
    assert "is a folder" in refused("claims", SHIPPED, "--figure", tmp_path)


def test_a_forest_plot_has_a_line_per_difference_on_one_scale_and_shows_names_as_text() -> None:
    differences = [Interval(0.43, 0.38, 0.47), Interval(-0.12, -0.2, -0.05), Interval(0.0, -0.03, 0.03)]
    verdicts = ["holds", "does not hold", "cannot be told"]
    rows = [ForestRow("<b>", "a/b", *each) for each in zip(differences, verdicts, strict=True)]
    picture = ElementTree.fromstring(forest(rows, "Gains & losses"))
    texts = ["".join(text.itertext()) for text in picture.iter(f"{SVG}text")]
    assert [text for text in texts if text in verdicts] == verdicts
    assert texts.count("<b> a/b") == 3
    places = {text.text: float(text.get("x", "")) for text in picture.iter(f"{SVG}text") if text.text}
    points = [float(dot.get("cx", "")) for dot in picture.iter(f"{SVG}circle")]
    scale = (places["+40"] - places["0"]) / 0.4
    assert points == pytest.approx([places["0"] + scale * each.mean for each in differences], abs=0.2)
    [line] = [path.get("d", "") for path in picture.iter(f"{SVG}path") if path.get("class") == "holds"]
    ends = [float(number) for number in re.findall(r"[\d.]+", line)]
    assert ends == pytest.approx([places["0"] + scale * 0.38, 46, places["0"] + scale * 0.47], abs=0.2)


@pytest.mark.slow
@pytest.mark.usefixtures("_warm_runs")
def test_one_command_makes_the_missing_runs_and_tells_the_verdicts(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(
        """extends: number_line/nano
name: tiny
data: {samples: 40}
sft: {reflector: {steps: 2}, policy: {steps: 2}}
rlft: {lessons: [{name: main, iterations: 1}], episodes: 4}
eval: {episodes: 20, policies: [sft, rlft], greedy: false}
arms: {silent: {players.reflector.player: none}}
"""
    )
    (tmp_path / "claims.yaml").write_text(
        f"""words:
  says: Words help.
  source: nobody
  recipes: ["{tmp_path / "tiny.yaml"}"]
  less: {{arm: silent}}
  effect: 90
  seeds: 3-5
"""
    )
    figure = tmp_path / "claims.svg"
    command = ("claims", tmp_path / "claims.yaml", "--runs", tmp_path / "runs", "--format", "markdown")
    told = reflectrl(*command, "--figure", figure).out
    assert "does not hold" in [text.text for text in ElementTree.parse(figure).iter(f"{SVG}text")]
    assert told.splitlines()[0].startswith("| claim | recipe | runs | more | less |")
    assert told.splitlines()[-1].endswith("| does not hold |")
    assert len([*(tmp_path / "runs").iterdir()]) == 6
    assert reflectrl(*command).out == told
