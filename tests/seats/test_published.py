"""A policy that is trained writes on a server, which is given its adapter: the texts of this process, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from completions_server import CompletionsServer
from peft import LoraConfig, get_peft_model
from records import shown
from rlft_on_ranks import thinking_on
from tiny import draws, encoder, language_model, policy_prompt, tokenizer
from warm_processes import start_ranks

from reflectrl.core import Decision, InvalidInput, WorkFailed
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import LanguageModel, save_model
from reflectrl.lm.thinking import WritingPolicy, writing_policy
from reflectrl.seats.served import PolicyServer

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # peft asks transformers for it
PROMPTS = [policy_prompt(number, actions=2 + number % 3, past=number % 3) for number in range(6)]
TOKENS, RANK = 9, 4


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("base") / "base"
    save_model(LanguageModel(language_model("llama"), tokenizer()), place)
    return place


@pytest.fixture
def server(base: Path) -> Iterator[CompletionsServer]:
    with CompletionsServer(base, max_lora_rank=RANK) as served:
        yield served


def adapted() -> LanguageModel:
    """Return the base with an adapter that changes what it writes."""
    settings = LoraConfig(r=RANK, target_modules="all-linear", exclude_modules=["lm_head"], init_lora_weights=False)
    torch.manual_seed(0)
    model = get_peft_model(language_model("llama"), settings).eval()
    add_choice_head(model.get_base_model(), value_head=True)
    return LanguageModel(model, tokenizer())


def server_of(lm: LanguageModel, url: str, folder: Path, **settings: Any) -> PolicyServer:
    usual = {"model": "served", "max_tokens": TOKENS, "temperature": 0.7, "backoff_s": 0.01}
    return PolicyServer(ChatClient(Endpoint(base_url=url, **{**usual, **settings})), folder / "adapters", lm)


def policy_of(lm: LanguageModel, mode: Any = "thought_choice", **options: Any) -> WritingPolicy:
    return writing_policy(mode, lm, encoder(), max_new_tokens=TOKENS, temperature=0.7, **options)


def texts(decisions: list[Decision]) -> list[Any]:
    return [(each.action, each.choice.written and each.choice.written.ids) for each in decisions]


@pytest.mark.numerical
@pytest.mark.parametrize("mode", ["thought_choice", "json"])
def test_texts_are_those_of_this_process_whatever_the_weights(
    server: CompletionsServer, tmp_path: Path, mode: str
) -> None:
    lm = adapted()
    there = server_of(lm, server.url, tmp_path)
    policy, local = policy_of(lm, mode, server=there), policy_of(lm, mode)
    seen = []
    for version in (1, 2):
        there.publish(None, main=True)
        policy.forget()
        decisions, own = policy.act(shown(PROMPTS), draws(6)), local.act(shown(PROMPTS), draws(6))
        assert texts(decisions) == texts(own)
        for one, other in zip(decisions, own, strict=True):
            assert one.joint_logprob(0.5) == pytest.approx(other.joint_logprob(0.5), abs=1e-4)
            assert one.value == pytest.approx(other.value, abs=1e-4)
        assert len(policy.gaps) == sum(len(ids) for _, ids in texts(own))
        assert max(policy.gaps) < 1e-4  # also at another temperature than 1
        cut = [ids for _, ids in texts(own) if len(ids) == TOKENS and ids[-1] != tokenizer().eos_token_id]
        assert cut  # and whole
        greedy = policy.greedy().act(shown(PROMPTS), [0.0] * 6)
        assert texts(greedy) == texts(local.greedy().act(shown(PROMPTS), [0.0] * 6))
        assert {asked["model"] for asked in server.asked[-12:]} == {there.name}
        assert there.name.startswith(f"policy-v{version}-")
        assert [*server.adapters] == [there.name]  # the one before is unloaded
        assert [each.name for each in (tmp_path / "adapters").iterdir()] == [there.name]  # and deleted
        seen.append(texts(greedy))
        with torch.no_grad():
            for name, weight in lm.model.named_parameters():
                if "lora_B" in name:
                    weight.neg_()
    assert seen[0] != seen[1]
    there.withdraw()
    assert not server.adapters
    assert not (tmp_path / "adapters").exists()


def test_what_a_killed_process_has_left_on_the_servers_is_dropped_and_other_runs_adapters_stay(
    server: CompletionsServer, base: Path, tmp_path: Path
) -> None:
    with CompletionsServer(base, max_lora_rank=RANK) as replica:
        lm = adapted()
        other = server_of(lm, server.url, tmp_path / "other")
        other.publish(None, main=True)
        for _ in range(2):  # the second is another process of the same run
            there = server_of(lm, server.url, tmp_path, replicas=[replica.url])
            there.publish(None, main=True)
            assert [*server.adapters] == [other.name, there.name]
            assert [*replica.adapters] == [there.name]
        there.write([tuple(range(5, 9)), tuple(range(3, 9)), tuple(range(4, 9))] * 4, draws(12), 0.7)
        assert server.asked
        assert replica.asked
    there.withdraw()  # though a server is gone
    assert [*server.adapters] == [other.name]
    assert not (tmp_path / "adapters").exists()


def test_a_server_that_has_lost_the_adapter_ends_the_work(server: CompletionsServer, tmp_path: Path) -> None:
    lm = adapted()
    there = server_of(lm, server.url, tmp_path)
    there.publish(None, main=True)
    server.adapters.clear()
    with pytest.raises(WorkFailed, match=rf"`{there.name}` does not exist.*the same command gives it another one"):
        policy_of(lm, server=there).act(shown(PROMPTS), draws(6))


def test_a_server_that_tells_no_log_probabilities_ends_the_work(server: CompletionsServer, tmp_path: Path) -> None:
    lm = adapted()
    there = server_of(lm, server.url, tmp_path)
    there.publish(None, main=True)
    for missing in ("logprobs", "token_ids"):

        def silent(_: str, body: dict[str, Any], missing: str = missing) -> dict[str, Any]:
            return {**body, "choices": [{**each, missing: None} for each in body["choices"]]}

        server.change = silent
        with pytest.raises(WorkFailed, match="tells no token ids or no log-probabilities"):
            there.write([(5, 6, 7)], [0.5], 0.7)


def test_a_server_that_ends_texts_with_another_token_ends_the_work(server: CompletionsServer, tmp_path: Path) -> None:
    lm = adapted()
    there = server_of(lm, server.url, tmp_path)
    there.publish(None, main=True)

    def cut(_: str, body: dict[str, Any]) -> dict[str, Any]:
        [choice] = body["choices"]
        return {
            **body,
            "choices": [{**choice, "token_ids": [5, 6], "logprobs": {"token_logprobs": [-1.0, -1.0]}}],
        }

    server.change = cut
    with pytest.raises(WorkFailed, match="ended a text with token 6, not with the policy.s"):
        there.write([(5, 6, 7)], [0.5], 0.7)


def test_a_server_that_takes_no_such_adapter_is_refused_with_what_it_says(
    server: CompletionsServer, tmp_path: Path
) -> None:
    for rank, said in ((0, "Not Found"), (RANK - 1, f"LoRA rank {RANK} is greater than max_lora_rank {RANK - 1}")):
        server.max_lora_rank = rank
        with pytest.raises(InvalidInput, match=rf"{said}.*--max-lora-rank {RANK} or more, and has to see the folder"):
            server_of(adapted(), server.url, tmp_path).publish(None, main=True)


def test_training_stops_where_the_server_has_another_base(server: CompletionsServer, tmp_path: Path) -> None:
    other = LanguageModel(language_model("llama", seed=5), tokenizer())
    save_model(other, tmp_path / "other")
    with (
        CompletionsServer(tmp_path / "other", max_lora_rank=RANK) as wrong,
        pytest.raises(WorkFailed, match="the server does not have these weights"),
    ):
        thinking_on(wrong.url, tmp_path)
    thinking_on(server.url, tmp_path / "right")


@pytest.mark.slow
def test_the_main_process_publishes_for_all(server: CompletionsServer, tmp_path: Path) -> None:
    for process in start_ranks(tmp_path, thinking_on, server.url, tmp_path):
        assert process.wait() == 0, process.said
    assert len(server.loaded) == len({asked["model"] for asked in server.asked}) == 2  # one for each iteration
    assert not server.adapters
