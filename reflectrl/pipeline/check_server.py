"""``check_server``: whether a server's model writes what the run's own model writes in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from reflectrl.core import InvalidInput
from reflectrl.core.messages import TokenPrompt
from reflectrl.core.run_files import sft_rows_file
from reflectrl.data_gen.rows import read_rows
from reflectrl.endpoint.replies import Continued
from reflectrl.lm.decode import Sampler
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.plain_text import PlainText
from reflectrl.lm.sequences import Tokens
from reflectrl.lm.writer import Writer
from reflectrl.pipeline.folder import RunFolder, read_recipe
from reflectrl.pipeline.team import Team
from reflectrl.prompts import Prompt
from reflectrl.seats.base import SERVER, FrozenModel
from reflectrl.seats.served import continued, served


@dataclass(frozen=True)
class Agreement:
    """How far a server's greedy words are those of the same model in this process."""

    role: str
    prompts: int
    equal: int
    """Number of prompts after which the words are equal."""
    largest_gap: float | None
    """Largest difference of the log-probabilities of the server's tokens, in nats; ``None`` if it tells none."""

    @property
    def text(self) -> str:
        """The comparison in a line."""
        gap = "it tells none" if self.largest_gap is None else f"they differ by at most {self.largest_gap:.1e}"
        share = f"{self.equal} of {self.prompts} ({self.equal / self.prompts:.0%})"
        return f"{self.role}: equal words after {share} prompts; log-probabilities of the chosen tokens: {gap}"


def check_server(run: Path, prompts: int = 64) -> list[Agreement]:
    """Compare each ``server`` player of a run with the same model here, after prompts of the reflector's SFT rows.

    Raises:
        InvalidInput: the recipe has no such player, something that it needs is not made yet, or ``served`` refuses a
            server.
    """
    recipe = read_recipe(run, given=None)
    seats = [(kind.role.name, seat) for kind, seat in recipe.players.frozen if seat.kind == SERVER]
    if not seats:
        raise InvalidInput(f"no player of {run} is a server; expected a recipe such as smollm2/number_line_server.")
    rows = read_rows(RunFolder(run).verified(sft_rows_file("reflector"), "gen-data"))
    chosen = list(dict.fromkeys(row.prompt for row in rows))[:prompts]
    return [_compare(role, seat, Team(recipe, RunFolder(run), replies="forget"), chosen) for role, seat in seats]


def _compare(role: str, seat: object, team: Team, prompts: Sequence[Prompt]) -> Agreement:
    limit = getattr(seat, "max_new_tokens", 64)
    _, client = served(seat, team, role, max_new_tokens=limit)
    model = team.frozen_model(getattr(seat, "model", None), role)
    tokenizer, end = model.lm.tokenizer, model.lm.tokenizer.eos_token_id
    rows = PromptEncoder(tokenizer, (), model.max_length).all_tokens(prompts, reserve=limit)
    theirs = continued(client, [TokenPrompt(row, end=end, logprobs=True) for row in rows], [0.0] * len(rows))
    ours = Writer(model.lm.model, tokenizer, max_new_tokens=limit).write(rows, Sampler([0.0] * len(rows), 0.0))
    plain = PlainText(tokenizer)
    found = [plain.completion(each.text) if each.ids is None else each.ids for each in theirs]
    equal = sum(own == (ids[:-1] if ids[-1:] == [end] else ids) for own, ids in zip(ours, found, strict=True))
    gaps = [gap for row, each in zip(rows, theirs, strict=True) for gap in _gaps(model, row, each)]
    return Agreement(role, len(rows), equal, max(gaps, default=None))


@torch.no_grad()
def _gaps(model: FrozenModel, row: Tokens, said: Continued) -> Iterator[float]:
    """Yield the difference of each token's log-probability."""
    ids = PlainText(model.lm.tokenizer).completion(said.text) if said.ids is None else said.ids
    if not said.logprobs or len(ids) != len(said.logprobs):
        return
    text = torch.tensor([[*row, *ids]], device=model.lm.base.device)
    logprobs = model.lm.model(input_ids=text).logits[0, len(row) - 1 : -1].float().log_softmax(-1)
    ours = logprobs.gather(1, text[0, len(row) :, None])[:, 0].tolist()
    yield from (abs(one - other) for one, other in zip(ours, said.logprobs, strict=True))
