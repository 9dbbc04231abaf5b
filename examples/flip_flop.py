"""The flip-flop language (arXiv 2306.00946): its texts and what counts as an error.

A text is a row of pairs, an instruction and a bit: `w` writes the bit to the one cell of memory,
`r` must be followed by the bit that was written last, `i` means nothing, whatever bit follows it.
The first instruction is `w`. The test sets differ from the training set in how much lies between:

    train   i with probability .80
    sparse  i with probability .98: the last write is far away, behind bits that mean nothing
    dense   i with probability .10: a write is always near, and so are many others

The rest is shared equally by `w` and `r`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gnomon.dsl.errors import InputError

WRITE, READ, IGNORE = 2, 3, 4  # 0 and 1 are the bits
VOCABULARY = 5
SETS = {"train": 0.8, "sparse": 0.98, "dense": 0.1}
"""The probability of `i` in each set."""


def sample(count: int, length: int, ignore: float, random: torch.Generator) -> Tensor:
    """Random texts, [count, length], on the device of the generator.

    `length` counts tokens: half as many pairs. Raises InputError for an odd length or a probability
    outside of 0 to 1.
    """
    if length < 2 or length % 2:
        raise InputError("length", "an even number of tokens, 2 or more", str(length))
    if not 0 <= ignore <= 1:
        raise InputError("ignore", "a probability from 0 to 1", str(ignore))
    shape, device = (count, length // 2), random.device
    drawn = torch.rand(shape, generator=random, device=device)
    instructions = torch.where(drawn < (1 - ignore) / 2, WRITE, READ)
    instructions = instructions.masked_fill(drawn >= 1 - ignore, IGNORE)
    instructions[:, 0] = WRITE
    bits = torch.randint(2, shape, generator=random, device=device)
    pair = torch.arange(shape[1], device=device)
    last_write = pair.where(instructions == WRITE, 0).cummax(dim=1).values
    bits = torch.where(instructions == READ, bits.gather(1, last_write), bits)
    return torch.stack([instructions, bits], dim=2).flatten(1)


def read_places(texts: Tensor) -> Tensor:
    """Where the next token is a bit that was read, [count, length - 1]."""
    return texts[:, :-1] == READ


def wrong_bits(logits: Tensor, texts: Tensor) -> Tensor:
    """How many read bits are not the likeliest token, from [count, length, vocabulary]; a scalar.

    The likeliest of all tokens, so that an instruction in place of a bit is an error too.
    """
    wrong = logits[:, :-1].argmax(-1) != texts[:, 1:]
    return (wrong & read_places(texts)).sum()


@dataclass(frozen=True)
class Score:
    """Read bits of one set, and how many a model got wrong."""

    wrong: int
    reads: int

    @property
    def error(self) -> float:
        """The share of wrong bits."""
        return self.wrong / self.reads


def score(
    model: Callable[[Tensor], Tensor],
    name: str,
    reads: int,
    *,
    length: int,
    count: int,
    device: torch.device,
) -> Score:
    """The errors of a model on at least so many read bits of a set, the same texts for each model.

    `count` texts go through the model at once. Raises InputError for an unknown set.
    """
    if name not in SETS:
        raise InputError("name", f"one of {', '.join(SETS)}", repr(name))
    # far from the seeds of training: the texts of a test are nobody's training texts
    random = torch.Generator(device).manual_seed(1_000_000 + list(SETS).index(name))
    wrong = seen = 0
    while seen < reads:
        texts = sample(count, length, SETS[name], random)
        wrong += int(wrong_bits(model(texts), texts))
        seen += int(read_places(texts).sum())
    return Score(wrong, seen)
