"""Rows of supervised fine-tuning as token sequences, cut exactly like the same prompts in rollouts; their losses.

A prompt is cut further where its text is longer than the player may write in a rollout (``max_new_tokens``): the model
reads both, so it needs room for the longer one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from reflectrl.core import InvalidInput
from reflectrl.data_gen.rows import Row
from reflectrl.lm.encode import PromptBatch, PromptEncoder, action_distribution
from reflectrl.lm.sequences import Inputs, Tokens, padded
from reflectrl.prompts import Prompt
from reflectrl.prompts.format import AFTER_THOUGHT, WRITTEN_ACTIONS, ActionMode

Player = Literal["reflector", "policy", "both"]


@dataclass(frozen=True)
class TextExample:
    """Training example of a text: a reflection, or the text of a policy before it acts."""

    prompt: Tokens
    """Token ids of the prompt, cut to leave room for the text."""
    completion: Tokens
    """Token ids of the text and the end-of-text token, with which the model learns to stop."""
    scored: int
    """Number of tokens of the completion, from its first, that have a loss; the prompt has none."""
    player: Literal["reflector", "policy"] = "policy"
    """Player that writes the text."""

    @property
    def row(self) -> Tokens:
        """Token ids of prompt and text."""
        return (*self.prompt, *self.completion)


@dataclass(frozen=True)
class ActionExample:
    """Training example of a label: exactly one position has a loss, and no end-of-text token follows."""

    prompt: Prompt
    target: int
    """Position of the label among the legal actions."""
    row: Tokens
    """Token ids of the prompt, cut as in rollouts, and of a thought and the cue after it, if any."""
    player: ClassVar[Literal["policy"]] = "policy"


Example = TextExample | ActionExample


def encode_rows(
    tokenizer: PreTrainedTokenizerBase,
    encoder: PromptEncoder,
    rows: Sequence[Row],
    *,
    player: Player,
    labels: Sequence[str],
    action_mode: ActionMode,
    max_new_tokens: Mapping[str, int],
    drop_long_rows: bool,
) -> dict[int, list[Example]]:
    """Encode rows; prompts that are too long are cut as in rollouts, and further for a text beyond ``max_new_tokens``.

    Args:
        tokenizer: tokenizer of the player.
        encoder: encoder of the player's prompts, with the model's maximum length.
        rows: rows to encode.
        player: player that is trained, or "both".
        labels: all menu labels of the recipe.
        action_mode: form of the policy's answers.
        max_new_tokens: by player, number of tokens that a prompt leaves free for the player's text, as in rollouts.
        drop_long_rows: leave out rows that do not fit even when cut, instead of refusing them.

    Returns:
        The examples of each remaining row, by its number: one, or two for a thought and the label after it.

    Raises:
        InvalidInput: rows of another player, rows with other labels, rows that do not fit, or no rows.
    """
    encoded: dict[int, list[Example]] = {}
    too_long: list[InvalidInput] = []
    for number, row in enumerate(rows):
        _check(number, row, player, labels)
        try:
            encoded[number] = _encode(row, tokenizer, encoder, action_mode, max_new_tokens[row.player])
        except InvalidInput as error:
            too_long.append(error)
    if too_long and not drop_long_rows:
        raise InvalidInput(
            f"{len(too_long)} of {len(rows)} {player} rows do not fit model.max_length={encoder.max_length}, the first "
            f"of them because {too_long[0]} Raise model.max_length, or leave them out with sft.drop_long_rows=true."
        )
    if not encoded:
        raise InvalidInput(
            f"no rows are left to train the {player} on ({len(rows)} given, {len(too_long)} too long); run gen-data "
            "with more data.samples or raise model.max_length."
        )
    return encoded


def _encode(
    row: Row, tokenizer: PreTrainedTokenizerBase, encoder: PromptEncoder, mode: ActionMode, max_new_tokens: int
) -> list[Example]:
    """Return the examples of a row; raise ``InvalidInput`` if its prompt does not fit."""
    if row.player == "reflector" or mode in WRITTEN_ACTIONS:
        text = _text(row.prompt, row.written(mode), tokenizer, encoder, max_new_tokens)
        return [replace(text, player=row.player)]
    target = labels_of(row.prompt).index(row.completion)
    if mode == "enumerated":
        return [ActionExample(row.prompt, target, encoder.tokens(row.prompt))]
    cue = encoder.continuation(AFTER_THOUGHT)
    thought = _text(row.prompt, row.thought, tokenizer, encoder, max_new_tokens, len(cue))
    return [thought, ActionExample(row.prompt, target, (*thought.prompt, *thought.completion[:-1], *cue))]


def _text(
    prompt: Prompt,
    text: str,
    tokenizer: PreTrainedTokenizerBase,
    encoder: PromptEncoder,
    max_new_tokens: int,
    after: int = 0,
) -> TextExample:
    """Return the example of a text whose prompt leaves room for the text and ``after`` more tokens."""
    completion = (*encoder.answer(text), tokenizer.eos_token_id)
    if len(completion) + after >= encoder.max_length:
        raise InvalidInput(f"the text to write has {len(completion)} tokens, which leaves none for the prompt.")
    shown = encoder.tokens(prompt, max(max_new_tokens, len(completion)) + after)
    return TextExample(shown, completion, len(completion))


def labels_of(prompt: Prompt) -> tuple[str, ...]:
    """Return the labels of a prompt's legal actions; empty for a reflector's prompt."""
    return prompt.menu.labels if prompt.menu else ()


def _check(number: int, row: Row, player: Player, labels: Sequence[str]) -> None:
    if player not in ("both", row.player):
        raise InvalidInput(
            f"row {number} of those to train the {player} is a row of the {row.player}; expected the rows of "
            f"sft/{player}.jsonl."
        )
    given = row.prompt.menu.all_labels if row.prompt.menu else ()
    if not {*given} <= {*labels}:
        raise InvalidInput(
            f"row {number} has the labels {list(given)} but the recipe's are {list(labels)}; run gen-data again with "
            "this prompt.labels."
        )
    menu = row.prompt.menu
    if row.player == "policy" and (menu is None or (menu.labels and row.completion not in menu.labels)):
        raise InvalidInput(
            f"row {number} has the completion {row.completion!r}, which is none of its labels "
            f"{list(labels_of(row.prompt))}; run gen-data again."
        )


def text_losses(model: Any, examples: Sequence[TextExample], device: torch.device) -> Tensor:
    """Return the (N,) negative log-likelihoods of the completions in nats, summed over tokens (L_reflect of the paper).

    Only the first ``scored`` tokens of a completion count.
    """
    return text_results(model, examples, padded([example.row for example in examples], device))[0]


def text_results(model: Any, examples: Sequence[TextExample], inputs: Inputs) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return ``text_losses`` of the rows in ``inputs``, and whether each (scored,) token is the most probable one."""
    counts = [example.scored for example in examples]
    places: list[int] = []
    targets: list[int] = []
    for example, path in zip(examples, inputs.paths(), strict=True):
        start = len(example.prompt)
        places += path[start - 1 : start - 1 + example.scored]  # the token before predicts a token
        targets += example.completion[: example.scored]
    written, expected = torch.tensor([places, targets], device=inputs.last.device)
    logits = model(input_ids=inputs.input_ids, written=written, **inputs.extra).float()
    losses = F.cross_entropy(logits, expected, reduction="none")
    summed = torch.stack([each.sum() for each in losses.split(counts)])
    return summed, (logits.argmax(1) == expected).split(counts)


def action_losses(model: Any, batch: PromptBatch, targets: Tensor, label_smoothing: float) -> Tensor:
    """Return the (N,) cross-entropies, in nats, of targets (N,) under the distribution that RL samples from.

    Targets are positions in the row's menu. ``label_smoothing`` of the target probability is spread evenly over that
    menu.
    """
    return action_results(model, batch, targets, label_smoothing)[0]


def action_results(model: Any, batch: PromptBatch, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Return ``action_losses`` and, (N,), whether the target is the most probable action of its menu."""
    distribution, _ = action_distribution(model, batch)
    logprobs: Tensor = distribution.logits  # normalised
    beyond = torch.arange(logprobs.size(1), device=logprobs.device) >= batch.menu_size[:, None]
    chosen = logprobs.gather(1, targets[:, None]).squeeze(1)
    spread = -logprobs.masked_fill(beyond, 0.0).sum(1) / batch.menu_size
    losses = (1.0 - label_smoothing) * -chosen + label_smoothing * spread
    return losses, logprobs.argmax(1) == targets
