"""Printed Triton kernels: their text, and what they compute in the interpreter."""

import ast
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import tile_kernels
import torch
from conftest import Golden
from support import assert_close
from torch import Tensor

from gnomon.lowering import tile
from gnomon.lowering.emit.triton import print_module, printed
from gnomon.runtime.interpreter import Call, launch_arguments, run_kernels

ROOT = Path(__file__).parents[3]
LOG2E = 1 / math.log(2)
BM, BN = 32, 16

HAND_BUILT = [
    tile_kernels.forward(gate=False),
    tile_kernels.forward(gate=True),
    tile_kernels.backward_columns(),
    tile_kernels.gather(),
    tile_kernels.scatter(),
    tile_kernels.channel_sum(),
]
by_name = {kernel.name: kernel for kernel in HAND_BUILT}
SOURCE = print_module(HAND_BUILT, "Kernels built by hand.")
DESCRIBED = print_module(HAND_BUILT, "Kernels built by hand.", descriptors=True)


def launch(
    kernel: tile.Kernel, programs: int, tensors: Mapping[str, Tensor], **numbers: int | float
) -> dict[str, Tensor]:
    """The tensors after one launch in the interpreter."""
    source = SOURCE if kernel.name in by_name else print_module([kernel], "One kernel.")
    given = launch_arguments(printed(kernel).arguments, tensors, numbers)
    (after,) = run_kernels(source, [Call(kernel.name, programs, given)])
    return after


def ruff(source: str, *command: str) -> str:
    """What ruff finds in a module, as a file of kernels_generated."""
    where = ["--stdin-filename", "kernels_generated/by_hand.py", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, *where],
        input=source,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    return done.stdout + (done.stderr if done.returncode > 1 else "")


# ---- the text


def test_forward(golden: Golden) -> None:
    assert print_module([by_name["fox_fwd"]], "FoX, forward.") == golden.code


def test_backward_of_columns(golden: Golden) -> None:
    assert print_module([by_name["fox_bwd_columns"]], "FoX, keys.") == golden.code


def test_backward_with_descriptors(golden: Golden) -> None:
    source = print_module([by_name["fox_bwd_columns"]], "FoX, keys.", descriptors=True)
    assert source == golden.code


def test_tables(golden: Golden) -> None:
    kernels = [by_name["gather"], by_name["scatter"]]
    assert print_module(kernels, "Entries of tables.") == golden.code


def test_every_helper(golden: Golden) -> None:
    functions = [*UNARY, *BINARY]
    kernels = [tile_kernels.pointwise(fn, 1 if fn in UNARY else 2) for fn in functions]
    kernels.append(tile_kernels.pointwise("**", 1, after=(2,)))
    kernels += [tile_kernels.pointwise(fn, 2, dtype="i32") for fn in ("//", "%")]
    assert print_module(kernels, "Functions.") == golden.code


@pytest.mark.parametrize("source", [SOURCE, DESCRIBED], ids=["pointers", "descriptors"])
def test_a_module_is_formatted_as_ruff_would(source: str) -> None:
    assert ruff(source, "format", "--diff") == ""


@pytest.mark.parametrize("source", [SOURCE, DESCRIBED], ids=["pointers", "descriptors"])
def test_a_module_has_nothing_for_ruff_to_find(source: str) -> None:
    assert json.loads(ruff(source, "check", "--output-format", "json")) == []


def test_a_module_imports_triton_and_nothing_else() -> None:
    nodes = [n for n in ast.walk(ast.parse(SOURCE)) if isinstance(n, (ast.Import, ast.ImportFrom))]
    assert [ast.unparse(node) for node in nodes] == [
        "import triton",
        "import triton.language as tl",
    ]


def test_printing_twice_gives_the_same_text() -> None:
    assert print_module(HAND_BUILT, "Kernels built by hand.") == SOURCE


def test_only_the_helpers_that_are_called_are_printed() -> None:
    assert "def " not in print_module([by_name["plain_fwd"]], "x").replace("def plain_fwd", "")
    assert "def floor_div(" in print_module([by_name["fox_bwd_columns"]], "x")


def test_every_scalar_offset_has_64_bits() -> None:
    """A stride is multiplied with a name made 64 bits wide, a cast, or an offset in a tile."""
    in_tile = r"tl\.arange\(0, \w+\)(\[[^]]*\])?|o_(d0|v|t)(\[[^]]*\])?"
    for kernel in HAND_BUILT:
        text = printed(kernel).source
        wide = set(re.findall(r"(\w+) = .*\.to\(tl\.int64\)$", text, re.MULTILINE))
        if "i_kv = i_h // G" in text:
            wide.add("i_kv")
        if "for i_h in range(i_kv * G" in text:
            wide.add("i_h")
        factors = re.findall(r"(?:^|[+=] )([^+=\n]+?) \* s_\w+", text, re.MULTILINE)
        assert factors
        for factor in factors:
            allowed = rf"tl\.cast\(.*, tl\.int64\)|{in_tile}|{'|'.join(sorted(wide)) or '-'}"
            assert re.fullmatch(allowed, factor.strip()), f"{kernel.name}: {factor}"


def test_a_new_length_compiles_nothing() -> None:
    """Lengths, and strides that may be multiples of 16 for one length alone, are not looked at."""
    varying = {a.name for a in printed(by_name["fox_fwd"]).arguments if a.varies}
    assert varying == {"T_q", "T_k", "NM", "s_lse_b", "s_lse_h"}
    head = printed(by_name["fox_fwd"]).source.partition("\n")[0]
    assert set(re.findall(r'"(\w+)"', head)) == varying


def test_block_pointers_and_atomics_are_never_used() -> None:
    for word in ("make_block_ptr", "advance", "atomic", "USE_", "if tl.constexpr"):
        assert word not in SOURCE


# ---- attention


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def in_poison(x: Tensor, *axes: int) -> Tensor:
    """The same values with the axes permuted in memory, and NaN behind each of them."""
    y = x.permute(axes)
    around = torch.full([n + 3 for n in y.shape], torch.nan, dtype=x.dtype)
    inner = around[tuple(slice(n) for n in y.shape)]
    inner.copy_(y)
    back = [axes.index(axis) for axis in range(x.ndim)]
    return inner.permute(back)


def problem(
    heads: tuple[int, int], times: tuple[int, int], dims: tuple[int, int], dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, int | float]]:
    """Tensors of a batch of two, and the numbers of the launch."""
    (h, kv), (t_q, t_k), (d, d_v) = heads, times, dims
    tensors = {
        "q": in_poison(normal(2, t_q, h, d, dtype=dtype, seed=1), 0, 2, 1, 3),
        "k": in_poison(normal(2, t_k, kv, d, dtype=dtype, seed=2), 0, 2, 3, 1),
        "v": in_poison(normal(2, t_k, kv, d_v, dtype=dtype, seed=3), 0, 1, 2, 3),
        "c": in_poison(normal(2, t_k, h, seed=4).cumsum(1), 0, 2, 1),
    }
    padded = {"BD0": 1 << (d - 1).bit_length(), "BV": 1 << (d_v - 1).bit_length()}
    counts = {"NM": -(-t_q // BM), "NN": -(-t_k // BN), "H": h, "G": h // kv}
    numbers = {"T_q": t_q, "T_k": t_k, "D0": d, "DV": d_v, "BM": BM, "BN": BN, **padded, **counts}
    return tensors, {**numbers, "scale": LOG2E / math.sqrt(d)}


def attention(tensors: Mapping[str, Tensor], *, gate: bool) -> tuple[Tensor, Tensor]:
    """softmax(q . k / sqrt(d) - c ln 2) v and its log-sum-exp, causal to the bottom right."""
    q, k, v, c = (tensors[name] for name in "qkvc")
    (t_q, h, d), (t_k, kv) = q.shape[1:], k.shape[1:3]
    k, v = (x.repeat_interleave(h // kv, 2) for x in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(d)
    if gate:
        s = s - c.permute(0, 2, 1)[:, :, None] * math.log(2)
    hidden = torch.arange(t_k) > torch.arange(t_q)[:, None] + t_k - t_q
    s = s.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - torch.where(lse.isneginf(), torch.inf, lse)[..., None])
    return torch.einsum("bhij,bjhd->bihd", p, v), lse.transpose(1, 2)


SHAPES = [
    ((2, 1), (45, 45), (24, 16)),
    ((2, 2), (20, 50), (16, 24)),
    ((4, 2), (50, 20), (16, 16)),
    ((1, 1), (1, 33), (16, 16)),
]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.float16, 1e-3)])
@pytest.mark.parametrize(("heads", "times", "dims"), SHAPES)
@pytest.mark.parametrize("name", ["plain_fwd", "fox_fwd"])
def test_forward_is_attention(
    name: str,
    heads: tuple[int, int],
    times: tuple[int, int],
    dims: tuple[int, int],
    dtype: torch.dtype,
    bound: float,
) -> None:
    tensors, numbers = problem(heads, times, dims, dtype)
    q, v = tensors["q"], tensors["v"]
    made = {
        "o": q.new_full((*q.shape[:3], v.shape[3]), torch.nan),
        "lse": torch.full(q.shape[:3], torch.nan),
    }
    programs = int(numbers["NM"]) * heads[0] * 2
    after = launch(by_name[name], programs, {**tensors, **made}, **numbers)
    out, lse = attention({n: x.double() for n, x in tensors.items()}, gate=name == "fox_fwd")
    assert_close("o", out, after["o"], bound)
    assert_close("lse", lse, after["lse"], 1e-6 if dtype == torch.float32 else 1e-4)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.float16, 2e-3)])
@pytest.mark.parametrize(("heads", "times", "dims"), SHAPES[:3])
def test_backward_of_columns_is_the_gradient(
    heads: tuple[int, int],
    times: tuple[int, int],
    dims: tuple[int, int],
    dtype: torch.dtype,
    bound: float,
) -> None:
    tensors, numbers = problem(heads, times, dims, dtype)
    leaves = {n: x.double().requires_grad_() for n, x in tensors.items()}
    out, lse = attention(leaves, gate=True)
    do = normal(*out.shape, dtype=dtype, seed=5)
    wanted = torch.autograd.grad(out, [leaves[n] for n in "kvc"], do.double())
    given = {
        "do": do,
        "lse": (lse.detach() * LOG2E).float(),
        "delta": (out.detach() * do).sum(-1).float(),
        "dk": torch.full(tensors["k"].shape, torch.nan),
        "dv": torch.full(tensors["v"].shape, torch.nan),
        "dc": torch.full(tensors["c"].shape, torch.nan),
    }
    given["lse"][given["lse"].isneginf()] = torch.inf  # a dead row has no weights
    programs = int(numbers["NN"]) * heads[1] * 2
    after = launch(by_name["fox_bwd_columns"], programs, {**tensors, **given}, **numbers)
    for name, expected in zip(("dk", "dv", "dc"), wanted, strict=True):
        factor = LOG2E if name == "dc" else 1.0  # the gate's gradient is that of its log2 form
        assert_close(name, expected * factor, after[name], bound)


def test_operands_are_turned_where_their_extents_stand_the_other_way() -> None:
    x, y = normal(9, 13), normal(13, 9, seed=1)
    tensors = {"x": x, "y": y, "out": torch.full((13, 9), torch.nan), "v": x}
    kernel = tile_kernels.transposed()
    after = launch(kernel, 1, tensors, T_q=9, T_k=13, BM=BM, BN=BN)
    assert torch.equal(after["out"], (x + 2 * y.T).T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_descriptors_change_no_bit(dtype: torch.dtype) -> None:
    """Ragged tiles by descriptor are those by pointer, and write nothing else."""
    tensors, numbers = problem((4, 2), (36, 44), (24, 16), dtype)
    tensors |= {"do": normal(2, 36, 4, 16, dtype=dtype, seed=5), "delta": normal(2, 36, 4, seed=6)}
    tensors |= {"o": torch.zeros_like(tensors["do"]), "dk": torch.zeros(2, 44, 2, 24)}
    tensors |= {"dv": torch.zeros(2, 44, 2, 16), "dc": torch.zeros(2, 44, 4)}
    tensors["lse"] = normal(2, 36, 4, seed=7) + 9
    # numbers of a head follow one another, as a launcher lays them out
    tensors = {
        n: x.contiguous() if x.dim() == 4 else x.transpose(1, 2).contiguous().transpose(1, 2)
        for n, x in tensors.items()
    }
    for name, blocks in (("fox_fwd", numbers["NM"]), ("fox_bwd_columns", numbers["NN"])):
        kernel, programs = by_name[name], 2 * int(blocks) * (4 if name == "fox_fwd" else 2)
        by_pointer = launch(kernel, programs, tensors, **numbers)
        arguments = printed(kernel, descriptors=True).arguments
        given = launch_arguments(arguments, tensors, numbers)
        (by_descriptor,) = run_kernels(DESCRIBED, [Call(name, programs, given)])
        assert {"o", "dk"} & by_descriptor.keys()
        for tensor, got in by_descriptor.items():
            assert torch.equal(by_pointer[tensor], got), tensor


def test_a_table_has_no_descriptor() -> None:
    assert "desc_" not in printed(by_name["gather"], descriptors=True).source
    assert "desc_c" not in printed(by_name["fox_fwd"], descriptors=True).source


# ---- tables and channels


def test_gather_reads_the_entries() -> None:
    t_q, t_k, entries = 37, 21, 7
    t, u = normal(t_q, 1, entries), normal(entries, seed=1)
    out = torch.full((t_q, t_k), torch.nan)
    numbers = {"T_q": t_q, "T_k": t_k, "N_t": entries, "BM": BM, "BN": BN}
    after = launch(by_name["gather"], 2, {"t": t, "u": u, "out": out, "v": t}, **numbers)
    entry = (torch.arange(t_q)[:, None] - torch.arange(t_k)).clamp(0, entries - 1)
    assert torch.equal(after["out"], t[:, 0].gather(1, entry) + u[entry])


def test_scatter_adds_where_entries_meet() -> None:
    """Sums over pairs with one entry, added to what is there, the same in every bit each time."""
    t_q, t_k, entries = 37, 21, 7
    g = normal(t_q, t_k)
    tensors = {"g": g, "dt": torch.ones(t_q, 1, entries), "du": torch.zeros(2, entries)}
    numbers = {"T_q": t_q, "T_k": t_k, "N_t": entries, "BM": BM, "BN": BN}
    after = launch(by_name["scatter"], 2, tensors, **numbers)
    entry = (torch.arange(t_q)[:, None] - torch.arange(t_k)).clamp(0, entries - 1)
    expected = torch.ones(t_q, entries).double().scatter_add_(1, entry, g.double())
    assert_close("dt", expected, after["dt"][:, 0], 1e-6)
    sums = torch.stack([(expected - 1)[:BM].sum(0), (expected - 1)[BM:].sum(0)])
    assert_close("du", 2 * sums, after["du"], 1e-6)
    again = launch(by_name["scatter"], 2, tensors, **numbers)
    assert torch.equal(after["dt"], again["dt"])
    assert torch.equal(after["du"], again["du"])


def test_a_loop_over_channels() -> None:
    t_q, t_k, heads, channels = 37, 21, 2, 5
    w, a = normal(heads, channels), normal(heads, channels, seed=1)
    out = torch.full((t_q, heads, t_k), torch.nan)
    sizes = {"T_q": t_q, "T_k": t_k, "H": heads, "NM": 2, "E0": channels, "BE0": 8}
    tensors = {"w": w, "a": a, "out": out}
    after = launch(by_name["channel_sum"], 4, tensors, BM=BM, BN=BN, **sizes)
    x = (torch.arange(t_q)[:, None] - torch.arange(t_k)).double()
    hidden = torch.relu(a.double()[:, :, None, None] * x)
    assert_close(
        "out", (w.double()[:, :, None, None] * hidden).sum(1).transpose(0, 1), after["out"], 1e-6
    )


# ---- functions

EDGES = [0.0, 1e-30, 1e-7, 1e-4, 0.02, 0.25, 0.49, 0.5, 1.0, 1.75, 3.0, 20.0, 88.0, 1e4, 1e8]
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "cos_turns": lambda x: torch.cos(2 * math.pi * (x - x.round())),
    "sin_turns": lambda x: torch.sin(2 * math.pi * (x - x.round())),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "log_sigmoid": torch.nn.functional.logsigmoid,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "relu": torch.relu,
    "floor": torch.floor,
    "neg": torch.neg,
    "abs": torch.abs,
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "**": torch.pow,
    "//": lambda x, y: torch.floor((x.float() / y.float()).double()),
    "minimum": torch.minimum,
    "maximum": torch.maximum,
}
Function = Callable[[Tensor, Tensor], Tensor]
ABSOLUTE = {"sin", "cos", "cos_turns", "sin_turns", "tanh"}


def applied(
    fn: str,
    *operands: Tensor,
    dtype: tile.DType = "f32",
    before: tuple[float, ...] = (),
    after: tuple[float, ...] = (),
) -> Tensor:
    number = len(operands)
    kernel = tile_kernels.pointwise(fn, number, dtype=dtype, before=before, after=after)
    out = torch.zeros(operands[0].shape[0], dtype=operands[0].dtype)
    tensors = {**dict(zip("xy", operands, strict=False)), "out": out}
    programs = -(-len(out) // BM)
    return launch(kernel, programs, tensors, T_q=len(out), BM=BM)["out"]


def assert_exact(fn: str, expected: Tensor, actual: Tensor) -> None:
    """Within a few roundings of fp32 of each value; infinities and NaN stand where they should."""
    expected = torch.where(
        expected.abs() > torch.finfo(torch.float32).max, expected.sign() * torch.inf, expected
    )
    assert torch.equal(expected.isnan(), actual.isnan()), f"{fn}: {actual}"
    finite = expected.isfinite()
    assert torch.equal(expected[~finite].nan_to_num(), actual.double()[~finite].nan_to_num())
    scale = expected.abs().clamp(min=1.0 if fn in ABSOLUTE else 1e-37)
    error = ((actual.double() - expected).abs() / scale)[finite].max()
    assert error < 1e-6, f"{fn}: {error}"


@pytest.mark.parametrize("fn", sorted(UNARY))
def test_functions_hold_at_their_edges(fn: str) -> None:
    x = torch.tensor([*(-e for e in EDGES), *EDGES])
    if fn in ("exp", "exp2", "expm1"):
        x = x.clamp(max=100.0)
    assert_exact(fn, UNARY[fn](x.double()), applied(fn, x))


@pytest.mark.parametrize("fn", sorted(BINARY))
def test_functions_of_two_numbers(fn: str) -> None:
    x = torch.tensor([0.0, 0.5, 2.0, 9.0, -2.0, -3.0, 100.0])
    y = torch.tensor([2.0, 0.1, 0.0 if fn == "**" else 0.25, 3.0, -1.0, 0.5])
    pairs = torch.cartesian_prod(x, y)
    x, y = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    expected = BINARY[fn](x.double(), y.double())
    assert_exact(fn, expected, applied(fn, x, y))


@pytest.mark.parametrize("exponent", [-1, 0, 2, 3, 4, 0.5, 0.1, -1.5])
def test_powers_with_a_literal_exponent(exponent: float) -> None:
    x = torch.tensor([0.0, 0.5, 2.0, 9.0, -2.0, -3.0, 100.0])
    expected = torch.pow(x.double(), exponent)
    assert_exact("**", expected, applied("**", x, after=(exponent,)))


@pytest.mark.parametrize("base", [2, 0.5, 3])
def test_powers_of_a_literal_base(base: float) -> None:
    x = torch.tensor([0.0, 0.5, 2.0, 9.0, -2.0, -3.5])
    assert_exact("**", torch.pow(base, x.double()), applied("**", x, before=(base,)))


def test_a_literal_may_stand_left_of_a_comparison() -> None:
    x = torch.tensor([0, 1, 2, 3]).int()
    kernel = tile_kernels.pointwise("<=", 1, dtype="i32", before=(2,))
    assert "b_x >= 2" in printed(kernel).source
    assert applied("<=", x, dtype="i32", before=(2,)).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(("fn", "expected"), [("//", torch.floor_divide), ("%", torch.remainder)])
def test_integers_divide_as_in_python(fn: str, expected: Function) -> None:
    pairs = torch.cartesian_prod(torch.arange(-9, 10), torch.tensor([-4, -1, 1, 3])).int()
    x, y = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    assert torch.equal(applied(fn, x, y, dtype="i32"), expected(x, y))


def test_bf16_is_refused_by_the_interpreter() -> None:
    x = torch.zeros(4, dtype=torch.bfloat16)
    kernel = tile_kernels.pointwise("exp", 1)
    given = launch_arguments(printed(kernel).arguments, {"x": x, "out": x}, {"T_q": 4, "BM": BM})
    with pytest.raises(ValueError, match="bf16"):
        run_kernels(print_module([kernel], "x"), [Call(kernel.name, 1, given)])
