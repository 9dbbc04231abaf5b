"""The flip-flop language: texts beside a slow interpreter, probabilities, and what is an error."""

import math

import pytest
import torch
from flip_flop import SETS, VOCABULARY, Score, read_places, sample, score, wrong_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

from gnomon.dsl.errors import InputError

CPU = torch.device("cpu")


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def interpret(text: list[int]) -> tuple[list[bool], list[int]]:
    """Token by token: at which places a read bit comes next, and what memory holds there."""
    memory, reads, held = None, [], []
    assert len(text) % 2 == 0
    for at in range(0, len(text), 2):
        instruction, bit = "01wri"[text[at]], text[at + 1]
        assert instruction in "wri"
        assert bit in (0, 1)
        if instruction == "w":
            memory = bit
        assert memory is not None, "something is read before anything was written"
        if instruction == "r":
            assert bit == memory
        reads += [instruction == "r", False]
        held += [memory, memory]
    return reads[:-1], held[:-1]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    pairs=st.integers(1, 40),
    ignore=st.sampled_from([0.0, 0.1, 0.5, 0.8, 0.98, 1.0]),
)
def test_texts_obey_the_language(seed: int, pairs: int, ignore: float) -> None:
    texts = sample(8, 2 * pairs, ignore, random(seed))
    assert texts.shape == (8, 2 * pairs)
    for text, places in zip(texts.tolist(), read_places(texts).tolist(), strict=True):
        assert interpret(text)[0] == places


@pytest.mark.parametrize("name", SETS)
def test_instructions_and_bits_have_their_probabilities(name: str) -> None:
    texts, ignore = sample(2000, 202, SETS[name], random(1)), SETS[name]
    instructions, bits = texts[:, 2::2], texts[:, 3::2]
    expected = {2: (1 - ignore) / 2, 3: (1 - ignore) / 2, 4: ignore}
    for token, share in expected.items():
        found = float((instructions == token).double().mean())
        sigma = math.sqrt(share * (1 - share) / instructions.numel())
        assert abs(found - share) < 5 * sigma, (token, found, share)
    for token in (2, 4):  # the bits that nobody can know are fair coins
        own = bits[instructions == token].double()
        assert abs(float(own.mean()) - 0.5) < 2.5 / math.sqrt(own.numel())


def test_texts_are_those_of_the_seed() -> None:
    assert torch.equal(sample(5, 64, 0.8, random(3)), sample(5, 64, 0.8, random(3)))
    assert not torch.equal(sample(5, 64, 0.8, random(3)), sample(5, 64, 0.8, random(4)))


@pytest.mark.parametrize(
    ("length", "ignore", "argument"), [(7, 0.8, "length"), (0, 0.8, "length"), (8, 1.5, "ignore")]
)
def test_what_is_no_language_is_refused(length: int, ignore: float, argument: str) -> None:
    with pytest.raises(InputError) as caught:
        sample(2, length, ignore, random(0))
    assert caught.value.argument == argument


def test_only_read_bits_count() -> None:
    #                       w  1  r  1  i  0  r  1
    texts = torch.tensor([[2, 1, 3, 1, 4, 0, 3, 1]])
    right = one_hot(texts.roll(-1, 1), VOCABULARY).float()
    assert int(wrong_bits(right, texts)) == 0

    def said(place: int, token: int) -> int:
        """Errors where the model takes `token` for likeliest after one place."""
        logits = right.clone()
        logits[0, place] = one_hot(torch.tensor(token), VOCABULARY)
        return int(wrong_bits(logits, texts))

    assert [said(place, 0) for place in range(8)] == [0, 0, 1, 0, 0, 0, 1, 0]
    assert said(6, 2) == 1, "an instruction is no bit"
    assert said(7, 0) == 0, "after the last token nothing is predicted"


def knows_all(texts: Tensor) -> Tensor:
    held = torch.tensor([interpret(text)[1] for text in texts.tolist()])
    return one_hot(torch.nn.functional.pad(held, (0, 1)), VOCABULARY).float()


def says_zero(texts: Tensor) -> Tensor:
    return one_hot(torch.zeros_like(texts), VOCABULARY).float()


@pytest.mark.parametrize("name", SETS)
def test_a_score_is_the_share_of_wrong_bits(name: str) -> None:
    perfect = score(knows_all, name, 300, length=32, count=20, device=CPU)
    assert perfect.wrong == 0
    assert perfect.reads >= 300
    half = score(says_zero, name, 3000, length=32, count=50, device=CPU)
    # bits of one text hang together: at most 15 reads share one coin
    assert abs(half.error - 0.5) < 2.5 * math.sqrt(15 / half.reads)
    assert half == score(says_zero, name, 3000, length=32, count=50, device=CPU)
    assert Score(3, 12).error == 0.25


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(InputError, match="train, sparse, dense"):
        score(says_zero, "thick", 1, length=8, count=1, device=CPU)
