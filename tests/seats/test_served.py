"""Players behind a server that continues token ids: the words of local players, and what is refused before any work."""

from __future__ import annotations

import copy
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from completions_server import VERSION, CompletionsServer
from records import shown
from tiny import MAX_LENGTH, draws, language_model, reflector_prompt, tokenizer
from tiny_models import save_tiny

from reflectrl.core import InvalidInput, Utterance, WorkFailed
from reflectrl.core.messages import LabelChat, Messages
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal, read_replies
from reflectrl.lm.load import LanguageModel, save_model
from reflectrl.lm.writer import SUMMARY_TOKENS, LMReflector, LocalModel
from reflectrl.prompts import Prompt
from reflectrl.prompts.rating import Scale
from reflectrl.seats.base import FrozenModel
from reflectrl.seats.served import ServedJudge, ServedReflector, check_servers

TOKENS = 12
PROMPTS = [reflector_prompt(number, past=number % 7) for number in range(32)]
DRAWS = draws(len(PROMPTS))
LONG = 512


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    model = language_model("llama", seed=1, max_position_embeddings=LONG, initializer_range=0.3)
    return LanguageModel(model, tokenizer())


@pytest.fixture(scope="module")
def folder(lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("served") / "model"
    save_model(lm, place)
    return place


@pytest.fixture
def server(folder: Path) -> Iterator[CompletionsServer]:
    with CompletionsServer(folder) as served:
        yield served


def client_of(url: str, journal: Journal | None = None, **settings: Any) -> ChatClient:
    usual = {"model": "served", "max_tokens": TOKENS, "backoff_s": 0.01, "temperature": 0.0, "concurrency": 16}
    return ChatClient(Endpoint(base_url=url, **{**usual, **settings}), journal)


def served(lm: LanguageModel, client: ChatClient, length: int = MAX_LENGTH, **options: Any) -> ServedReflector:
    return ServedReflector(FrozenModel(lm, length), client, **options)


def local(lm: LanguageModel, prompts: Sequence[Prompt] = PROMPTS, tokens: int = TOKENS) -> list[Utterance]:
    """Return what the model says in this process."""
    player = LMReflector(lm.model, lm.tokenizer, max_length=MAX_LENGTH, max_new_tokens=tokens)
    return player.say(shown(prompts), [0.0] * len(prompts))


@pytest.mark.numerical
@pytest.mark.parametrize("tokens", [2, 40])
def test_greedy_words_are_those_of_the_local_model_and_a_cut_text_is_a_whole_one(
    lm: LanguageModel, server: CompletionsServer, tokens: int
) -> None:
    client = client_of(server.url, max_tokens=tokens)
    said = served(lm, client).say(shown([*PROMPTS, *PROMPTS]), [0.0] * 64)
    ours = local(lm, tokens=tokens)
    assert said == [*ours, *ours]
    assert any(words.tokens == tokens for words in ours)  # cut, and yet
    assert len(server.asked) == len(set(PROMPTS))  # never asked again, and equal prompts are asked once
    assert all(asked["max_tokens"] == tokens and "seed" not in asked for asked in server.asked)
    assert client.usage.cut == client.usage.lenient == client.usage.retries == 0


@pytest.mark.numerical
def test_a_long_prompt_is_cut_as_the_local_model_cuts_it(lm: LanguageModel, server: CompletionsServer) -> None:
    long = [replace(PROMPTS[0], history=tuple(f"Step {number} went on.\n" for number in range(40)))]
    assert served(lm, client_of(server.url)).say(shown(long), [0.0]) == local(lm, long)
    assert len(server.asked[0]["prompt"]) <= MAX_LENGTH - TOKENS


@pytest.mark.numerical
def test_samples_depend_on_the_draw_alone(lm: LanguageModel, server: CompletionsServer) -> None:
    def say(prompts: Sequence[Prompt], at: Sequence[float]) -> list[Utterance]:
        return served(lm, client_of(server.url, temperature=1.5)).say(shown(prompts), at)

    prompts, at = PROMPTS[:10], DRAWS[:10]
    together = say(prompts, at)
    assert say(prompts, at) == together
    assert [say([prompt], [draw])[0] for prompt, draw in zip(prompts, at, strict=True)] == together
    assert say(prompts, at[::-1]) != together
    assert len({words.text for words in say([PROMPTS[0]] * 8, DRAWS[:8])}) > 4


@pytest.mark.numerical
def test_a_judge_summarises_and_rates_as_the_local_one(lm: LanguageModel, server: CompletionsServer) -> None:
    scale, words = Scale(), ["Number", "target", "higher", "lower", "add one", "subtract one", "The"]
    there = ServedJudge(FrozenModel(lm, LONG), client_of(server.url, max_tokens=SUMMARY_TOKENS), scale)
    chats: list[Messages] = [
        [{"role": "system", "content": "You judge."}, {"role": "user", "content": f"{word} {word}.\n\nIs {word}?"}]
        for word in words
    ]
    asked, none = [LabelChat(chat, scale.levels, scale.labels) for chat in chats], [0.0] * len(chats)
    summaries, ratings = there.write(chats, none), there.ratings(asked, none)
    levels = [tokenizer().convert_tokens_to_ids(level) for level in scale.levels]
    assert [each["allowed_token_ids"] for each in server.asked[len(chats) :]] == [levels] * len(chats)
    own = LanguageModel(copy.deepcopy(lm.model), lm.tokenizer)  # it gets a choice head
    here = LocalModel(own, scale, max_length=LONG)
    assert summaries == here.write(chats, none)
    assert ratings == here.ratings(asked, none)
    assert len(set(ratings)) > 1


def test_a_judge_needs_a_server_that_tells_which_token_it_chose(lm: LanguageModel, server: CompletionsServer) -> None:
    def other(_: str, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "choices": [{**choice, "token_ids": [0]} for choice in body.get("choices", ())]}

    for change in (other, silent):
        server.change = change
        with pytest.raises(InvalidInput, match="does not answer with one of the tokens that it is given"):
            ServedJudge(FrozenModel(lm, LONG), client_of(server.url, max_tokens=SUMMARY_TOKENS), Scale())


def silent(_: str, body: dict[str, Any]) -> dict[str, Any]:
    """Tell no token ids."""
    for choice in body.get("choices", ()):
        choice.pop("token_ids", None)
        choice.pop("prompt_token_ids", None)
    return body


def test_a_server_that_tells_no_ids_is_read_by_its_words(lm: LanguageModel, server: CompletionsServer) -> None:
    server.change = silent
    client = client_of(server.url)
    check_servers(client, FrozenModel(lm, MAX_LENGTH))
    said = served(lm, client).say(shown(PROMPTS), [0.0] * 32)
    assert [words.text for words in said] == [words.text for words in local(lm)]


# ---- the journal, restarts and replicas ------------------------------------------------------------------------------


def test_what_was_written_is_not_asked_again_even_of_another_address(
    lm: LanguageModel, server: CompletionsServer, folder: Path, tmp_path: Path
) -> None:
    ours, first = local(lm), client_of(server.url, Journal(tmp_path / "reflector"))
    assert served(lm, first).say(shown(PROMPTS[:20]), [0.0] * 20) == ours[:20]
    with CompletionsServer(folder) as elsewhere:
        again = client_of(elsewhere.url, Journal(tmp_path / "reflector"))
        assert served(lm, again).say(shown(PROMPTS), [0.0] * 32) == ours
        assert len(elsewhere.asked) == len(set(PROMPTS)) - len(set(PROMPTS[:20]))
    kept = [json.loads(reply.text or "") for reply in read_replies(tmp_path / "reflector")]
    assert all(each["ids"] and each["text"] for each in kept)
    warmer = client_of(server.url, Journal(tmp_path / "reflector"), temperature=0.5)
    served(lm, warmer).say(shown(PROMPTS[:2]), [0.1, 0.2])
    assert len(server.asked) == len(set(PROMPTS[:20])) + 2


@pytest.mark.usefixtures("server")
def test_a_server_may_be_started_again_in_the_middle(lm: LanguageModel, folder: Path) -> None:
    with CompletionsServer(folder) as first:
        client = client_of(first.url, backoff_s=0.2, max_attempts=8, concurrency=2)
        first.change = lambda _, body: 503 if len(first.asked) > 8 else body
        found: list[list[Utterance]] = []
        work = threading.Thread(target=lambda: found.append(served(lm, client).say(shown(PROMPTS), [0.0] * 32)))
        work.start()
        while len(first.asked) < 10:
            time.sleep(0.01)
    with CompletionsServer(folder, port=first.port) as second:
        work.join(60)
        assert second.asked
    assert found == [local(lm)]


def test_replicas_share_the_prompts_and_stand_in_for_each_other(
    lm: LanguageModel, server: CompletionsServer, folder: Path
) -> None:
    with CompletionsServer(folder) as other:
        client = client_of(server.url, replicas=[other.url], temperature=1.0)
        served(lm, client).say(shown([*PROMPTS, *PROMPTS]), draws(64))
        mine, others = ({tuple(each["prompt"]) for each in each.asked} for each in (server, other))
        assert mine
        assert others
        assert not mine & others  # an equal prompt goes where its beginning is known
    greedy = client_of(server.url, replicas=[other.url])
    assert served(lm, greedy).say(shown(PROMPTS), [0.0] * 32) == local(lm)  # one of the two is gone


def test_a_failure_stops_the_work_and_leaves_no_trace_in_the_journal(
    lm: LanguageModel, server: CompletionsServer, tmp_path: Path
) -> None:
    few = PROMPTS[:6]
    faults: list[Any] = [{"choices": []}, {"choices": [{"text": "", "finish_reason": "abort"}]}, {"choices": [{}]}, 500]
    for fault in faults:
        server.change = lambda *_, fault=fault: fault
        client = client_of(server.url, Journal(tmp_path / "reflector"), max_attempts=2)
        with pytest.raises(WorkFailed, match="gave no usable reply in 2 attempts"):
            served(lm, client).say(shown(few), [0.0] * 6)
    server.change = lambda _, body: body
    client = client_of(server.url, Journal(tmp_path / "reflector"))
    assert served(lm, client).say(shown(few), [0.0] * 6) == local(lm, few)
    assert client.journal.rejected == 0


# ---- what is refused before any work ---------------------------------------------------------------------------------


def refused(lm: LanguageModel, url: str, **settings: Any) -> str:
    with pytest.raises(InvalidInput) as error:
        check_servers(client_of(url, **settings), FrozenModel(lm, MAX_LENGTH))
    return str(error.value)


def test_a_server_describes_itself_once(lm: LanguageModel, server: CompletionsServer, tmp_path: Path) -> None:
    client = client_of(server.url, Journal(tmp_path / "reflector"))
    for _ in range(2):
        client.journal.add_servers(check_servers(client, FrozenModel(lm, MAX_LENGTH)))
    [line] = (tmp_path / "reflector" / "servers.jsonl").read_text().splitlines()
    about = {"model": "served", "root": str(server.folder), "version": VERSION, "max_model_len": 4096}
    assert json.loads(line) == {"address": server.url, **about}
    assert not server.asked  # the probe is a text


def test_a_server_that_is_down_is_refused(lm: LanguageModel, server: CompletionsServer) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        down = f"http://127.0.0.1:{port}/v1"
        assert "cannot be reached" in refused(lm, down)
        said = refused(lm, server.url, replicas=[down])
    assert f"at {down} cannot be used" in said
    assert "start it" in said


def test_a_server_that_is_slow_is_refused(lm: LanguageModel, server: CompletionsServer) -> None:
    def late(_: str, body: dict[str, Any]) -> dict[str, Any]:
        time.sleep(1)
        return body

    server.change = late
    assert "no complete reply within timeout_s=0.2" in refused(lm, server.url, timeout_s=0.2)


def test_a_server_of_another_model_is_refused(lm: LanguageModel, server: CompletionsServer) -> None:
    assert "serves 'served', not 'reflector'; set endpoint.model" in refused(lm, server.url, model="reflector")
    server.change = lambda path, body: {"data": []} if path == "/v1/models" else body
    assert "serves no model" in refused(lm, server.url)


@pytest.mark.usefixtures("server")
def test_a_server_of_another_tokenizer_is_refused(lm: LanguageModel, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "other")
    with CompletionsServer(tmp_path / "other") as other:
        assert "reads a text as other tokens" in refused(lm, other.url)
        other.change = lambda path, body: {"usage": body.get("usage"), "choices": [{"text": ""}], **_models(path, body)}
        assert "reads a text as other tokens" in refused(lm, other.url)  # it tells their number alone


def _models(path: str, body: dict[str, Any]) -> dict[str, Any]:
    return body if path == "/v1/models" else {}


def test_a_server_with_too_short_a_context_is_refused(lm: LanguageModel, server: CompletionsServer) -> None:
    server.max_model_len = MAX_LENGTH - 1
    assert f"restart it with --max-model-len {MAX_LENGTH}" in refused(lm, server.url)
    server.max_model_len = None  # a server that does not say
    check_servers(client_of(server.url), FrozenModel(lm, MAX_LENGTH))


def test_a_server_that_wants_a_key_is_refused(lm: LanguageModel, server: CompletionsServer) -> None:
    server.change = lambda *_: 401
    assert "the key was refused" in refused(lm, server.url)
