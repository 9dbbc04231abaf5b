"""The digest of a kernel: names, comments and docstrings do not count, anything else does."""

import pytest

from gnomon.dsl import catalogue
from gnomon.lowering.pipelines import lower
from gnomon.runtime.kernel_digest import digest_of, digest_of_source

KERNEL = '''
import triton
import triton.language as tl


@triton.jit
def half(x):
    """A helper."""
    return x * 0.5


@triton.jit(do_not_specialize=["T"])
def fox_fwd(q, o, T, BM: tl.constexpr):
    """FoX."""
    # the offsets of a tile
    o_m = tl.arange(0, BM)
    for i_c in range(0, T, BM):
        b_q = tl.load(q + o_m + i_c, mask=o_m < T)
        tl.store(o + o_m + i_c, half(b_q))
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fox_fwd", "rope_fwd"),
        ("FoX.", "Another formula."),
        ("# the offsets of a tile", "# something else"),
        ("b_q", "b_log_f_sum_k"),
        ("half", "halved"),
        ("T", "length"),
    ],
)
def test_names_and_remarks_do_not_count(old: str, new: str) -> None:
    assert digest_of_source(KERNEL.replace(old, new)) == digest_of_source(KERNEL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * 0.5", "x * 0.25"),
        ("x * 0.5", "x + 0.5"),
        ("mask=o_m < T", "mask=o_m <= T"),
        ("tl.load", "tl.exp2"),
        ("range(0, T, BM)", "range(BM, T, BM)"),
        ('do_not_specialize=["T"]', 'noinline=True, do_not_specialize=["T"]'),
        ("        tl.store", "    tl.store"),
        ("q + o_m + i_c", "o + o_m + i_c"),
    ],
    ids=["a helper", "an operation", "a mask", "a function", "a bound", "an option", "a block",
         "an argument"],
)  # fmt: skip
def test_whatever_a_kernel_does_is_in_its_digest(old: str, new: str) -> None:
    """A constant of a helper that it calls, and so a variable of a closure, too."""
    changed = KERNEL.replace(old, new)
    assert changed != KERNEL
    assert digest_of_source(changed) != digest_of_source(KERNEL)


def test_it_does_not_depend_on_the_version_of_python() -> None:
    """The H200's tables are made by another Python than the one that reads them."""
    assert digest_of_source(KERNEL) == "39487bdb0fa58a68"


def test_rows_of_one_kernel_share_it() -> None:
    def digest(name: str, role: str = "fwd") -> str:
        return digest_of(getattr(lower(catalogue.find(name).node).kernels[0], role))

    assert digest("rope") == digest("nope") == digest("yarn")
    assert digest("alibi", "bwd_columns") == digest("alibi_learned", "bwd_columns")
    assert len({digest(name) for name in ("nope", "fox", "alibi", "tapa", "t5")}) == 5
    assert digest("fox") != digest("fox", "bwd_rows")


def test_a_parameter_of_the_formula_that_is_a_number_of_the_kernel_counts() -> None:
    """Closure variables: the window stands in the text."""
    window = catalogue.find("sliding_window")
    wide, narrow = (lower(window.bind(size=n)).kernels[0].fwd for n in (4096, 128))
    assert digest_of(wide) != digest_of(narrow)
