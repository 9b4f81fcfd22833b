"""``PolicyServer``: vLLM that writes the texts of a policy while it is trained, with the adapter of each rollout.

The main process writes the adapter to a folder that all servers see, and lets them load it under a name that was never
used before: whatever a server keeps of an adapter, it keeps by the name. Requests ask for that name, so that a server
without the adapter refuses them, and never answers with other weights.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from torch import Tensor

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.messages import TokenPrompt
from reflectrl.endpoint.api import exchange_adapter
from reflectrl.endpoint.client import ChatClient
from reflectrl.lm.load import LanguageModel, save_model
from reflectrl.lm.sequences import Tokens
from reflectrl.seats.served import SEEDS, continued

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
