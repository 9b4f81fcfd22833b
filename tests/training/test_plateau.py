"""Supervised fine-tuning to its plateau: held-out episodes, checks, the best weights, and resuming after a kill."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_models import LABELS, MAX_LENGTH, policy_row, reflector_row, save_tiny
from tiny_sft import fine_tune

from reflectrl.config.schema import SFTPlayerSection
from reflectrl.core.stop import Stop
from reflectrl.lm.encode import PromptEncoder, action_distribution
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import new_model
from reflectrl.lm.tokenizer import label_ids
from reflectrl.lm.writer import LMReflector
from reflectrl.rollout.iteration import SFTProgress, best_check
from reflectrl.training.checkpoints import last_checkpoint
from reflectrl.training.plateau import FALL, MAX_ROWS, MIN_ROWS, Plateau, Scored, held_out_rows, words_of
from reflectrl.training.sft_examples import ActionExample, TextExample, action_losses

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_tiny("gpt2", tmp_path_factory.mktemp("base") / "gpt2")


def rows(tasks, episodes, steps, row=lambda at: policy_row(f"|T{' ' * (at % 9)}P|", LABELS[at % 9 % 4])):
    """Return the rows of ``steps`` steps in each of ``episodes`` episodes of each task."""
    places = [(task, seed, step) for task in range(tasks) for seed in range(episodes) for step in range(steps)]
    return [replace(row(at), task=f"t{task}", seed=seed, step=step) for at, (task, seed, step) in enumerate(places)]


# ---- what is held out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "share", "held"),
    [
        (rows(20, 2, 4), 0.1, 16),  # two whole tasks
        (rows(20, 3, 2), 0.1, 0),  # 12 rows would say little
        (rows(19, 2, 6), 0.1, 24),  # four episodes, because less than two tasks are a tenth
        (rows(1, 1, 90), 0.5, 0),
        (rows(20, 2, 8), 0.0, 0),
        (rows(3, 2, 100), 0.5, MAX_ROWS),  # of three episodes, not all rows of the last
    ],
)
def test_held_out_rows_share_no_episode_with_those_of_training(given, share, held):
    trained, checked = held_out_rows(given, share, seed=1)
    assert len(checked) == held
    assert len(trained) == len(given) - (300 if held == MAX_ROWS else held)
    parts = [{(given[at].task, given[at].seed) for at in part} for part in (trained, checked)]
    assert not parts[0] & parts[1]
    if held and len({row.task for row in given}) * share >= 2:
        assert not {task for task, _ in parts[0]} & {task for task, _ in parts[1]}
    assert held_out_rows(given, share, seed=1) == (trained, checked)
    assert not held or held_out_rows(given, share, seed=2) != (trained, checked)


# ---- accuracy --------------------------------------------------------------------------------------------------------


def test_words_and_texts_are_right_or_wrong_as_a_whole(base):
    lm = new_model(base, labels=LABELS, seed=0)
    end = lm.tokenizer.eos_token_id
    texts = [(*lm.tokenizer(text)["input_ids"], end) for text in (" Mistake. Taxi at row 1.", " Zebras row")]
    assert words_of(lm.tokenizer, texts[0])[-1][-1] == len(texts[0]) - 2
    zebras, row = words_of(lm.tokenizer, texts[1])
    assert len(zebras) > 1  # no word of the tokenizer's corpus, so spelt
    examples = [TextExample((0,), text, len(text), "reflector") for text in texts]
    label = ActionExample(policy_row("x", "0").prompt, 0, (0,))
    wrong = (len(texts[0]) - 1, zebras[0])
    right = [tuple(at != place for at in range(len(text))) for text, place in zip(texts, wrong, strict=True)]
    told = []
    checks = Plateau(lm.model, lm.tokenizer, [*examples, label, label], SFTPlayerSection(), told.append)
    checks.add([("reflector", 3.0), ("reflector", 1.0), ("policy", 0.5)])
    scored = [*map(Scored, examples, (2.0, 4.0), right), Scored(label, 1.0, (True,)), Scored(label, 2.0, (False,))]
    checks.check(10, scored)
    words = len(words_of(lm.tokenizer, texts[0])) + 2
    assert told[0] == {
        "reflector": [SFTProgress(10, 2.0, 3.0, 0.0, (words - 1) / words)],  # one does not end, one is misspelt
        "policy": [SFTProgress(10, 0.5, 1.5, 0.5, None)],
    }


@pytest.mark.slow
def test_accuracies_are_those_of_greedy_decoding_and_of_the_most_probable_label(base, tmp_path):
    said = rows(1, 10, 4, lambda at: reflector_row(f"|T{' ' * (at % 9)}P|", f" Mistake. Taxi at row {at % 9 % 3}."))
    given = [*said, *rows(1, 10, 4)]
    lm, told = new_model(base, labels=LABELS, seed=0), []
    options = {"held_out": 0.5, "steps": 40, "batch_size": 8, "micro_batch_size": 8, "on_check": told.append}
    summary = fine_tune(lm, given, tmp_path, "both", **options)
    checked = [given[at] for at in held_out_rows(given, 0.5, 3)[1]]
    assert (summary.rows, summary.held_out) == (len(given) - len(checked), len(checked)) == (40, 40)
    held = {player: [row for row in checked if row.player == player] for player in ("reflector", "policy")}
    reflector = LMReflector(lm.model, lm.tokenizer, max_length=MAX_LENGTH, max_new_tokens=20)
    words = reflector.write([row.prompt for row in held["reflector"]], [0.0] * 20)
    exact = sum(said.text == row.completion.strip() for said, row in zip(words, held["reflector"], strict=True)) / 20
    assert 0 < exact < 1
    assert summary.best["reflector"].accuracy == exact
    assert exact < summary.best["reflector"].word_accuracy < 1
    add_choice_head(lm.base)
    encoder = PromptEncoder(lm.tokenizer, label_ids(lm.tokenizer, LABELS), MAX_LENGTH)
    batch = encoder.batch([row.prompt for row in held["policy"]], CPU)
    with torch.no_grad():
        chosen = action_distribution(lm.model, batch)[0].logits.argmax(-1)
        targets = torch.tensor([int(row.completion) for row in held["policy"]])
        losses = action_losses(lm.model, batch, targets, 0.0)
    assert summary.best["policy"].accuracy == (chosen == targets).sum().item() / 20
    assert summary.best["policy"].held_out_loss == pytest.approx(losses.mean().item(), abs=1e-5)
    assert [len(told[-1][player]) for player in held] == [4, 4]  # every 10 steps


def test_many_rows_of_a_task_do_not_stand_for_other_tasks():
    given = rows(100, 3, 100)
    trained, checked = held_out_rows(given, 0.1, seed=1)
    assert len(checked) == MAX_ROWS
    assert len({given[at].task for at in checked}) == 10
    assert len({given[at].task for at in trained}) == 90


def test_the_kind_of_actions_that_is_right_least_often_is_told():
    menu = policy_row("|T", LABELS[0]).prompt
    actions = ("take the key", "go left", "go right", "go up")
    prompt = replace(menu, menu=replace(menu.menu, actions=actions))
    go, take = (ActionExample(prompt, target, (1,)) for target in (1, 0))
    plateau = Plateau(torch.nn.Linear(1, 1), None, [go, take], SFTPlayerSection())
    right, wrong, rare = Scored(go, 0.1, (True,)), Scored(take, 3.0, (False,)), Scored(take, 0.1, (True,))
    plateau.check(10, [*[right] * 30, *[wrong] * 12, *[rare] * 4])
    plateau.check(20, [*[right] * 30, *[wrong] * 15])  # too few to tell
    first, second = plateau.history["policy"]
    assert (first.hardest, first.hardest_accuracy) == ("take", 0.25)
    assert (second.hardest, second.hardest_accuracy) == (None, 1.0)


@pytest.mark.slow
def test_held_out_rows_unlike_play_are_not_checked(base, tmp_path):
    given, options = rows(1, 40, 1, noise), {**OVERFIT, "steps": 4}
    trained, checked = held_out_rows(given, 0.5, 3)
    for number, kept in ((MIN_ROWS, MIN_ROWS), (5, len(checked))):  # too few would say little
        lm, folder = new_model(base, labels=LABELS, seed=0), tmp_path / str(number)
        summary = fine_tune(lm, given, folder, "policy", unchecked=checked[number:], **options)
        assert (summary.rows, summary.held_out) == (len(trained), kept)


# ---- plateau ---------------------------------------------------------------------------------------------------------


def test_of_equal_checks_the_last_is_kept():
    checks = [SFTProgress(step, None, loss, 0.0, None) for step, loss in enumerate((3.0, 1.0, 1.0, 2.0))]
    assert best_check({"policy": checks}) == 2
    spoken = [replace(check, word_accuracy=right) for check, right in zip(checks, (0.9, 0.1, 0.2, 0.8), strict=True)]
    assert best_check({"policy": spoken}) == 2  # it is trained by its probabilities
    assert best_check({"reflector": spoken}) == 0  # it speaks its most probable words
    assert best_check({"policy": checks, "reflector": spoken}) == 2


OVERFIT = {"steps": 90, "check_every": 2, "patience": 3, "held_out": 0.5, "save_every": 5, "learning_rate": 0.02}


def noise(at):
    """Return a row whose label says nothing about any other's."""
    return policy_row(f"|T{at}P|", LABELS[(at * 7 + at // 3) % 4])


def test_the_rate_falls_to_nothing_within_a_quarter_of_the_steps_before_the_plateau():
    section = SFTPlayerSection(steps=100, check_every=4, patience=1)
    example = ActionExample(policy_row("|T", LABELS[0]).prompt, 0, (1,))
    plateau = Plateau(torch.nn.Linear(1, 1), None, [example], section)
    one = [Scored(example, 1.0, (True,))]
    for step in (4, 8):
        assert (plateau.rate(step), plateau.last_step) == (1.0, 100)
        plateau.check(step, one)
    assert plateau.last_step == 10
    assert [plateau.rate(step) for step in (8, 9, 10)] == [1.0, 0.5, 0.0]


def test_the_rate_falls_until_the_bound_where_rows_are_not_known_by_heart_and_in_a_quarter_once_that_brings_nothing():
    section = SFTPlayerSection(steps=100, check_every=4, patience=2)
    example = ActionExample(policy_row("|T", LABELS[0]).prompt, 0, (1,))
    plateau = Plateau(torch.nn.Linear(1, 1), None, [example], section)
    for step, loss in zip(range(4, 37, 4), (2.0, 1.0, 0.9, 0.9, 0.9, 0.9, 0.8, 0.8, 0.8), strict=True):
        plateau.add([("policy", 0.95 * loss)])
        plateau.check(step, [Scored(example, loss, (False,))])
        assert plateau.rate(step) == pytest.approx(1.0 if step <= 20 else (100 - step) / 80)  # a plateau at 20
        assert plateau.last_step == (100 if step < 36 else 45)  # and one in the fall, behind the gain at 28
    assert plateau.rate(45) == 0.0


@pytest.fixture(scope="module")
def overfitted(base, tmp_path_factory):
    """A model that was trained to its plateau, the summary, the checks, and the folder."""
    lm, told = new_model(base, labels=LABELS, seed=0), {}
    folder = tmp_path_factory.mktemp("overfitted")
    summary = fine_tune(lm, rows(1, 40, 1, noise), folder, "policy", on_check=told.update, **OVERFIT)
    return lm, summary, told["policy"], folder


@pytest.mark.slow
def test_behind_a_plateau_training_goes_on_from_the_best_weights_at_a_falling_rate_and_keeps_the_best(overfitted):
    lm, summary, checks, _ = overfitted
    losses = [check.held_out_loss for check in checks]
    reached = (
        OVERFIT["patience"]
        + next(  # the second plateau: at the first, no row is known by heart yet
            at for at in range(len(losses)) if at - losses[: at + 1].index(min(losses[: at + 1])) == OVERFIT["patience"]
        )
    )
    assert summary.steps == checks[-1].step == round((1 + FALL) * checks[reached].step) < OVERFIT["steps"]
    assert summary.ended == checks[-1].ended == "plateau"
    assert checks[reached].loss < checks[0].loss  # it learns those that it sees
    assert losses[reached + 1] < losses[reached]  # it has gone back
    assert summary.best == {"policy": min(checks, key=lambda check: check.held_out_loss)}
    given = rows(1, 40, 1, noise)
    held = [given[at] for at in held_out_rows(given, 0.5, 3)[1]]
    add_choice_head(lm.base)
    batch = PromptEncoder(lm.tokenizer, label_ids(lm.tokenizer, LABELS), MAX_LENGTH).batch(
        [row.prompt for row in held], CPU
    )
    with torch.no_grad():
        loss = action_losses(lm.model, batch, torch.tensor([int(row.completion) for row in held]), 0.0).mean().item()
    assert loss == pytest.approx(min(losses), abs=1e-5)


@pytest.mark.slow
def test_a_training_whose_time_is_up_ends_with_its_best_weights(base, tmp_path):
    stop, told = Stop(), {}
    stop.deadline, stop.least = 0.0, 7
    given, options = rows(1, 40, 1, noise), {**OVERFIT, "on_check": told.update}
    summary = fine_tune(new_model(base, labels=LABELS, seed=0), given, tmp_path, "policy", stop=stop, **options)
    assert [check.step for check in told["policy"]] == [2, 4, 6, 7]
    assert (summary.steps, summary.ended, told["policy"][-1].ended) == (7, "minutes", "minutes")
    assert summary.best == {"policy": min(told["policy"], key=lambda check: check.held_out_loss)}


@pytest.mark.slow
def test_a_training_killed_at_a_check_goes_on_to_the_same_weights(base, overfitted, tmp_path):
    expected, summary, checks, _ = overfitted

    def kill(told):
        if len(told["policy"]) == len(checks) - 1:  # after the best check, and after the checkpoint behind it
            raise RuntimeError("killed")

    given = rows(1, 40, 1, noise)
    with pytest.raises(RuntimeError, match="killed"):
        fine_tune(new_model(base, labels=LABELS, seed=0), given, tmp_path, "policy", on_check=kill, **OVERFIT)
    assert last_checkpoint(next(tmp_path.iterdir())) is not None
    resumed, told = new_model(base, labels=LABELS, seed=0), []
    options = {**OVERFIT, "on_check": lambda records: told.append(list(records["policy"]))}
    assert fine_tune(resumed, given, tmp_path, "policy", **options) == summary
    assert told[0] == checks[: len(told[0])]  # what was told after the checkpoint is taken back
    assert told[-1] == checks
    for name, value in expected.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name
