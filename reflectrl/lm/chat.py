"""Chat templates: what a chat model reads around a prompt, which is the only text of the user's turn.

The prompt is one turn whatever the template can do, so templates without a system role, or that drop its text, read the
same. The answer, a label or a text, begins the assistant's turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from reflectrl.core import InvalidInput
from reflectrl.core.foreign import message_of
from reflectrl.core.text import shortened

_MARK = "reflectrl-text"
"""Text of a user in place of a prompt; it has no space at its ends, which many templates cut off."""
_ANSWER = "reflectrl-answer"
_THINKING, _NOT_THINKING = (f"{{%- set enable_thinking = {value} -%}}" for value in ("true", "false"))
"""Beginnings of templates for which thinking was decided: their own argument, written into them."""
_OPEN = "<think>"
_CLOSING = "{% if add_generation_prompt %}{{ '\\n</think>\\n\\n' }}{% endif %}"
"""End of the templates that would always make a model think: the thought ends before it begins."""
_DATE = {
    **{"%Y": "2026", "%y": "26", "%m": "01", "%-m": "1", "%d": "01", "%-d": "1", "%e": " 1", "%j": "001"},
    **{"%B": "January", "%b": "Jan", "%A": "Thursday", "%a": "Thu", "%F": "2026-01-01", "%D": "01/01/26"},
    **{"%H": "12", "%I": "12", "%M": "00", "%S": "00", "%p": "PM", "%T": "12:00:00", "%Z": "UTC", "%z": "+0000"},
}
"""The moment at which all prompts are read: they must not differ from day to day."""
_FIXED_DATE = "{%- macro strftime_now(form) -%}{{ form SHOWN }}{%- endmacro -%}".replace(
    "SHOWN", " ".join(f"| replace('{code}', '{shown}')" for code, shown in _DATE.items())
)
"""Beginning of the templates that show the date."""


_TURN = "chat_turn"
"""Name in a tokenizer's configuration of what its template puts around a prompt."""


@dataclass(frozen=True)
class Turn:
    """Texts around a prompt in the user's turn, special tokens included."""

    before: str
    after: str
    """End of the turn, and the beginning of the assistant's."""


def turn_of(tokenizer: PreTrainedTokenizerBase) -> Turn | None:
    """Return what the tokenizer's chat template puts around a prompt; ``None`` without a template.

    Raises:
        InvalidInput: the template cannot be used, or does not show a text as it is given.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    shown = _rendered(tokenizer, [_said("user", _MARK)], add_generation_prompt=True)
    before, mark, after = shown.partition(_MARK)
    if not mark:  # templates of image-text models may read parts only
        parts = [{"type": "text", "text": _MARK}]
        before, mark, after = _rendered(tokenizer, [_said("user", parts)], add_generation_prompt=True).partition(_MARK)
    if not mark or _MARK in after:
        raise _unusable(tokenizer, "does not show the user's text once, as it is given")
    return Turn(before, after)


def saved_turn(tokenizer: PreTrainedTokenizerBase) -> Turn | None:
    """Return what ``turn_of`` does, as ``use_template`` noted it: a template is a program, which need not end.

    Raises:
        InvalidInput: the tokenizer has a template but no such note.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    match tokenizer.init_kwargs.get(_TURN):
        case [str(before), str(after)]:
            return Turn(before, after)
    raise _unusable(tokenizer, "is not run for a report, and what it shows around a prompt is not noted")


def use_template(tokenizer: PreTrainedTokenizerBase, chat: str) -> None:
    """Set up the template of ``tokenizer`` as ``model.chat`` says, and the token that ends a text accordingly.

    All of it is saved with a player, with a note of what the template shows, and ``auto`` leaves what was decided for
    that: one that was trained without a template has none, and one that was trained to think thinks.

    Raises:
        InvalidInput: as ``turn_of`` does, or thinking without a template.
    """
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):  # several by name, of which transformers takes this one
        template = template.get("default")
    if chat == "thinking" and not template:
        raise InvalidInput(
            f"model.chat=thinking was given for {tokenizer.name_or_path or 'a model'!r}, which has no chat template to "
            "think in; leave it out, or name a chat model."
        )
    if chat == "none" or not template:
        tokenizer.chat_template = None
        tokenizer.init_kwargs.pop(_TURN, None)
        return
    if chat == "thinking" or not template.startswith((_THINKING, _NOT_THINKING)):
        plain = template.removesuffix(_CLOSING)
        for added in (_THINKING, _NOT_THINKING, _FIXED_DATE):
            plain = plain.removeprefix(added)
        dated = f"{_FIXED_DATE}{plain}" if "strftime_now" in plain else plain
        if chat == "thinking":
            template = _THINKING + dated
        else:
            template = _NOT_THINKING + dated if "enable_thinking" in plain else dated
    tokenizer.chat_template = template
    turn = turn_of(tokenizer)
    if not template.startswith(_THINKING) and turn is not None and turn.after.rstrip().endswith(_OPEN):
        tokenizer.chat_template = _NOT_THINKING + template.removeprefix(_NOT_THINKING) + _CLOSING
        turn = turn_of(tokenizer)
    if turn is not None:
        tokenizer.init_kwargs[_TURN] = [turn.before, turn.after]
    if (end := _end(tokenizer)) is not None:
        tokenizer.eos_token = end


def _end(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the token with which the template ends the assistant's turn, if it is a special one."""
    turns = [_said("user", _MARK), _said("assistant", _ANSWER)]
    try:
        _, answer, after = _rendered(tokenizer, turns).rpartition(_ANSWER)
    except InvalidInput:
        return None
    if not answer:  # it reads parts only
        return None
    ids: list[int] = tokenizer(after, add_special_tokens=False)["input_ids"]
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    found = next((number for number in ids if number in special), None)
    return None if found is None else str(tokenizer.convert_ids_to_tokens(found))


def _said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def _rendered(tokenizer: PreTrainedTokenizerBase, turns: list[dict[str, Any]], **settings: Any) -> str:
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, **settings))
    except Exception as error:  # noqa: BLE001 - templates raise errors of any kind
        raise _unusable(tokenizer, f"failed ({shortened(message_of(error), 200)})") from error


def _unusable(tokenizer: PreTrainedTokenizerBase, why: str) -> InvalidInput:
    return InvalidInput(
        f"the chat template of {tokenizer.name_or_path or 'the model'!r} {why}; set model.chat=none to read prompts "
        "without it, or repair the template."
    )
