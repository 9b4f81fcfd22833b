"""A memory that grows while a policy is trained: by batches, after resuming, and over several processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rlft_on_ranks import remember, remembering
from tiny_rlft import Killed, Run
from warm_processes import start_ranks

from reflectrl.core import Trajectory
from reflectrl.core.jsonl import decode
from reflectrl.training.checkpoints import last_checkpoint


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    folder = tmp_path_factory.mktemp("straight")
    return folder, remembering(folder).train()


def shown(episode: Trajectory) -> set[str]:
    return {turn.said["memory"].text for turn in episode.turns}


def test_r11_a_batch_remembers_earlier_batches_only(straight: tuple[Path, Run]):
    _, trained = straight
    first, *later = trained.episodes
    assert any(each.success for each in first)
    assert all(shown(each) == {""} for each in first)
    before = {each.turns[0].observation.text for each in first if each.success}
    for batch in later:
        texts = set().union(*(shown(each) for each in batch)) - {""}
        assert texts
        assert all(any(start in text for start in before) for text in texts)
        before |= {each.turns[0].observation.text for each in batch if each.success}
    hits = [each.memory_hits for each in trained.iterations]
    assert hits[0] == 0
    assert all(hit > 0.5 for hit in hits[1:])


def test_a_resumed_training_remembers_the_same(straight: tuple[Path, Run], tmp_path: Path):
    folder, trained = straight
    with pytest.raises(Killed):
        remembering(tmp_path, dies_after=2).train()  # a batch after the checkpoint, whose successes are in the file
    (tmp_path / "memory.jsonl").unlink()  # the checkpoint has its own
    again = remembering(tmp_path)
    again.train(last_checkpoint(tmp_path / "run"))
    assert (tmp_path / "memory.jsonl").read_bytes() == (folder / "memory.jsonl").read_bytes()
    assert again.iterations == trained.iterations[2:]
    assert all(weight.equal(trained.weights[name]) for name, weight in again.weights.items())


@pytest.mark.slow
def test_processes_read_what_all_have_left(tmp_path: Path):
    for process in start_ranks(tmp_path, remember, tmp_path):
        assert process.wait() == 0, process.said
    files = [(tmp_path / f"memory_{rank}.jsonl").read_bytes() for rank in (0, 1)]
    assert files[0] == files[1]
    rows = json.loads((tmp_path / "episodes.json").read_text())
    first, *later = ([decode(Trajectory, row, "episode") for row in batch] for batch in rows)
    assert all(shown(each) == {""} for each in first)
    known = {entry["start"] for entry in map(json.loads, files[0].decode().splitlines()[1:])}
    others = known - {each.turns[0].observation.text for batch in (first, *later) for each in batch}
    read = " ".join(text for batch in later for each in batch for text in shown(each))
    assert any(start in read for start in others)
