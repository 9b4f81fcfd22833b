"""A client requests labels in the first way that the server supports; other replies are parsed leniently."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.core.messages import BadReply, LabelChat
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal, RejectedReply, read_replies
from reflectrl.endpoint.replies import WAYS, LabelWays, Text, fields, read_leniently

ACTIONS = ("go to drawer 1", "go to drawer 10", "pick up")
THOUGHT = "<think>1 or 2?</think>\n"
WAY = {"response_format": "schema", "grammar": "grammar", "logprobs": "logprobs"}


def question(text: str = "Now?", labels: tuple[str, ...] = ("0", "1", "2")) -> LabelChat:
    return LabelChat([{"role": "user", "content": text}], labels, ACTIONS)


def label(reply: str) -> str:
    if reply not in ("0", "1", "2"):
        raise BadReply("Answer with a label.")
    return reply


class LabelServer(ScriptedEndpoint):
    """Server that answers 1 to one way of requesting labels, refuses others, and answers the rest with ``says``."""

    def __init__(self, obeys: str, refuses: Mapping[str, str] | None = None, says: str = "") -> None:
        super().__init__()
        self.obeys, self.refuses, self.says = obeys, refuses or {}, says

    @property
    def ways(self) -> list[str]:
        return [next((WAY[key] for key in WAY if key in request.body), "text") for request in self.requests]

    def next_fault(self) -> str:
        return self.refuses.get(self.ways[-1], super().next_fault())

    def completion(self, chat: Chat) -> dict[str, Any]:
        obeyed = self.ways[-1] == self.obeys
        answers = {"schema": f'{THOUGHT}{{"label": "1"}}', "grammar": "1"}
        self.reply = lambda _: answers[self.obeys] if obeyed else self.says
        if not obeyed or self.obeys != "logprobs":
            return super().completion(chat)
        top = [{"token": "You", "logprob": -1.0}, {"token": " 0", "logprob": -3.0}, {"token": "1", "logprob": -2.0}]
        answer = {"message": {"content": "You"}, "logprobs": {"content": [{**top[0], "top_logprobs": top}]}}
        return {"choices": [{**answer, "finish_reason": "length"}]}


@pytest.mark.usefixtures("endpoint")  # for its environment variables
@pytest.mark.parametrize(
    ("obeys", "refuses", "asked"),
    [
        ("schema", {}, ["schema"]),
        ("grammar", {"schema": "400"}, ["schema", "grammar"]),
        ("grammar", {"schema": "500"}, ["schema", "schema", "grammar"]),
        ("logprobs", {"grammar": "422"}, ["schema", "grammar", "logprobs"]),
        ("nothing", {"schema": "400"}, ["schema", "grammar", "logprobs", "text"]),
    ],
)
def test_the_first_way_that_a_server_obeys_is_found_once_and_a_restart_asks_nothing_again(
    tmp_path: Path, obeys: str, refuses: dict[str, str], asked: list[str]
) -> None:
    with LabelServer(obeys, refuses, "I go to drawer 10.") as server:
        client = ChatClient(server.at(max_attempts=2), Journal(tmp_path))
        assert [client.ask_many([question(text)], [label])[0].value for text in "ab"] == ["1", "1"]
        assert server.ways == [*asked, asked[-1]]
        assert client.usage.lenient == 2 * (obeys == "nothing")
        words = [reply.words for reply in read_replies(tmp_path) if reply.text]
        assert words == ["I go to drawer 10." if obeys == "nothing" else ""] * 2
        again = ChatClient(server.at(), Journal(tmp_path))
        assert [reply.value for reply in again.ask_many([question("a"), question("b")], [label] * 2)] == ["1", "1"]
        assert len(server.ways) == len(asked) + 1


@pytest.mark.usefixtures("endpoint")
def test_a_server_in_trouble_is_asked_in_the_same_way(tmp_path: Path) -> None:
    with LabelServer("schema") as server:
        server.faults.extend(["503", "500", "none", "500", "429", "500", "none", "too-long"])
        client = ChatClient(server.at(), Journal(tmp_path))
        assert [client.ask_many([question(text)], [label])[0].value for text in "ab"] == ["1", "1"]
        with pytest.raises(RejectedReply):
            client.ask_many([question("c")], [label])
        assert set(server.ways) == {"schema"}


def test_ambiguous_labels_are_not_asked_for_by_logprobs() -> None:
    ways = LabelWays(Endpoint(base_url="http://localhost/v1"), WAYS[2:])
    assert [ways.of(question(labels=labels)) for labels in (("1", "10", "2"), ("0", "1", "2"))] == ["text", "logprobs"]


@pytest.mark.parametrize("there", [{}, {"base_url": "https://a.example", "azure_api_version": "2024-06-01"}], ids=str)
def test_openai_and_azure_are_asked_as_ever(there: dict[str, str]) -> None:
    ways = LabelWays(Endpoint(**there))  # type: ignore[arg-type]
    assert (ways.of(question()), ways.lenient) == ("text", False)
    assert fields("text", question()) == fields("schema", [*question()]) == {}


@pytest.mark.parametrize(
    ("reply", "meant"),
    [
        ("1. go to drawer 10\n2. pick up", "1"),
        ("**2**\nBecause it is near.", "2"),
        ("I should go to drawer 1.", "0"),
        ("Let us go to drawer 10 now", "1"),
        ("The answer is 2", "2"),
        ("Go to drawer 1 or pick up", None),
        ("Either 0 or 2", None),
        ("2 steps are left", "2"),
        ("Hello", None),
        ("1. The drawer is open.\n2. It is late.\nAnswer: 0", None),
        ("1.", "1"),
    ],
)
def test_a_lenient_reading_finds_the_one_label_that_is_meant(reply: str, meant: str | None) -> None:
    assert read_leniently(reply, question()) == meant


@pytest.mark.usefixtures("endpoint")
def test_a_reply_that_means_no_label_is_asked_again_and_set_aside() -> None:
    with LabelServer("nothing", says="Hello") as server:
        client = ChatClient(server.at(max_attempts=2))
        with pytest.raises(RejectedReply, match="Answer with a label"):
            client.ask_many([question()], [label])
        assert (client.usage.rejected, client.usage.lenient) == (1, 0)
        assert server.requests[-1].chat[-1]["content"] == "Answer with a label."


def test_of_a_reply_that_was_cut_off_the_whole_sentences_are_read() -> None:
    assert Text("It is near. Go on 1.5 m! And th", cut=True).sentences.text == "It is near. Go on 1.5 m!"
    for text, cut in (("It is near. And", False), ("It was 1.5 m", True), ("...", True)):
        assert Text(text, cut).sentences == Text(text, cut)


@pytest.mark.usefixtures("endpoint")
def test_a_whole_line_of_the_menu_is_a_label() -> None:
    with LabelServer("nothing", says="**2. pick up**") as server:
        assert ChatClient(server.at()).ask_many([question()], [label])[0].value == "2"
        assert server.ways == ["schema"]
