"""What servers and models of many kinds send, after their documentation and public reports about them.

Each reply comes from a real HTTP server, and is read by the one client that all remote players share.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import ScriptedEndpoint, replies_in

from reflectrl.config import Recipe
from reflectrl.core import Image, InvalidInput, WorkFailed
from reflectrl.core.messages import LabelChat, Messages, PicturedChat
from reflectrl.data_gen import generate
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal, RejectedReply

CHAT = [{"role": "system", "content": "Advise."}, {"role": "user", "content": "Where to?"}]
SAID = "The target is higher. Add one."
"""The answer in each reply that has one."""
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def whole(content: Any, finish: Any = "stop", *, choice: Any = None, **message: Any) -> dict[str, Any]:
    """Return a chat completion; ``choice`` has further fields of its choice, ``message`` of its message."""
    said = {"role": "assistant", "content": content, **message}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": said, "finish_reason": finish, **(choice or {})}],
        "usage": USAGE,
    }


def stream(*chunks: Any, done: str = "data: [DONE]\n\n") -> str:
    """Return server-sent events, one per chunk."""
    return "".join(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks) + done


def part(content: Any = None, finish: Any = None, **delta: Any) -> dict[str, Any]:
    said = delta if content is None else {"content": content, **delta}
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


THOUGHT = "The user wants a short reflection. I am at number 3 and must not leak this."
HARMONY = f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>"
LAST = {"object": "chat.completion.chunk", "choices": [], "usage": USAGE}

GOOD: dict[str, Any] = {
    "OpenAI": whole(SAID, refusal=None, annotations=[], audio=None, choice={"logprobs": None}),
    "Azure OpenAI": {
        **whole(SAID, choice={"content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}}),
        "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}],
    },
    "vLLM, reasoning parser": whole(SAID, reasoning_content=THOUGHT, tool_calls=[], choice={"stop_reason": None}),
    "vLLM, field reasoning": whole(f"\n\n{SAID}", reasoning=THOUGHT, tool_calls=[], function_call=None),
    "SGLang": whole(SAID, reasoning_content=None, tool_calls=None, choice={"matched_stop": 151645}),
    "SGLang, no parser": whole(f"<think>\n{THOUGHT}\n</think>\n\n{SAID}"),
    "llama.cpp": {**whole(f"<think>{THOUGHT}</think>{SAID}"), "timings": {"prompt_n": 7}, "model": "gpt-3.5-turbo"},
    "llama.cpp, reasoning_format auto": whole(SAID, reasoning_content=f"{THOUGHT}\n"),
    "Ollama": {**whole(SAID, reasoning=THOUGHT), "system_fingerprint": "fp_ollama"},
    "LM Studio": {**whole(SAID), "stats": {}, "system_fingerprint": "m"},
    "LM Studio, Gemma 4": whole(f"<|channel>thought\n{THOUGHT}<channel|>{SAID}"),
    "vLLM, Gemma 4 without the first mark": whole(f"{THOUGHT}\n1. **Scan**\n<channel|>{SAID}<turn|>"),
    "TGI": {**whole(f"{SAID}<|eot_id|>", choice={"logprobs": None}), "id": "", "system_fingerprint": "3.2.0-sha-1"},
    "TGI, finish_reason eos_token": whole(f"{SAID}</s>", "eos_token"),
    "LiteLLM": whole(SAID, tool_calls=None, function_call=None, provider_specific_fields={"refusal": None}),
    "LiteLLM, thinking blocks": whole(SAID, thinking_blocks=[{"type": "thinking", "thinking": THOUGHT}]),
    "OpenRouter": {
        **whole(SAID, refusal=None, reasoning=THOUGHT, reasoning_details=[{"type": "reasoning.text", "text": THOUGHT}]),
        "provider": "DeepInfra",
    },
    "Mistral, Magistral": whole(
        [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}, {"type": "text", "text": SAID}]
    ),
    "Mistral, references": whole(
        [{"type": "text", "text": SAID[:10]}, {"type": "reference", "reference_ids": [1]}]
        + [{"type": "text", "text": SAID[10:]}],
        prefix=False,
    ),
    "parts of the Responses API behind a gateway": whole([{"type": "output_text", "text": SAID, "annotations": []}]),
    "Magistral on a server that knows no marks": whole(f"[THINK]{THOUGHT}[/THINK]{SAID}"),
    "DeepSeek": whole(f"{SAID}", reasoning_content=THOUGHT, choice={"logprobs": None}),
    "DeepSeek V3.1, whose prompt begins the thinking": whole(f"{THOUGHT}</think>{SAID}<｜end▁of▁sentence｜>"),
    "Gemini, include_thoughts": whole(f"<thought>{THOUGHT}</thought>{SAID}", extra_content={"google": {}}),
    "Anthropic's OpenAI surface": {**whole(SAID), "system_fingerprint": None, "service_tier": None},
    "Groq, reasoning_format raw": {**whole(f"<think>\n{THOUGHT}\n</think>\n{SAID}"), "x_groq": {"id": "req_1"}},
    "Together": {**whole(SAID, "eos", tool_calls=[], choice={"seed": 5}), "prompt": []},
    "DashScope, thinking off": whole(SAID, reasoning_content=""),
    "no finish_reason and no usage": {**whole(SAID, None), "usage": None},
    "mlx-lm, gpt-oss": whole(f" {HARMONY}{SAID}"),
    "gpt-oss, whole turn": whole(f"{HARMONY}{SAID}<|return|>"),
    "gpt-oss, constrained": whole(f"{HARMONY[: -len('<|message|>')]} <|constrain|>json<|message|>{SAID}<|end|>"),
    "TensorRT-LLM, gpt-oss without its marks": whole(f"analysis{THOUGHT}assistantfinal{SAID}"),
    "Seed-OSS": whole(
        f"<seed:think>{THOUGHT}<seed:cot_budget_reflect>half</seed:cot_budget_reflect></seed:think>{SAID}"
    ),
    "MiniMax": whole(f"<mm:think>{THOUGHT}</mm:think>\n{SAID}"),
    "LongCat": whole(f"<longcat_think>{THOUGHT}</longcat_think>{SAID}"),
    "Kimi-VL": whole(f"◁think▷{THOUGHT}◁/think▷{SAID}"),
    "a model that was told to think in tags": whole(f"<thinking>{THOUGHT}</thinking>\n\n<answer>{SAID}</answer>"),
    "Granite 3.2": whole(f"Here is my thought process: {THOUGHT}\n\nHere is my response:\n\n{SAID}"),
    "Command A": whole(
        f"<|START_THINKING|>{THOUGHT}<|END_THINKING|><|START_RESPONSE|>{SAID}<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"
    ),
    "Apertus": whole(f"<|inner_prefix|>{THOUGHT}<|inner_suffix|>{SAID}"),
    "OpenThinker": whole(
        f"<|begin_of_thought|>{THOUGHT}<|end_of_thought|>\n<|begin_of_solution|>{SAID}<|end_of_solution|>"
    ),
    "GLM-4.5V": whole(f"<think>{THOUGHT}</think><|begin_of_box|>{SAID}<|end_of_box|>"),
    "Hunyuan-A13B": whole(f"<think>\n{THOUGHT}\n</think>\n<answer>\n{SAID}\n</answer>"),
    "ERNIE 4.5": whole(f"<think>{THOUGHT}</think>\n\n<response>\n{SAID}\n</response>\n"),
    "Qwen on a server that leaves its last mark": whole(f"{SAID}<|im_end|>\n"),
    "a stream that nobody asked for": stream(
        part(role="assistant"), part(SAID[:9]), part(SAID[9:]), part(finish="stop")
    ),
    "transformers serve": stream(part("", role="assistant"), part(SAID), part(finish="stop"), done=""),
    "DashScope, QwQ": stream(part(reasoning_content=THOUGHT), part(SAID), part("", "stop"), LAST),
    "OpenRouter, with comments": ": OPENROUTER PROCESSING\n\n" + stream(part(SAID), part("", "stop"), LAST),
    "Mistral, a stream of parts": stream(
        part([{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}]),
        part([{"type": "text", "text": SAID}], "stop"),
    ),
    "events with names and other line ends": stream(part(SAID), part("", "stop")).replace("data:", "event: x\r\ndata:"),
}
"""Replies that hold ``SAID``."""


def ask(endpoint: ScriptedEndpoint, chat: Messages = CHAT, folder: Path | None = None, **fields: Any) -> str:
    there = endpoint.at(max_attempts=2, **fields)
    return ChatClient(there, Journal(folder)).ask_many([chat], [str])[0].value


@pytest.mark.parametrize("server", GOOD)
def test_the_answer_is_read_and_nothing_of_the_thinking(
    endpoint: ScriptedEndpoint, tmp_path: Path, server: str
) -> None:
    endpoint.answer = lambda _: (200, GOOD[server])
    assert ask(endpoint, folder=tmp_path) == SAID
    [reply] = replies_in(tmp_path)
    assert (reply["text"], reply["words"]) == (SAID, "")
    assert len(endpoint.requests) == 1


UNUSABLE: dict[str, tuple[Any, str]] = {
    "vLLM, nothing but thinking": (whole(None, "length", reasoning_content=THOUGHT), "is empty.*raise max_tokens"),
    "an unfinished thought": (whole(f"<think>\n{THOUGHT}", "length"), "raise max_tokens"),
    "a thought without an end": (whole(f"<think>\n{THOUGHT}"), "'<think>'.*thinking.*extra_body"),
    "Magistral, an unfinished thought": (whole(f"[THINK]{THOUGHT}"), "THINK"),
    "gpt-oss, no final channel": (whole(HARMONY.partition("<|end|>")[0]), r"<\|channel\|>"),
    "gpt-oss without its marks, no final channel": (whole(f"analysis{THOUGHT}"), "'analysis'"),
    "Granite, no response": (whole(f"Here is my thought process: {THOUGHT}"), "Here is my thought process"),
    "Kimi-VL, an unfinished thought": (whole(f"◁think▷{THOUGHT}"), "◁think▷"),
    "a mark that nobody knows": (whole(f"{SAID} <|plan_mode|> Go on."), r"<\|plan_mode\|>.*extra_body"),
    "parts of thinking only": (whole([{"type": "thinking", "thinking": [{"type": "text", "text": "x"}]}]), "is empty"),
    "OpenRouter, half a text": (
        whole("The target is high", "error", choice={"error": {"code": 502, "message": "Upstream idle timeout"}}),
        "broke off.*Upstream idle timeout",
    ),
    "a finish_reason error alone": (whole("The target is high", "error"), "broke off"),
    "OpenRouter, an error in the stream": (
        stream(part("The tar"), {**part("", "error"), "error": {"code": "server_error", "message": "Disconnected"}}),
        "broke off.*Disconnected",
    ),
    "a stream that breaks off": (stream(part("The tar"), done=""), "broke off.*before its last part"),
    "half of a stream's part": (stream(part("The tar"), done='data: {"choi'), "not the JSON of a chat completion"),
    "OpenAI, refusal": (whole(None, refusal="I cannot help."), "refused: I cannot help"),
    "Azure, content filter": (whole("", "content_filter"), "refused"),
    "a call of a tool": (whole(None, "tool_calls", tool_calls=[{"id": "1", "type": "function"}]), "is empty"),
    "an error without a number": ({"error": "model is busy"}, "model is busy"),
}
"""Replies that hold no whole answer, and what the reason says."""


@pytest.mark.parametrize("server", UNUSABLE)
def test_a_reply_without_a_whole_answer_is_asked_for_again_and_set_aside_with_the_reason(
    endpoint: ScriptedEndpoint, tmp_path: Path, server: str
) -> None:
    said, reason = UNUSABLE[server]
    left = [said]
    endpoint.answer = lambda _: (200, left.pop()) if left else (200, whole(SAID))
    assert ask(endpoint) == SAID
    endpoint.answer = lambda _: (200, said)
    with pytest.raises(RejectedReply, match=reason):
        ask(endpoint, folder=tmp_path)
    assert len(endpoint.requests) == 4
    assert {reply["text"] for reply in replies_in(tmp_path)} <= {None}


@pytest.mark.parametrize(
    ("body", "sent", "fact"),
    [
        ({"error": {"code": 401, "message": "User not found."}}, 1, "status 401.*the key was refused"),
        ({"error": {"message": "bad key", "type": "auth_error", "param": "None", "code": "401"}}, 1, "status 401"),
        ({"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}, 1, "status 401"),
        ({"code": "InvalidApiKey", "message": "Invalid API-key provided.", "request_id": "1"}, 1, "status 401"),
        ({"error": {"code": 402, "message": "Insufficient credits"}}, 1, "status 402.*Insufficient credits"),
        ({"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}, 1, "quota is used up"),
        ({"object": "error", "message": "no such model", "type": "NotFoundError", "code": 404}, 1, "status 404"),
        ({"error": {"code": 502, "message": "Provider returned error"}}, 2, "status 502.*Provider returned error"),
        ([{"error": {"code": 500, "message": "An internal error", "status": "INTERNAL"}}], 2, "status 500.*internal"),
        (stream({"error": {"code": 402, "message": "Insufficient credits"}}), 1, "status 402"),
    ],
)
def test_an_error_with_status_200_is_an_error(endpoint: ScriptedEndpoint, body: Any, sent: int, fact: str) -> None:
    endpoint.answer = lambda _: (200, body)
    with pytest.raises(WorkFailed, match=fact) as caught:
        ask(endpoint)
    assert len(endpoint.requests) == sent
    assert not isinstance(caught.value, RejectedReply)


def test_a_rate_limit_inside_status_200_is_waited_out(endpoint: ScriptedEndpoint) -> None:
    limits = [
        {"error": {"code": 429, "message": "Rate limit exceeded: free-models-per-min."}},
        [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota exceeded for quota metric"}}],
        {"error": {"code": "rate_limit_exceeded", "message": "slow down"}},
        whole("The tar", "error", choice={"error": {"code": 429, "message": "slow down"}}),
    ]
    left = limits * 2
    endpoint.answer = lambda _: (200, left.pop() if left else whole(SAID))
    assert ask(endpoint, backoff_s=0.001) == SAID
    assert len(endpoint.requests) == 9  # more than the two attempts


# ---- requests that a server refuses -----------------------------------------------------------------------------


def _system(body: dict[str, Any]) -> bool:
    return any(message["role"] == "system" for message in body["messages"])


def _said(status: int, message: str, **more: Any) -> tuple[int, Any]:
    return status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **more}}


ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
OLD_LIMIT = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
REFUSING: dict[str, tuple[Callable[[dict[str, Any]], bool], tuple[int, Any]]] = {
    "OpenAI behind LiteLLM": (
        lambda body: "max_tokens" in body,
        _said(400, f"litellm.BadRequestError: OpenAIException - {OLD_LIMIT}", code="400"),
    ),
    "OpenAI behind a gateway": (
        lambda body: "max_tokens" in body,
        _said(400, OLD_LIMIT, param="max_tokens", code="unsupported_parameter"),
    ),
    "a gateway with long errors": (
        lambda body: "max_tokens" in body,
        _said(400, f"[openai/gpt-5] [400]: {'{' * 300} {OLD_LIMIT}"),
    ),
    "vLLM, Gemma 2": (_system, (400, {"object": "error", "message": "System role not supported", "code": 400})),
    "vLLM, Mistral": (_system, _said(400, f"{ALTERNATE} {ALTERNATE}")),
    "TGI, Gemma": (
        _system,
        (422, {"error": "Template error: invalid operation: System role not supported (in <string>:1)"}),
    ),
    "LoRAX, Mixtral": (_system, (424, {"error": f"Request failed during generation: Server error: {ALTERNATE}"})),
    "llama.cpp": (
        _system,
        _said(500, "While executing CallExpression at line 1: raise_exception('System role not supported')", code=500),
    ),
    "llama.cpp, Ministral": (_system, _said(500, "Only user, assistant and tool roles are supported, got system.")),
    "OpenAI o1-mini": (
        _system,
        _said(400, "Unsupported value: 'messages[0].role' does not support 'system' with this model."),
    ),
    "Gemini API, Gemma 3": (
        _system,
        (400, [{"error": {"code": 400, "message": "Developer instruction is not enabled for models/gemma-3-27b-it"}}]),
    ),
    "DashScope, QwQ": (
        lambda body: not body.get("stream"),
        _said(400, "This model only support stream mode, please enable the stream parameter to access the model. "),
    ),
    "a server that streams": (lambda body: not body.get("stream"), _said(400, "Stream must be set to true")),
    "a proxy that streams": (lambda body: not body.get("stream"), _said(422, "Non-streaming is not supported.")),
}
"""Which requests servers refuse, and how."""


@pytest.mark.parametrize("server", REFUSING)
def test_a_refused_form_of_request_is_replaced_for_good(endpoint: ScriptedEndpoint, server: str) -> None:
    refuses, refusal = REFUSING[server]
    good = {False: whole(SAID), True: stream(part(SAID), part("", "stop"), LAST)}
    endpoint.answer = lambda body: refusal if refuses(body) else (200, good[bool(body.get("stream"))])
    client = ChatClient(endpoint.at(max_attempts=1, concurrency=3))
    chats = [[CHAT[0], {"role": "user", "content": text}] for text in "abcd"]
    for asked in (chats[:3], chats[3:]):
        assert [reply.value for reply in client.ask_many(asked, [str] * len(asked))] == [SAID] * len(asked)
    assert (len(endpoint.requests), client.usage.prompt_tokens) == (3 + 3 + 1, 4 * 7)
    body = endpoint.requests[-1].body
    assert "Advise." in str(body["messages"])
    assert [body[name] for name in ("max_tokens", "max_completion_tokens") if name in body] == [200]


def test_a_server_may_refuse_several_things(endpoint: ScriptedEndpoint) -> None:
    servers = ("OpenAI behind LiteLLM", "vLLM, Gemma 2", "DashScope, QwQ")

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        refusal = next((refusal for refuses, refusal in map(REFUSING.get, servers) if refuses(body)), None)
        return refusal or (200, stream(part(f"{HARMONY}{{"), part('"label": "1"}', "stop")))

    endpoint.answer = answer
    chat = LabelChat(CHAT, ("0", "1"), ("wait", "go"))
    assert ask(endpoint, chat) == "1"
    assert len(endpoint.requests) == 4
    body = endpoint.requests[-1].body
    assert (body["stream"], "response_format" in body, len(body["messages"])) == (True, True, 1)


def test_old_azure_gets_the_old_name_of_the_limit(endpoint: ScriptedEndpoint) -> None:
    refusal = _said(400, "Unrecognized request argument supplied: max_completion_tokens")
    endpoint.answer = lambda body: refusal if "max_completion_tokens" in body else (200, whole(SAID))
    there = {"base_url": endpoint.root, "azure_api_version": "2024-02-01", "max_tokens": 33}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "azure-key")
        assert ask(endpoint, **there) == SAID
    assert [request.body.get("max_tokens") for request in endpoint.requests] == [None, 33]


@pytest.mark.parametrize(
    "said",
    [
        "max_tokens is too large: 5000. This model supports at most 4096 completion tokens.",
        "temperature does not support 0 with this model",
        OLD_LIMIT.replace("max_", "min_"),
    ],
)
def test_another_refusal_stops_the_work_after_one_request(endpoint: ScriptedEndpoint, said: str) -> None:
    endpoint.answer = lambda _: _said(400, said)
    with pytest.raises(WorkFailed, match="It said"):
        ask(endpoint)
    assert len(endpoint.requests) == 1


def test_pictures_stay_behind_the_system_s_text_that_is_moved_before_them(endpoint: ScriptedEndpoint) -> None:
    refuses, refusal = REFUSING["vLLM, Gemma 2"]
    endpoint.answer = lambda body: refusal if refuses(body) else (200, whole(SAID))
    assert ask(endpoint, PicturedChat(CHAT, [Image(b"one")])) == SAID
    [message] = endpoint.requests[-1].body["messages"]
    assert [piece.get("text", piece["type"]) for piece in message["content"]] == ["Advise.", "image_url", "Where to?"]


# ---- further fields, and rows -----------------------------------------------------------------------------------


def test_further_fields_are_sent_with_each_request_and_make_another_call(endpoint: ScriptedEndpoint) -> None:
    fields = {"chat_template_kwargs": {"enable_thinking": False}, "options": {"num_ctx": 8192}}
    plain, extended = endpoint.at(), endpoint.at(extra_body=fields)
    endpoint.answer = lambda _: (200, whole(SAID))
    ask(endpoint, extra_body=fields)
    assert endpoint.requests[0].body == {**fields, **plain.body(CHAT)} == extended.body(CHAT)
    assert plain.digest(CHAT) != extended.digest(CHAT)


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"model": "x"}, "'model', which reflectrl sets itself"),
        ({"max_completion_tokens": 9}, "'max_completion_tokens'"),
        ({"api_key": "secret"}, "'api_key'.*api_key_env"),
        ({"extra_headers": {"Authorization": "secret"}}, "'Authorization'"),
        ({"user": "sk-proj-secret123456789"}, "'user'"),
        ({"hooks": [{"url": "https://me:secret@host/"}]}, "'url'"),
        ({"hooks": ["https://host/?token=secret"]}, "'hooks'"),
        ({"limit": float("nan")}, "JSON cannot hold"),
    ],
)
def test_fields_of_our_own_and_secrets_are_refused_and_not_shown(fields: dict[str, Any], fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact) as caught:
        Endpoint(extra_body=fields)
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"


def test_names_that_only_sound_like_secrets_are_fields_as_any_other() -> None:
    fields = {
        "stop_token_ids": [1],
        "thinking_token_budget": 64,
        "skip_special_tokens": True,
        "prompt_cache_key": "run-1",
        "provider": {"order": ["DeepInfra"], "data_collection": "deny"},
        "reasoning": {"effort": "none"},
    }
    assert Endpoint(extra_body=fields).extra_body == fields


def test_no_row_shows_a_model_s_thinking_or_its_marks(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    replies = [whole(f"{HARMONY}{SAID}"), whole(f"{SAID} <|plan_mode|>"), GOOD["Mistral, Magistral"]]
    replies += [GOOD["Granite 3.2"], whole(f"<think>{THOUGHT}")]
    endpoint.answer = lambda _: (200, replies[len(endpoint.requests) % len(replies)])
    there = {"base_url": endpoint.url, "backoff_s": 0.001}
    data = {"teacher": "openai", "trajectory": "oracle", "endpoint": there, "samples": 12}
    generate(Recipe.model_validate({"name": "test", "env": {"name": "number_line"}, "data": data}), tmp_path)
    rows = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("sft/*.jsonl"))
    assert SAID in rows
    for leak in (THOUGHT[:20], "<|", "think", "thought process"):
        assert leak not in rows
