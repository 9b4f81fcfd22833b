"""Pretrain the blocks of ``builtin/nano`` on made-up texts: ``python benchmarks/procedural.py 2x64x2 OUT.safetensors``.

A small model with random weights is trained for minutes before it attends to what a prompt says, such as which dish
the child ordered, if it ever does. Texts that a program generates, with copies and lookups but no natural language,
teach it beforehand ("Procedural Pretraining", arXiv 2601.21725). The embeddings of tokens are drawn anew every
``RESET`` steps ("Pretraining with Active Forgetting", arXiv 2307.01163), so that the blocks suit any vocabulary.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import GPT2LMHeadModel

from reflectrl.lm.builtin import gpt2_config

VOCABULARY, POSITIONS, RESET = 256, 1024, 1000
YES, NO, NUMBERS = 230, 231, range(232, 256)
"""Tokens with a fixed meaning, and tokens that are ordered; what other tokens mean is said in each text alone."""
TOKENS, LENGTHS, SHORT = 3072, (32, 64, 96, 128, 192, 384), 32
"""Tokens of a batch, lengths of its texts, and their length at first."""
RATE, GROWTH, GOOD = 3e-3, 0.01, 0.6
"""Learning rate; how much harder the texts get every ten steps, and the accuracy at which they do."""


class Text:
    """Tokens of a made-up text, and which of them the model has to predict."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tokens: list[int] = []
        self.asked: list[bool] = []
        names = rng.sample(range(YES), YES)
        self.words = names[: rng.choice([12, 24, 48, 96])]
        self.glue, self.labels = names[96:104], names[104:]

    def say(self, tokens: Iterable[int], *, asked: bool = False) -> None:
        """Append tokens, which the model has to predict if they are ``asked``."""
        new = [*tokens]
        self.tokens += new
        self.asked += [asked] * len(new)

    def some(self, low: int, high: int) -> list[int]:
        """Return ``low`` to ``high`` random words."""
        return self.rng.choices(self.words, k=self.rng.randint(low, high))


def repeated(text: Text, room: int, *, easy: bool) -> None:
    """Words, and the same words again."""
    words = text.some(4, 8 if easy else min(40, room // 2 - 8))
    text.say(text.some(0, 6))
    text.say([text.glue[0], *words, text.glue[1], *text.some(0, 3), text.glue[0]])
    text.say(words, asked=True)


def compared(text: Text, room: int, *, easy: bool) -> None:  # noqa: ARG001 - all kinds are called alike
    """Two numbers and the larger one, several times."""
    for _ in range(text.rng.randint(1, 4)):
        pair = text.rng.sample(NUMBERS, 2)
        text.say([*text.some(0, 3), text.glue[0], pair[0], text.glue[1], pair[1], text.glue[2]])
        text.say([max(pair)], asked=True)


def chosen(text: Text, room: int, *, easy: bool) -> None:
    """A list with everything twice, with ``YES`` and with ``NO``, and the label of one with ``YES``."""
    rng, glue = text.rng, text.glue
    wares = [*dict.fromkeys(text.some(2, 3 if easy else max(3, min(12, room // 8 - 1))))]
    lines = [*zip(text.labels, wares * 2, [YES] * len(wares) + [NO] * len(wares), strict=False)]
    rng.shuffle(lines)
    wanted = rng.choice(wares)
    text.say([*text.some(0, 3), glue[0], wanted, glue[1]])
    between, after = glue[2 : rng.choice([2, 3])], glue[3 : rng.choice([3, 4])]
    for label, ware, free in lines:
        text.say([label, *between, ware, free, *after])
    text.say([glue[4]])
    text.say([label for label, ware, free in lines if (ware, free) == (wanted, YES)], asked=True)


def looked_up(text: Text, room: int, *, easy: bool) -> None:
    """Keys and their values, and the values of some keys once more; or a menu, and the label of one of its lines."""
    rng, glue = text.rng, text.glue
    kind = rng.choice(["values", "menu"] if easy else ["values", "values", "menu", "menu", "part", "hops", "changed"])
    menu, size = kind in ("menu", "part"), 1 if easy else rng.choice([1, 1, 2, 3])
    length = 1 if menu else rng.choice([1, 1, 2])
    count = rng.randint(2, max(2, min(4 if easy else 24, (room - 16) // (size + length + 3))))
    keys = [*dict.fromkeys(tuple(rng.choices(text.words, k=size)) for _ in range(count))]
    names = rng.sample(text.labels, len(keys))
    values = [(name,) if menu else tuple(rng.choices(text.words, k=length)) for name in names]
    before, between, after = glue[: rng.choice([0, 1, 2])], glue[2 : rng.choice([2, 3])], glue[4 : rng.choice([4, 5])]
    facts = [*zip(keys, values, strict=True)]
    if kind == "hops":  # a key leads to a second key, and that to the value
        ends = [(key, value) for key, value in facts[len(facts) // 2 :]]
        firsts = [(key, ends[at][0]) for at, (key, _) in enumerate(facts[: len(facts) // 2])]
        facts = [*firsts, *ends]
        asked = [(key, ends[at][1]) for at, (key, _) in enumerate(firsts)]
        rng.shuffle(facts)
    elif kind == "changed":  # the last value counts
        facts += [(key, tuple(text.some(length, length))) for key in rng.choices(keys, k=len(keys) // 2)]
        asked = [*dict(facts).items()]
    else:
        asked = facts
    if menu:
        key, value = rng.choice(asked)
        if kind == "part":
            own = [word for word in key if sum(word in other for other in keys) == 1]
            key = (rng.choice(own),) if own else key
        question, first = [glue[5], *key], rng.random() < 0.7
        text.say(text.some(0, 2 if easy else 8))
        text.say(question if first else [])
        for words, label in facts:
            text.say([*before, *label, *between, *words, *after])
        text.say([*([] if first else question), glue[6]])
        text.say(value, asked=True)
        return
    for words, value in facts:
        text.say([*before, *words, *between, *value, *after])
        text.say(text.some(1, 5) if rng.random() < 0.2 else [])
    for key, value in rng.choices(asked, k=rng.randint(1, 6)) if asked else ():
        text.say([*([glue[5]] if rng.random() < 0.8 else []), *key, *between])
        text.say(value, asked=True)


KINDS = (repeated, looked_up, compared, chosen)


def made_up(rng: random.Random, length: int, level: float) -> Text:
    """Return a text of at most ``length`` tokens; the higher the ``level``, the fewer are easy."""
    while True:
        text, easy = Text(rng), rng.random() > level
        rng.choices(KINDS, [4, 4, 1, 1] if easy else [1, 7, 1, 2])[0](text, length, easy=easy)
        if any(text.asked) and len(text.tokens) <= length:
            return text


def batch(rng: random.Random, length: int, level: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (B, L) tokens, and whether each is to be predicted."""
    texts = [made_up(rng, length, level) for _ in range(max(8, TOKENS // length))]
    tokens = [text.tokens + [0] * (length - len(text.tokens)) for text in texts]
    asked = [text.asked + [False] * (length - len(text.asked)) for text in texts]
    return torch.tensor(tokens), torch.tensor(asked)


def pretrained(layers: int, width: int, heads: int, minutes: float) -> GPT2LMHeadModel:
    """Return a model whose blocks were trained for ``minutes`` of processor time; the number of steps varies."""
    torch.manual_seed(0)
    rng, level, recent, step = random.Random(0), 0.0, 0.0, 0
    config = gpt2_config(layers=layers, width=width, heads=heads, vocabulary=VOCABULARY, positions=POSITIONS)
    model, spread = GPT2LMHeadModel(config), config.initializer_range
    embeddings, places = model.transformer.wte.weight, model.transformer.wpe.weight
    with torch.no_grad():  # sine waves, in which the position before is one rotation everywhere; trained from there
        turns = torch.arange(POSITIONS)[:, None] * torch.exp(-math.log(1e4) * torch.arange(0, width, 2) / width)
        places.copy_(spread * math.sqrt(2) * torch.stack([turns.sin(), turns.cos()], dim=2).flatten(1))
    blocks = [weights for weights in model.parameters() if weights is not embeddings]
    optimizer = torch.optim.AdamW(blocks, lr=RATE, weight_decay=0.01, betas=(0.9, 0.98))
    of_tokens = torch.optim.AdamW([embeddings], lr=RATE, weight_decay=0.0)
    began = time.process_time()
    while (done := (time.process_time() - began) / 60 / minutes) < 1:
        if step % RESET == 0:
            with torch.no_grad():
                embeddings.normal_(0, spread)
            of_tokens.state.clear()
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 200, max(2 - 2 * done, 0.02))
        for group in of_tokens.param_groups:
            group["lr"] = RATE * min(1, (step % RESET + 1) / 50)
        length = rng.choice(LENGTHS) if rng.random() < level else SHORT
        tokens, asked = batch(rng, length, level)
        first = rng.randint(0, POSITIONS - length) if rng.random() < 0.5 * level else 0
        states = model.transformer(tokens, position_ids=first + torch.arange(length)[None]).last_hidden_state
        targets = tokens[:, 1:][asked[:, 1:]]
        logits = states[:, :-1][asked[:, 1:]] @ embeddings.T
        loss = F.cross_entropy(logits, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(blocks, 1.0)
        for each in (optimizer, of_tokens):
            each.step()
        model.zero_grad()
        step += 1
        recent = 0.98 * recent + 0.02 * (logits.argmax(1) == targets).float().mean().item()
        if recent > GOOD and step % 10 == 0:
            level = min(1.0, level + GROWTH)
        if step % 500 == 0:
            print(f"step {step}  {done:.0%}  level {level:.2f}  accuracy {recent:.2f}", flush=True)
    return model


def main() -> None:
    """Read the command line, and write the blocks in half precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", help="layers x width x heads, e.g. 2x64x2")
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=12.0, help="processor minutes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    layers, width, heads = map(int, given.shape.split("x"))
    model = pretrained(layers, width, heads, given.minutes)
    weights = {name: weight.half().contiguous() for name, weight in model.transformer.state_dict().items()}
    del weights["wte.weight"]
    save_file(weights, given.out)


if __name__ == "__main__":
    main()
