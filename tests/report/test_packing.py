"""The data for the viewer."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
from records import chose
from run_folders import blocks, episode, forget_digests, iteration, make_run, pictures, tasks, unpacked
from transformers import PreTrainedTokenizerFast

from reflectrl.core import Image, Task, Utterance, Written
from reflectrl.core.jsonl import write_jsonl
from reflectrl.lm.plain_text import PlainText
from reflectrl.prompts import PromptFormat
from reflectrl.report import report
from reflectrl.report.packing import MAX_ACTIONS, Album, RecordedEpisode, columns, kept_parts, worst_groups
from reflectrl.report.runs import read_runs
from reflectrl.report.sources import PageLimits, find_sources, read_source, read_sources
from reflectrl.rollout.iteration import wilson_interval
from reflectrl.rollout.turn import policy_views


def packed(*played):
    return columns([RecordedEpisode(trajectory) for trajectory in played], Album())


def only_step(played):
    """Return the texts, the menu and the step of a packed episode of one step."""
    found = packed(played)
    ((*_, (step,)),) = found["episodes"]
    return found["texts"], [found["texts"][text] for text in found["menus"][step[1]]], step


def test_episodes_and_steps_are_packed_whole():
    won, late = episode("a"), episode("b", success=False, text="\n  Room 7.", reflection="Turn.")
    lost = replace(late, terminated=True, truncated=False, seed=7)
    found = packed(won, lost, late)
    assert tasks(found) == ["a", "b", "b"]
    assert [each[2:5] for each in found["episodes"]] == [[0, 0, None], [1, 7, None], [2, 0, None]]
    assert packed(replace(episode(), turns=()))["episodes"] == [[0, -1, 0, 0, None, []]]
    texts, menu, (seen, _, said, *numbers) = only_step(late)
    assert (texts[seen], menu, texts[said]) == ("\n  Room 7.", ["left", "right"], "Turn.")
    assert numbers == [1, -0.5, 1, 0.0, None, 0, 0, [2500, 7500], -1, [], [], [], -1]


def test_what_is_the_same_is_said_once():
    found = packed(*[episode()] * 50)
    assert sorted(found["texts"]) == ["Good.", "Room 1.", "left", "right", "t-0"]
    assert len(found["menus"]) == 1
    (turn,) = episode(text="Room 1.").turns
    turn = replace(turn, observation=replace(turn.observation, task="Find the key."))
    other = replace(turn, observation=replace(turn.observation, task="Find the door."))
    found = packed(replace(episode(), turns=(turn, turn, other)))
    ((_, goal, _, _, _, steps),) = found["episodes"]
    assert found["texts"][goal] == "Find the key."
    assert [found["texts"][step[0]] for step in steps] == ["Room 1.", "Room 1.", "Find the door.\nRoom 1."]


def test_a_long_menu_keeps_the_probable_actions_and_the_chosen_one():
    menu = tuple(f"cat file-{number}" for number in range(60))
    odds = [0.02 if number < 40 else 0.01 for number in range(60)]
    _, kept, step = only_step(episode(menu=menu, odds=odds))
    assert kept == [*menu[: MAX_ACTIONS - 1], menu[59]]
    assert step[3] == MAX_ACTIONS - 1
    assert step[8] == 60 - MAX_ACTIONS
    assert step[9] == 17 * 200 + 19 * 100


def test_probabilities_are_whole_ten_thousandths_from_none_to_all():
    odds = (-0.1, 0.0, 0.000049, 0.000051, 0.0002, 0.5, 0.99996, 1.1)
    _, _, step = only_step(episode(menu=tuple(f"go {number}" for number in range(len(odds))), odds=odds))
    assert step[10] == [0, 0, 0, 1, 2, 5000, 10_000, 10_000]


def test_incomplete_steps_are_packed_and_long_texts_cut():
    played = episode(odds=(), reflection=None, text="x" * 5000)
    turn = replace(played.turns[0], decision=chose(9, "right", -0.29, 0.56, ()))
    texts, menu, step = only_step(replace(played, turns=(turn,)))
    assert (menu, step[2], step[3], step[8:]) == (["left", "right"], -1, -1, [0, 0, [], -1, [], [], [], -1])
    assert texts[step[0]] == "x" * 4000 + " [1000 more characters]"


def test_a_corrected_thought_is_packed_with_its_changes():
    (turn,) = episode().turns
    written = Written('{"thoughts": "It is lower now.", "action": "left"}', (1,), (0.0,), 0)
    choice = replace(turn.decision.choice, written=written)
    said = {"corrector": Utterance("Then it is higher now.")}
    turn = replace(turn, decision=replace(turn.decision, choice=choice), said=said)
    texts, _, step = only_step(replace(episode(), turns=(turn,)))
    assert texts[step[11]] == written.text
    runs = [(kind, texts[words]) for kind, words in step[12]]
    assert runs == [(-1, "It"), (1, "Then it"), (0, "is"), (-1, "lower"), (1, "higher"), (0, "now.")]


def test_prompts_are_packed_by_their_parts_for_as_many_episodes_as_there_is_time_for(tmp_path):
    path = make_run(tmp_path / "nano", {"random": [episode()] * 3, "rlft": [episode()] * 3})

    def prompts(limits):
        return {
            source.policy: [
                "".join(block["texts"][text] for _, text in steps[0][14]) for *_, steps in block["episodes"]
            ]
            for source in read_sources(read_runs([path]), limits).found
            for block in [unpacked(source.block)]
        }

    [view] = policy_views(episode(), PromptFormat())
    assert prompts(PageLimits()) == {"random": [""] * 3, "rlft": [view.prompt.text] * 3}
    assert prompts(PageLimits(prompts=4)) == {"random": [""] * 3, "rlft": [view.prompt.text] * 2 + [""]}
    few = read_sources(read_runs([path]), PageLimits(prompts=4)).missing
    assert few == ("Prompts are included for the first 2 episodes of each policy; `reflectrl watch` shows them all.",)


def test_what_was_cut_from_a_part_is_told_from_what_was_read():
    assert kept_parts("a\nb\nc\n", "b\nc\n") == [(False, "a\n"), (True, "b\nc\n")]
    assert kept_parts("a\n", "") == [(False, "a\n"), (True, "")]
    assert kept_parts("abcdefgh\n", "ab[...]gh\n") == [(True, "ab"), (False, "cdef"), (True, "[...]gh\n")]
    menu = kept_parts("0. go north\n1. stay\n2. go south\n", "0. go[...]\n1. stay\n2. go[...]\n")
    rest = [(True, "[...]\n1. stay\n2. go"), (False, " south"), (True, "[...]\n")]
    assert menu == [(True, "0. go"), (False, " north"), *rest]


def test_the_worst_groups_are_the_environments_or_those_of_an_option():
    def of(options, *outcomes, tasks=4):
        return [
            replace(episode(success=won), task=Task(f"{options}-{number % tasks}", options))
            for number, won in enumerate(outcomes)
        ]

    played = [*of({"group": "hard", "x": 1}, True, False, False, False), *of({"group": "easy"}, *[True] * 8)]
    [(name, rate, low, high, count, failed)] = worst_groups(played)  # nothing failed in the other
    assert (name, rate, count, failed) == ("hard", 0.25, 4, 1)
    assert (low, high) == wilson_interval(0.25, 4)
    played = [each for at in range(3) for each in of({"start": at, "end": [at], "size": 9}, at > 0, at > 1)]
    assert [(name, rate) for name, rate, *_ in worst_groups(played)] == [
        ("start 0", 0),
        ("start 1", 0.5),
    ]
    one_each = [replace(episode(), task=Task(f"{n}", {"seed": n})) for n in range(9)]
    assert worst_groups(one_each) == worst_groups([]) == []


@pytest.mark.slow
def test_the_page_of_one_run_has_the_tokens_that_its_policy_read(trained_run, tmp_path):
    folder = shutil.copytree(trained_run(), tmp_path / "one")
    [run] = read_runs([folder])
    rlft = next(source for source in find_sources(run).found if source.policy == "rlft")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "policy")
    [recorded, *_] = read_source(rlft, [])
    prompts = [view.prompt for view in policy_views(recorded.trajectory, recorded.layout)]
    whole = max(len(PlainText(tokenizer).prompt(prompt)) for prompt in prompts)

    def shown(*folders):
        found = {source.key: source for source in read_sources(read_runs(folders)).found}[rlft.key]
        block = unpacked(found.block)
        texts, steps = block["texts"], block["episodes"][0][5]
        tokens = [[texts[text] for text in block["tokens"][step[15]]] if step[15] >= 0 else None for step in steps]
        return tokens, [[(part, texts[text]) for part, text in step[14]] for step in steps]

    tokens, parts = shown(folder)
    assert ["".join(each) for each in tokens] == [prompt.text for prompt in prompts]
    assert all(part >= 0 for each in parts for part, _ in each)
    recipe = (folder / "recipe.yaml").read_text()
    forget_digests(folder)
    (folder / "recipe.yaml").write_text(re.sub("max_length: .*", f"max_length: {whole - 2}", recipe))
    tokens, parts = shown(folder)
    for each, prompt, spelled in zip(parts, prompts, tokens, strict=True):
        assert "".join(text for part, text in each if part >= 0) == "".join(spelled)
        assert len(spelled) <= whole - 2
        cut = len(PlainText(tokenizer).prompt(prompt)) > whole - 2
        assert any(part < 0 for part, _ in each) is cut
    few = read_sources(read_runs([folder]), PageLimits(tokens=0)).found
    assert [unpacked(source.block)["tokens"] for source in few] == [[]] * len(few)
    other = shutil.copytree(folder, tmp_path / "two")
    assert shown(folder, other)[0] == [None] * len(prompts)
    shutil.rmtree(folder / "policy")
    shutil.rmtree(folder / "policy-sft")
    shutil.rmtree(folder / "base")
    assert shown(folder)[0] == [None] * len(prompts)


# ---- pictures --------------------------------------------------------------------------------------------------------


def pictured(*data):
    """Return an episode of one step with these pictures of its state."""
    (turn,) = episode().turns
    images = tuple(Image(each) for each in data)
    return replace(episode(), turns=(replace(turn, observation=replace(turn.observation, images=images)),))


def test_each_picture_is_packed_once(tmp_path):
    small, large, other = b"small " * 4, b"large " * 100, b"other " * 4
    one = make_run(tmp_path / "one", {"sft": [pictured(small)], "rlft": [pictured(small, large), pictured(other)]})
    two = make_run(tmp_path / "two", {"rlft": [pictured(other)]})
    page = report([one, two], tmp_path / "report.html").read_text(encoding="utf-8")
    assert pictures(page) == [small, large, other]
    shown = {key: [each[5][0][13] for each in block["episodes"]] for key, block in blocks(page).items()}
    assert list(shown.values()) == [[[0]], [[0, 1], [2]], [[2]]]
    kept = read_sources(read_runs([one, two]), PageLimits(pictures=200))
    assert len(kept.pictures) == 2
    assert [each[5][0][13] for each in unpacked(kept.found[1].block)["episodes"]] == [[0, -1], [1]]
    (said,) = kept.missing
    assert said.startswith("one: pictures of states that are left out, as the page would become too large: 1;")
    assert str(one / "trajectories" / "images") in said
    kept = read_sources(read_runs([one]), PageLimits(characters=0))  # no pictures of episodes that are not shown
    assert not kept.found
    assert not kept.pictures


# ---- training --------------------------------------------------------------------------------------------------------


def trained_run(path, recorded, advantages=()):
    """Write a run with ``recorded`` iterations, and the advantages of some."""
    training = [[episode(f"{number}-{place}") for place in range(2)] for number in range(recorded)]
    make_run(path, {"rlft": [episode()]}, [iteration(number) for number in range(recorded)], training)
    for number, rows in enumerate(advantages):
        write_jsonl(path / "trajectories" / f"advantages-{number:05d}.jsonl", rows)
    return path


def training_of(path):
    page = report([path], path / "report.html").read_text(encoding="utf-8")
    return blocks(page)[f"{path.name}/training"], page


def test_advantages_are_those_that_the_trainer_recorded_for_these_episodes(tmp_path):
    found, _ = training_of(trained_run(tmp_path / "nano", 2, [[[0.25], [-1.5]]]))
    assert [steps[0][7] for *_, steps in found["episodes"]] == [0.25, -1.5, None, None]  # an older folder has none
    found, _ = training_of(trained_run(tmp_path / "rated", 1, [[[0.25], []]]))  # the second episode had no rating
    assert [steps[0][7] for *_, steps in found["episodes"]] == [0.25, None]
    found, page = training_of(trained_run(tmp_path / "odd", 1, [[[0.25], [-1.5, 2.0]]]))
    assert [steps[0][7] for *_, steps in found["episodes"]] == [None, None]
    assert "advantages-00000.jsonl does not fit the episodes beside it" in page


def test_what_a_page_cannot_hold_is_left_out_and_named(tmp_path):
    runs = read_runs([trained_run(tmp_path / "nano", 11)])
    kept = read_sources(runs, PageLimits(training=6))
    assert tasks(unpacked(kept.found[-1].block)) == ["0-0", "0-1", "5-0", "5-1", "10-0", "10-1"]
    assert kept.missing == ("nano: of training, 3 of 11 recorded iterations are here.",)
    first = read_sources(runs, PageLimits(training=1))
    assert tasks(unpacked(first.found[-1].block)) == ["0-0", "10-0"]
    assert "nano: of rlft-00000, the first 1 of 2 episodes are here." in first.missing
    small, large = [episode()], [replace(episode(), task=Task(f"{number * 7919:x}")) for number in range(500)]
    runs = read_runs([make_run(tmp_path / "large", {"sft": large, "rlft": small})])
    kept = read_sources(runs, PageLimits(evaluated=3))
    assert tasks(unpacked(kept.found[0].block)) == ["0", "1eef", "3dde"]
    assert kept.missing == ("large: of sft, sampled, reflections by local, the first 3 of 500 episodes are here.",)
    kept = read_sources(runs, PageLimits(characters=1000))
    assert [source.policy for source in kept.found] == ["rlft"]
    assert kept.missing[0].startswith("large: the 500 episodes of sft, sampled, reflections by local are left out")


def test_files_of_other_names_are_no_episodes_of_training(tmp_path):
    path = make_run(tmp_path / "nano", {"rlft": [episode()]})
    for name in ("rlft-x.jsonl", "rlft-.jsonl", "advantages-00000.jsonl"):
        (path / "trajectories" / name).write_text("{", encoding="utf-8")
    assert [source.key for source in read_sources(read_runs([path])).found] == ["nano/eval-rlft-local-sampled"]
