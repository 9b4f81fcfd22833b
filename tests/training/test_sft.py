import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sft_on_ranks import share, tuned
from tiny_models import LABELS, MAX_LENGTH, MENU, logits, policy_row, reflector_row, save_tiny
from tiny_sft import fine_tune
from warm_processes import start_ranks

from reflectrl.config.schema import SFTPlayerSection
from reflectrl.core import InvalidInput
from reflectrl.core.stop import gentle_stops
from reflectrl.data_gen.rows import Row
from reflectrl.lm.encode import PromptEncoder, action_distribution
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import LanguageModel, load_model, new_model, save_model
from reflectrl.lm.section import LoraSection
from reflectrl.lm.sequences import padded, read_tree, tree_tokens
from reflectrl.lm.tokenizer import label_ids
from reflectrl.lm.writer import LMReflector
from reflectrl.prompts import Menu
from reflectrl.training.checkpoints import last_checkpoint
from reflectrl.training.sft_examples import TextExample, action_losses, text_losses, text_results
from reflectrl.training.sft_trainer import plan_batches

REFLECTOR = [reflector_row(f"|T{' ' * i}P|", f" Mistake. Taxi at row {i}.") for i in range(4)]
POLICY = [policy_row(f"|T{' ' * i}P|", LABELS[i]) for i in range(4)]
ROWS = {"reflector": REFLECTOR, "policy": POLICY, "both": REFLECTOR + POLICY}
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def section(request, tmp_path_factory):
    return save_tiny(request.param, tmp_path_factory.mktemp("base") / request.param)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return save_tiny("gpt2", tmp_path_factory.mktemp("base") / "gpt2")


def train(lm: LanguageModel, folder: Path, player="policy", rows=None, **given):
    return fine_tune(lm, ROWS[player] if rows is None else rows, folder, player, **given)


def tokens(lm: LanguageModel, text: str) -> list[int]:
    return lm.tokenizer(text)["input_ids"]


# ---- losses ----------------------------------------------------------------------------------------------------------

SHORT, LONG = REFLECTOR[0], replace(REFLECTOR[3], completion=" Good. Taxi at row 3, then at row 4, then at row 5.")


def scored(lm: LanguageModel, row: Row) -> tuple[TextExample, torch.Tensor]:
    """Return a reflector's row, and the negative log-likelihood of each token of its completion."""
    prompt, completion = tokens(lm, row.prompt.text), [*tokens(lm, row.completion), lm.tokenizer.eos_token_id]
    logprobs = lm.model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
    losses = [-logprobs[len(prompt) - 1 + i, token] for i, token in enumerate(completion)]
    return TextExample(tuple(prompt), tuple(completion), len(completion)), torch.stack(losses)


def test_the_reflectors_loss_is_that_of_the_completion(section):
    lm = new_model(section, labels=LABELS, seed=0)
    (short, few), (long, many) = scored(lm, SHORT), scored(lm, LONG)
    assert len(few) < len(many)
    expected = torch.stack([few.sum(), many.sum()])
    add_choice_head(lm.base)
    assert torch.allclose(text_losses(lm.model, [short, long], CPU), expected, atol=1e-4)


def rows_of_episodes(count: int) -> tuple[list[TextExample], list[int]]:
    """Return examples whose prompts extend each other within an episode, and the episode of each."""
    found, episodes = [], []
    for episode in range(count):
        prompt = tuple(range(10, 14)) if episode % 2 else tuple(range(20, 24))
        for step in range(10):
            prompt = (*prompt, 30 + episode, 50 + step)
            found.append(TextExample(prompt, (60 + step, 1), 2))
            episodes.append(episode)
    return found, episodes


def test_rows_of_an_episode_that_extend_each_other_are_drawn_together_and_read_once(section):
    lm = new_model(section, labels=LABELS, seed=0)
    examples, episodes = rows_of_episodes(16)
    settings = SFTPlayerSection(batch_size=20, micro_batch_size=20)

    def planned(episodes, prefix_reuse=True):
        return plan_batches(lm, examples, episodes, settings, 64, prefix_reuse=prefix_reuse)

    together = planned(episodes)
    assert [*together.groups] == [[*range(at, at + 10)] for at in range(0, 160, 10)]
    one_by_one = [[number] for number in range(160)]
    for apart in (planned(episodes, prefix_reuse=False), planned([*range(160)]), planned([0] * 160)):
        assert (apart.groups, apart.tree_tokens) == (one_by_one, 0)

    add_choice_head(lm.base)
    rows = [example.row for example in examples[:20]]
    assert 2 * tree_tokens(rows) <= sum(map(len, rows))
    assert tree_tokens(rows) <= together.tree_tokens
    gradients = []
    for inputs in (padded(rows, CPU), read_tree(rows, lm.base)):
        losses, hits = text_results(lm.model, examples[:20], inputs)
        losses.sum().backward()
        gradients.append([losses, *(each.grad.clone() for each in lm.model.parameters() if each.grad is not None)])
        assert [len(each) for each in hits] == [2] * 20
        lm.model.zero_grad()
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(*gradients, strict=True))


@pytest.mark.slow
def test_every_token_of_reflections_weighs_the_same(gpt2, tmp_path):
    with torch.no_grad():
        few, many = (scored(new_model(gpt2, labels=LABELS, seed=0), row)[1] for row in (SHORT, LONG))
    paper = (few.sum() + many.sum()) / 2  # L_reflect of the two rows
    expected = (paper / ((len(few) + len(many)) / 2)).item()
    assert abs(expected - (few.mean() + many.mean()).item() / 2) > 0.01  # which weighs long reflections less
    for micro_batch_size in (2, 1):
        options = {"rows": [SHORT, LONG], "steps": 1, "batch_size": 2, "micro_batch_size": micro_batch_size}
        lm = new_model(gpt2, labels=LABELS, seed=0)
        summary = train(lm, tmp_path / str(micro_batch_size), "reflector", **options)
        assert summary.last_loss == pytest.approx(expected, abs=1e-4)


def policy_batch(lm: LanguageModel, menus: list[tuple[int, ...]]):
    """Return a batch of prompts whose legal actions have the labels of the given positions."""
    add_choice_head(lm.base)
    encoder = PromptEncoder(lm.tokenizer, label_ids(lm.tokenizer, LABELS), MAX_LENGTH)
    prompts = [replace(POLICY[i].prompt, menu=legal(positions)) for i, positions in enumerate(menus)]
    return encoder.batch(prompts, CPU), prompts


def legal(positions: tuple[int, ...]) -> Menu:
    """Return a menu of these legal actions, in which the others are listed too."""
    chosen = [(LABELS[at], MENU.actions[at]) for at in positions]
    names, actions = zip(*chosen, strict=True)
    listed = () if positions == tuple(range(len(positions))) else LABELS
    return Menu(names, actions, MENU.actions[: len(listed)], listed)


def test_the_policys_loss_smooths_over_its_own_menu(section):
    lm = new_model(section, labels=LABELS, seed=0)
    menus = [(0, 1), (0, 1, 2, 3), (1, 3)]
    batch, prompts = policy_batch(lm, menus)
    targets = torch.tensor([1, 2, 1])
    ids = label_ids(lm.tokenizer, LABELS)
    for smoothing in (0.0, 0.3):
        expected = []
        for prompt, positions, target in zip(prompts, menus, targets, strict=True):
            last = lm.model(torch.tensor([tokens(lm, prompt.text)])).logits[0, -1]
            choices = last[[ids[at] for at in positions]]
            expected.append(torch.nn.functional.cross_entropy(choices[None], target[None], label_smoothing=smoothing))
        assert torch.allclose(action_losses(lm.model, batch, targets, smoothing), torch.stack(expected), atol=1e-5)


@pytest.mark.slow
def test_adapters_on_a_quantised_base_train_and_come_back_with_the_same_logits(tmp_path):
    lora = {"lora": LoraSection(r=4), "quantization": "8bit"}
    section = save_tiny("llama", tmp_path / "base").model_copy(update=lora)
    lm = new_model(section, labels=LABELS, seed=0)
    before = logits(lm)
    train(lm, tmp_path / "checkpoints", steps=2)
    save_model(lm, tmp_path / "policy")
    assert (logits(lm) - before).abs().max() > 1e-3
    assert {value.dtype for value in lm.model.parameters() if value.requires_grad} == {torch.float32}
    assert torch.equal(logits(load_model(tmp_path / "policy", section, trainable=True)), logits(lm))


# ---- interrupted and resumed training --------------------------------------------------------------------------------

RESUMED = {"player": "both", "steps": 6, "save_every": 3, "micro_batch_size": 2}


@pytest.fixture(scope="module")
def adapters(gpt2):
    return gpt2.model_copy(update={"lora": LoraSection(r=4, dropout=0.2)})


@pytest.fixture(scope="module")
def straight(adapters, tmp_path_factory):
    """A model after uninterrupted training, the summary, and the folder."""
    lm, folder = new_model(adapters, labels=LABELS, seed=0), tmp_path_factory.mktemp("straight")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    summary = train(lm, folder, **RESUMED)
    assert torch.equal(torch.rand(1), expected)  # training does not change the global random state
    assert not lm.model.training
    assert "forward" not in vars(lm.base)
    return lm, summary, folder


@pytest.mark.slow
@pytest.mark.parametrize(("end", "checkpoint"), [("stopped", 4), ("killed", 3)])
def test_a_training_that_ended_early_goes_on_as_if_nothing_had_happened(adapters, straight, end, checkpoint, tmp_path):
    expected, summary, _ = straight

    def on_step(step, total, loss):
        assert total == 6
        assert loss > 0
        if step == 5 and end == "killed":
            raise RuntimeError(end)
        if step == 4 and end == "stopped":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises((KeyboardInterrupt, RuntimeError)), gentle_stops(lambda _: None) as stop:
        train(new_model(adapters, labels=LABELS, seed=0), tmp_path, on_step=on_step, stop=stop, **RESUMED)
    (folder,) = tmp_path.iterdir()
    assert last_checkpoint(folder).name == f"checkpoint-{checkpoint}"
    resumed, seen = new_model(adapters, labels=LABELS, seed=0), []
    assert train(resumed, tmp_path, on_step=lambda step, *_: seen.append(step), **RESUMED) == summary
    assert seen == list(range(checkpoint + 1, 7))
    for name, value in expected.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name


@pytest.mark.slow
def test_a_finished_training_is_not_repeated_and_other_rows_begin_another(adapters, straight, tmp_path):
    expected, summary, folder = straight
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    again, seen = new_model(adapters, labels=LABELS, seed=0), []
    options = {**RESUMED, "on_step": lambda step, *_: seen.append(step)}
    assert train(again, tmp_path, **options) == summary
    assert seen == []
    assert torch.equal(logits(again), logits(expected))
    train(again, tmp_path, rows=ROWS["both"][:3], **options)
    assert seen == [1, 2, 3, 4, 5, 6]


# ---- what is learned -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_micro_batches_add_up_to_the_same_policy_training(gpt2, tmp_path):
    whole, parts = (new_model(gpt2, labels=LABELS, seed=0) for _ in range(2))
    seen: list[float] = []
    first = {"on_step": lambda _, __, loss: seen.append(loss)}
    train(whole, tmp_path / "whole", "policy", steps=2, label_smoothing=0.3, **first)
    lm = new_model(gpt2, labels=LABELS, seed=0)
    with torch.no_grad():
        expected = action_losses(lm.model, policy_batch(lm, [(0, 1, 2, 3)] * 4)[0], torch.arange(4), 0.3).mean().item()
    assert seen[0] == pytest.approx(expected, abs=1e-4)
    train(parts, tmp_path / "parts", "policy", steps=2, label_smoothing=0.3, micro_batch_size=1)
    assert torch.allclose(logits(whole), logits(parts), atol=1e-4)


@pytest.mark.slow
def test_a_single_model_learns_both_players_parts_from_mixed_batches(gpt2, tmp_path):
    lm = new_model(gpt2, labels=LABELS, seed=0)
    summary = train(lm, tmp_path, "both", steps=60, batch_size=8, micro_batch_size=8)
    assert summary.last_loss < 0.1
    reflector = LMReflector(lm.model, lm.tokenizer, max_length=MAX_LENGTH, max_new_tokens=20)
    said = reflector.write([row.prompt for row in REFLECTOR], [0.0] * 4)
    # it stops, because the end-of-text token was trained
    assert [words.text for words in said] == [row.completion.strip() for row in REFLECTOR]
    batch, _ = policy_batch(lm, [(0, 1, 2, 3)] * 4)
    chosen = action_distribution(lm.model, batch)[0].logits.argmax(-1)
    assert [LABELS[number] for number in chosen] == [row.completion for row in POLICY]


@pytest.mark.slow
def test_after_the_warmup_the_learning_rate_falls_along_a_cosine(gpt2, tmp_path):
    options = {"steps": 6, "save_every": 1, "warmup": 1 / 3, "learning_rate": 1e-3, "lr_scheduler_type": "cosine"}
    rates = []

    def seen(*_):  # the rate of the next step, in the checkpoint that was written last
        for path in sorted(tmp_path.glob("*/checkpoint-*/optimizer.json"))[-1:]:
            rates.append(json.loads(path.read_text())["param_groups"][0]["lr"] / 1e-3)

    train(new_model(gpt2, labels=LABELS, seed=0), tmp_path, on_step=seen, **options)
    assert rates == pytest.approx([0.5, 1.0, 0.8536, 0.5, 0.1464], abs=1e-4)


# ---- rows ------------------------------------------------------------------------------------------------------------

LONG_PAST = tuple(f"Past: {MENU.actions[step % 4]}\n" for step in range(60))
SHOWN = {
    "reflector": (reflector_row("|T:P|", " Mistake.", LONG_PAST), 8),
    "policy": (policy_row("|T:P|", "2", history=LONG_PAST), 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("player", SHOWN)
def test_training_cuts_prompts_like_play(gpt2, player, tmp_path):
    row, reserve = SHOWN[player]
    lm, seen = new_model(gpt2, labels=LABELS, seed=0), []
    lm.model.register_forward_pre_hook(lambda _, __, given: seen.append(given["input_ids"].tolist()), with_kwargs=True)
    train(lm, tmp_path, player, rows=[row], steps=1, batch_size=1, micro_batch_size=1)
    trained = seen.pop()[0]
    seen.clear()  # the head is probed before
    if player == "reflector":
        LMReflector(lm.model, lm.tokenizer, max_length=MAX_LENGTH, max_new_tokens=reserve).write([row.prompt], [0.0])
    else:
        encoder = PromptEncoder(lm.tokenizer, label_ids(lm.tokenizer, LABELS), MAX_LENGTH)
        seen.append(encoder.batch([row.prompt], CPU).inputs.input_ids.tolist())
    played = seen[0][0]
    completion = [*tokens(lm, row.completion), lm.tokenizer.eos_token_id] if player == "reflector" else []
    assert trained == played + completion
    assert 0 < lm.tokenizer.decode(played).count("Past") < len(LONG_PAST)


def test_rows_that_do_not_fit_are_refused_or_left_out(gpt2, tmp_path):
    wide = Menu(LABELS, tuple("move " + "north " * 30 for _ in LABELS))
    rows = [*POLICY, replace(POLICY[0], prompt=replace(POLICY[0].prompt, head="|T P|" * 80))]
    lm = new_model(gpt2, labels=LABELS, seed=0)
    with pytest.raises(InvalidInput, match=rf"1 of 5 .*{MAX_LENGTH}"):
        train(lm, tmp_path, rows=rows)
    summary = train(lm, tmp_path, rows=[*rows, policy_row("|T:P|", "0", wide)], drop_long_rows=True)
    assert (summary.rows, summary.dropped) == (5, 1)  # the ends of actions may be cut


def test_a_text_that_is_longer_than_the_model_reads_is_named(gpt2, tmp_path):
    lm = new_model(gpt2, labels=LABELS, seed=0)
    with pytest.raises(InvalidInput, match=r"the text to write has \d+ tokens, which leaves none for the prompt"):
        train(lm, tmp_path, player="reflector", rows=[replace(REFLECTOR[0], completion="Go. " * 200)])


@pytest.mark.parametrize(
    ("player", "given", "fact"),
    [
        ("policy", {"rows": REFLECTOR}, "row 0 .*sft/policy"),
        ("reflector", {"rows": POLICY}, "row 0 .*sft/reflector"),
        ("policy", {"rows": [policy_row("x", "9")]}, "'9'"),
        ("policy", {"rows": [policy_row("x", "A", Menu(("A", "B"), ("up", "down")))]}, "'A', 'B'"),
        ("policy", {"rows": []}, "gen-data"),
        ("policy", {"micro_batch_size": 3}, "batch_size=4 .* micro_batch_size=3"),
        ("policy", {"labels": tuple(map(str, range(30)))}, "label '10'"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(gpt2, player, given, fact, tmp_path):
    with pytest.raises(InvalidInput, match=fact):
        train(new_model(gpt2, labels=LABELS, seed=0), tmp_path, player, **given)


def test_a_reflectors_tokenizer_need_not_know_the_labels(gpt2, tmp_path):
    many = tuple(map(str, range(30)))
    assert train(new_model(gpt2, labels=LABELS, seed=0), tmp_path, "reflector", labels=many, steps=1).steps == 1


# ---- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_with_whole_or_sharded_weights_fine_tune_like_one(tmp_path):
    base = save_tiny("llama", tmp_path / "base")
    started = start_ranks(tmp_path, share, base, tmp_path)
    for player in ("reflector", "policy"):
        tuned(base, tmp_path, "alone", player)
    for process in started:
        assert process.wait() == 0, process.said
    for player, others in (("reflector", ("whole", "sharded")), ("policy", ("whole", "sharded", "resumed"))):
        expected = load_file(tmp_path / f"alone-{player}_0.safetensors")
        steps, loss, checks = json.loads((tmp_path / f"alone-{player}_0.json").read_text())
        assert len(checks[player]) == 3
        for name in [f"{other}-{player}_{rank}" for other in others for rank in (0, 1)]:
            weights = load_file(tmp_path / f"{name}.safetensors")
            assert max(float((weights[key] - expected[key]).abs().max()) for key in expected) < 1e-4, name
            made, last, seen = json.loads((tmp_path / f"{name}.json").read_text())
            assert (made, last) == (steps, pytest.approx(loss, abs=1e-5))
            for here, there in zip(seen[player], checks[player], strict=True):
                assert here == {key: number and pytest.approx(number, abs=1e-5) for key, number in there.items()}, name
