"""Correctors as a recipe describes them."""

from __future__ import annotations

from typing import Any

import pytest

from reflectrl.config.judges import CorrectorPlayerSection
from reflectrl.pipeline.judges import corrector_of
from reflectrl.players import Informed, RuleCorrector
from reflectrl.players.remote import RemoteCorrector

QUESTIONS = ["What is on the table?", "Which symbol comes next?"]


class Given:
    """Endpoints that return what a player would have been made from."""

    def player(self, kind: type, role: str, endpoint: object, **options: Any) -> dict[str, Any]:  # noqa: ARG002
        assert (kind, role) == (RemoteCorrector, "corrector")
        return options


def corrector(**settings: Any) -> Any:
    return corrector_of(CorrectorPlayerSection(**settings), models=None, endpoints=Given())


@pytest.mark.parametrize(("on_failure", "instead"), [("skip", ""), ("default", "It is far."), ("raise", None)])
def test_a_remote_corrector_gets_what_follows_a_failure_and_what_it_is_asked(on_failure: str, instead: str | None):
    default = {"default": "It is far."} if on_failure == "default" else {}
    made = corrector(player="remote", on_failure=on_failure, questions=QUESTIONS, images=True, **default)
    assert made["instead"] == instead
    assert (list(made["questions"]), made["images"]) == (QUESTIONS, True)


def test_a_corrector_with_a_tool_sees_what_the_expert_knows_and_the_rule_needs_no_model():
    assert isinstance(corrector(player="remote", tool=True), Informed)
    assert isinstance(corrector(player="rule"), RuleCorrector)
