"""Players ``server``: frozen models behind vLLM or another server that continues token ids (``/v1/completions``).

They read exactly the tokens that a ``local`` player would, so greedy words are the same up to rounding. What is
sampled depends on the seed of each request, which follows from the step's draw, so it is the same in any batch.

``PolicyServer`` writes the texts of a policy while it is trained. The main process writes the adapter of each rollout
to a folder that all servers see, and lets them load it under a name that was never used before: whatever a server keeps
of an adapter, it keeps by the name, and one without the adapter refuses requests for it.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.messages import LabelChat, TokenPrompt
from reflectrl.endpoint.api import exchange_adapter, version
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.journal import Server
from reflectrl.endpoint.replies import Continued
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.load import LanguageModel, save_model
from reflectrl.lm.plain_text import PlainText
from reflectrl.lm.sequences import Tokens
from reflectrl.lm.tokenizer import label_ids
from reflectrl.lm.writer import RATING_CUE, SUMMARY_CUE, SUMMARY_TOKENS, LMReflector, LocalText
from reflectrl.prompts import Menu
from reflectrl.prompts.chats import plain_prompt
from reflectrl.prompts.rating import Scale
from reflectrl.seats.base import Bench, FrozenModel

PROBE = "Is 'naïve' 1,234?\n\t(row 7) | R: ü"
"""Text whose tokens, as a server reads them, tell its tokenizer from another."""
SEEDS = 2**53
"""Number of different seeds of a request, all of which JSON's numbers hold exactly, as a draw does."""


def served(
    section: Any, bench: Bench, role: str, *, max_new_tokens: int = SUMMARY_TOKENS, temperature: float = 0.0
) -> tuple[FrozenModel, ChatClient]:
    """Return a seat's model without its weights, and the client of the server that has them, which is checked.

    Raises:
        InvalidInput: a server cannot be used, or serves another model.
    """
    model = bench.frozen_model(getattr(section, "model", None), role, weights=False)
    endpoint = replace(section.endpoint, max_tokens=max_new_tokens, temperature=temperature)
    client = bench.chat(endpoint, role)
    client.journal.add_servers(check_servers(client, model))
    return model, client


def check_servers(client: ChatClient, model: FrozenModel) -> list[Server]:
    """Check that every address of an endpoint serves ``model``, so far as a few tokens show, and describe the servers.

    Raises:
        InvalidInput: a server is down or slow, or its model has another name, another tokenizer or a shorter context.
    """
    endpoint, own = client.endpoint, PlainText(model.lm.tokenizer).text(PROBE)
    listed = client.at_each(lambda api: api.get("/models", cast_to=object))
    servers = [
        _server(address, endpoint.model, body, model.max_length)
        for address, body in zip(endpoint.addresses, listed, strict=True)
    ]
    asked = {"model": endpoint.model, "prompt": PROBE, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    probed = client.at_each(lambda api: api.post("/completions", cast_to=object, body=asked))
    for address, body in zip(endpoint.addresses, probed, strict=True):
        _check_tokens(address, body, own)
    versions = client.at_each(version)
    return [replace(server, version=told) for server, told in zip(servers, versions, strict=True)]


def _server(address: str, name: str, body: Any, max_length: int) -> Server:
    listed = body.get("data") if isinstance(body, dict) else None
    models = {str(each.get("id")): each for each in listed or () if isinstance(each, dict)}
    if name not in models:
        raise InvalidInput(
            f"the server at {address} serves {', '.join(map(repr, models)) or 'no model'}, not {name!r}; set "
            "endpoint.model to the name that it serves, or restart it with --served-model-name."
        )
    length = models[name].get("max_model_len")
    if isinstance(length, int) and length < max_length:
        raise InvalidInput(
            f"the server at {address} takes {length} tokens, but prompts and words have up to {max_length} "
            f"(max_length of the model); restart it with --max-model-len {max_length}."
        )
    return Server(address, name, str(models[name].get("root") or ""), "", length if isinstance(length, int) else None)


def _check_tokens(address: str, body: Any, own: Sequence[int]) -> None:
    """Check the tokens of ``PROBE``, or their number where a server does not tell them."""
    try:
        theirs = body["choices"][0].get("prompt_token_ids")
        same = body["usage"]["prompt_tokens"] == len(own) if theirs is None else theirs[: len(own)] == [*own]
    except (AttributeError, IndexError, KeyError, TypeError):
        same = False
    if not same:
        raise InvalidInput(
            f"the server at {address} reads a text as other tokens than this run's model, so it serves another model "
            "or a tokenizer of another version; serve the folder that `reflectrl export --merge` has written."
        )


def continued(client: ChatClient, texts: Sequence[TokenPrompt], draws: Sequence[float]) -> list[Continued]:
    """Return how the model continues each text, ``endpoint.concurrency`` at a time.

    Raises:
        WorkFailed: a server has failed; the same command continues.
    """
    replies = client.ask_many(texts, [lambda text: Continued(**json.loads(text))] * len(texts), [*map(repr, draws)])
    return [reply.value for reply in replies]


class ServedReflector(LMReflector):
    """Reflects as ``LMReflector`` does, with a model behind a server; the client's endpoint has its settings."""

    def __init__(self, model: FrozenModel, client: ChatClient, *, cache_size: int = 100_000) -> None:
        """Write with ``client`` what ``model``, whose weights are not used, would write."""
        super().__init__(
            model.lm.model,
            model.lm.tokenizer,
            max_length=model.max_length,
            max_new_tokens=client.endpoint.max_tokens,
            temperature=client.endpoint.temperature or 0.0,
            cache_size=cache_size,
        )
        self.client = client
        self._plain = PlainText(model.lm.tokenizer)
        self._end: int = model.lm.tokenizer.eos_token_id

    def continued(self, rows: Sequence[Tokens], draws: Sequence[float]) -> list[list[int]]:
        """Return the ids of the text after each row, without the token that ends it."""
        texts = [TokenPrompt(row, end=self._end, seed=int(draw * SEEDS)) for row, draw in zip(rows, draws, strict=True)]
        said = continued(self.client, texts, draws)
        found = [self._plain.completion(each.text) if each.ids is None else each.ids for each in said]
        return [ids[: ids.index(self._end)] if self._end in ids else ids for ids in found]


class ServedJudge(LocalText):
    """Summarises and rates as ``LocalModel`` does, with a model behind a server."""

    def __init__(self, model: FrozenModel, client: ChatClient, scale: Scale, *, cue: str = SUMMARY_CUE) -> None:
        """Ask with ``client`` what ``model`` would answer; raises as ``LocalModel`` does."""
        super().__init__(ServedReflector(model, client, cache_size=0), cue)
        tokenizer = model.lm.tokenizer
        self._levels = label_ids(tokenizer, scale.levels)
        self._encoder = PromptEncoder(tokenizer, self._levels, model.max_length, cache_size=0)
        self._client = client
        self._end: int = tokenizer.eos_token_id
        self._check_choice()

    def _check_choice(self) -> None:
        """Check that the server chooses among given tokens, and tells which one."""
        asked = {"prompt": PROBE, "max_tokens": 1, "temperature": 0, "allowed_token_ids": self._levels}
        asked |= {"model": self._client.endpoint.model, "return_token_ids": True}
        answers = self._client.at_each(lambda api: api.post("/completions", cast_to=object, body=asked))
        for address, body in zip(self._client.endpoint.addresses, answers, strict=True):
            try:
                [chosen] = body["choices"][0]["token_ids"]
            except (IndexError, KeyError, TypeError, ValueError):
                chosen = None
            if chosen not in self._levels:
                raise InvalidInput(
                    f"the server at {address} does not answer with one of the tokens that it is given, or does not "
                    "tell which; a rater or corrector needs vLLM (allowed_token_ids, return_token_ids)."
                )

    def ratings(self, chats: Sequence[LabelChat], draws: Sequence[float]) -> list[int | None]:
        """Return one level per chat, the most probable one."""
        prompts = [plain_prompt(chat, RATING_CUE, Menu(chat.labels, chat.actions)) for chat in chats]
        levels = self._levels
        rows = self._encoder.rows(prompts)
        texts = [
            TokenPrompt(row, end=self._end, allowed=levels[: len(chat.labels)])
            for row, chat in zip(rows, chats, strict=True)
        ]
        said = continued(self._client, texts, draws)
        return [levels.index(each.ids[0]) if each.ids else None for each in said]


_AS_IT_IS = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
"""Fields that keep a model's ``generation_config`` from changing what texts are sampled from, and which token ends
them: the one of ``stop_token_ids``."""


class PolicyServer:
    """The servers of one policy, which hold its base; a ``TextServer``.

    Args:
        client: client of the servers; its endpoint names the base, and has the policy's maximum length of a text.
        folder: holds the adapter; the servers see it at the same path.
        lm: the policy, with an adapter.
    """

    def __init__(self, client: ChatClient, folder: Path, lm: LanguageModel) -> None:
        self.run = random.SystemRandom().randrange(2**32)
        """Number in the names of the adapters, which tells those of this start of training from all others."""
        self._client = client
        self._folder = folder
        self._lm = lm
        self._version = 0

    @property
    def name(self) -> str:
        """Name of the newest adapter."""
        return f"policy-v{self._version}-{self.run:08x}"

    def publish(self, weights: Mapping[str, Tensor] | None, *, main: bool) -> None:
        """Let the servers write with the policy's present weights; only the ``main`` process tells them.

        ``weights`` are those of a model that is sharded.

        Raises:
            InvalidInput: a server cannot load the adapter.
        """
        self._version += 1
        if not main:
            return
        shutil.rmtree(self._folder, ignore_errors=True)  # vLLM reads an adapter once, when it loads it
        save_model(self._lm, self._folder / self.name, weights)
        try:
            self._client.at_each(partial(exchange_adapter, folder=str(self._folder), name=self.name))
        except InvalidInput as error:
            rank = max(each.r for each in self._lm.model.peft_config.values())
            raise InvalidInput(
                f"the policy's adapter could not be given to its server: {error} It has to be vLLM, started with "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and --max-lora-rank {rank} or more, and has to "
                f"see the folder {self._folder}."
            ) from error

    def withdraw(self) -> None:
        """Let the servers drop the adapter, if they are still there, and delete it."""
        with suppress(InvalidInput):  # a server that is gone has dropped its adapters
            self._client.at_each(partial(exchange_adapter, folder=str(self._folder), name=None))
        shutil.rmtree(self._folder, ignore_errors=True)

    def write(
        self, rows: Sequence[Tokens], draws: Sequence[float], temperature: float
    ) -> list[tuple[list[int], list[float]]]:
        """Write as ``TextServer`` says, with the newest adapter.

        Raises:
            WorkFailed: a server has failed, has lost the adapter, or tells no token ids or log-probabilities.
        """
        end: int = self._lm.tokenizer.eos_token_id
        more = {"model": self.name, "temperature": temperature, **_AS_IT_IS}
        texts = [
            TokenPrompt(row, end=end, seed=int(draw * SEEDS), logprobs=True, more=more)
            for row, draw in zip(rows, draws, strict=True)
        ]
        try:
            said = continued(self._client, texts, draws)
        except WorkFailed as failure:
            raise WorkFailed(
                f"{failure} It was asked for the adapter {self.name}; if it has lost that, such as by a restart, the "
                "same command gives it another one."
            ) from failure
        written = []
        for each in said:
            if not each.ids or len(each.logprobs) != len(each.ids):
                raise WorkFailed(
                    f"{self._client.endpoint} tells no token ids or no log-probabilities, which a policy is trained "
                    "with; use vLLM (return_token_ids, logprobs)."
                )
            if end not in each.ids and len(each.ids) < self._client.endpoint.max_tokens:
                raise WorkFailed(
                    f"{self._client.endpoint} ended a text with token {each.ids[-1]}, not with the policy's, {end}; "
                    "start vLLM with --generation-config vllm."
                )
            ids = each.ids[: each.ids.index(end)] if end in each.ids else each.ids
            written.append((ids, each.logprobs))
        return written
