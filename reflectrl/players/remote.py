"""Players behind a chat endpoint: a reflector for the local policy, and a policy to stand in the table beside it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from reflectrl.core import Decision, InvalidInput, Utterance
from reflectrl.players.chat import ChatClient, accept
from reflectrl.prompts import Menu, Prompt
from reflectrl.prompts.chat import label_complaint, policy_chat, read_label, read_reflection, reflector_chat


class RemoteReflector:
    """A frozen chat model that reflects. At temperature 0 equal prompts are asked once and remembered.

    Above temperature 0 the endpoint draws, so episodes are not reproducible: ``draws`` cannot reach it.
    """

    wants_hints = False

    def __init__(self, client: ChatClient, *, cache_size: int = 100_000) -> None:
        """Speak through ``client``; keep at most ``cache_size`` reflections, 0 for none."""
        self._client = client
        self._cache_size = cache_size if client.endpoint.temperature == 0 else 0
        self._cache: OrderedDict[str, Utterance] = OrderedDict()

    def reflect(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:  # noqa: ARG002
        """One utterance a prompt.

        Raises:
            WorkFailed: the endpoint gave no usable reply.

        """
        if not self._cache_size:
            return self._ask(prompts)
        new = {prompt.text: prompt for prompt in prompts if prompt.text not in self._cache}
        fresh = dict(zip(new, self._ask(list(new.values())), strict=True))
        # each new prompt is counted as asked once; its repetitions in this batch come from the cache
        said = [fresh[p.text] if new.pop(p.text, None) else self._remembered(p.text, fresh) for p in prompts]
        for text, utterance in fresh.items():
            self._cache[text] = Utterance(utterance.text, cached=True)
        while len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return said

    def _remembered(self, text: str, fresh: dict[str, Utterance]) -> Utterance:
        return self._cache[text] if text in self._cache else Utterance(fresh[text].text, cached=True)

    def _ask(self, prompts: Sequence[Prompt]) -> list[Utterance]:
        if not prompts:
            return []
        replies = self._client.ask_many([reflector_chat(prompt) for prompt in prompts], [accept] * len(prompts))
        return [Utterance(read_reflection(reply.text), reply.tokens) for reply in replies]


class RemotePolicy:
    """A chat model that plays. It answers with a label; its probabilities are unknown, so they stay out of the record."""

    wants_hints = False

    def __init__(self, client: ChatClient) -> None:
        """Speak through ``client``."""
        self._client = client

    def act(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002
        """One decision a prompt.

        Raises:
            WorkFailed: the endpoint gave no usable reply, or no label however often it was asked.

        """
        menus = [_menu(prompt) for prompt in prompts]
        checks = [partial(label_complaint, menu=menu) for menu in menus]
        replies = self._client.ask_many([policy_chat(prompt) for prompt in prompts], checks)
        return [_decision(reply.text, menu) for reply, menu in zip(replies, menus, strict=True)]


def _menu(prompt: Prompt) -> Menu:
    if prompt.menu is None:
        raise InvalidInput("a policy was given a reflector's prompt; expected one with a menu.")
    return prompt.menu


def _decision(reply: str, menu: Menu) -> Decision:
    index = read_label(reply, menu)
    if index is None:
        raise InvalidInput(f"{reply!r} is no label of the menu {menu.labels}; check replies with label_complaint.")
    return Decision(index, menu.actions[index], logprob=0.0, entropy=0.0)
