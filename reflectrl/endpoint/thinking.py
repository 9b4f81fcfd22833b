"""Thinking in a reply: the marks that models put around it, and the answer that is left without it.

A server that knows its model sends thinking in a field of its own. Others leave it in the text of the reply, from where
it would get into training rows and prompts.
"""

from __future__ import annotations

import re

_NAME = r"(?:\w+[:|_])?(?:think|thinking|thought|thoughts|reasoning|scratchpad)"
_END = re.compile(
    rf"(?i:</{_NAME}>)"  # most models; Gemini: thought; Seed-OSS: seed:think; MiniMax M3: mm:think
    r"|\[/THINK\]"  # Magistral and Ministral
    r"|◁/think▷"  # Kimi-VL
    r"|<\|(?:END_THINKING|end_of_thought|inner_suffix)\|>"  # Command A, OpenThinker, Apertus
    r"|<channel\|>"  # Gemma 4
    r"|<\|channel\|>\s*final\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"  # gpt-oss
    r"|\A\s*(?:analysis|commentary)(?=[A-Z]).*assistant\s*final"  # gpt-oss, from a server that leaves out its marks
    r"|\A\s*Here(?:'s| is) my thought process:.*?Here(?:'s| is) my response:",  # Granite 3.2
    re.DOTALL,
)
"""What ends the thinking; the beginning is often a part of the prompt, and so absent."""
_AROUND = re.compile(
    r"<\|(?:START_RESPONSE|END_RESPONSE|begin_of_solution|end_of_solution|begin_of_box|end_of_box)\|>"
    r"|\A\s*<(?:answer|response)>|</(?:answer|response)>\s*\Z"
)
"""Marks around the answer of Command A, OpenThinker, GLM-4.5V, Hunyuan and ERNIE 4.5."""
_END_OF_TURN = re.compile(
    r"(?:\s*(?:</s>|<eos>|<end_of_turn>|<turn\|>|<｜end▁of▁sentence｜>"
    r"|<\|(?:im_end|end|return|endoftext|end_of_text|eot_id|eom_id|END_OF_TURN_TOKEN|user|observation)\|>))+\s*\Z"
)
"""What ends a reply where a server does not leave it out."""
_MARK = re.compile(
    rf"(?i:</?{_NAME}>)|\[/?THINK\]|◁/?think▷"
    r"|<\|[\w:/.▁ -]{1,40}\|?>|<[\w:/.▁ -]{1,40}\|>|<｜[^｜<>]{1,40}｜>"
    r"|\A\s*(?:analysis|commentary)(?=[A-Z])|\A\s*Here(?:'s| is) my thought process:"
)
"""What looks like a mark of thinking or of a chat's format."""


def without_thinking(text: str) -> str:
    """Return the answer in a reply, without finished thinking and the known marks around it."""
    end = max((found.end() for found in _END.finditer(text)), default=0)
    return _AROUND.sub("", _END_OF_TURN.sub("", text[end:]))


def mark_in(answer: str) -> str | None:
    """Return the first thing in an answer that looks like a mark of thinking or of a chat's format, if there is one."""
    found = _MARK.search(answer)
    return found[0].strip() if found else None
