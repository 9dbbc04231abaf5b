"""A variant as one Python file that needs torch and numba, or torch and triton, and nothing else.

print_module(program, padded, packed, target, ...)

header       formula, command, digest, compiler version, licence; do not edit
helpers      small functions that this variant calls
kernels      of every attention, for padded and for packed calls
launches     allocate, launch
autograd     one torch.autograd.Function an attention
checks       what a call must look like
<name>()     prologue, attentions, epilogue
"""

import ast
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gnomon.dsl.errors import InputError
from gnomon.lowering import tile
from gnomon.lowering.core import Program
from gnomon.lowering.emit import (
    gpu_library,
    made_library,
    transport_cache,
    transport_library,
    triton_helpers,
)
from gnomon.lowering.emit import numba as numba_printer
from gnomon.lowering.emit import triton as triton_printer
from gnomon.lowering.emit.autograd_text import AutogradPrinter, backward_helpers
from gnomon.lowering.emit.checks_text import checks
from gnomon.lowering.emit.launch import Launched, LaunchPrinter, Target, described_form, packed_name
from gnomon.lowering.emit.prologue import (
    Body,
    body,
    has_prefill,
    helpers,
    opening,
    prefill,
    reads_memory_order,
    transports,
)
from gnomon.lowering.emit.signature_text import Signature
from gnomon.lowering.emit.text import INDENT, WIDTH, atom, call, docstring, keyword, statement
from gnomon.lowering.emit.torch_library import closure, functions
from gnomon.lowering.emit.transport_kernels import LIBRARY, module_parts
from gnomon.lowering.pipelines import Kernels

TILES: Mapping[Target, Mapping[str, int]] = {
    "numba": {"BM": 64, "BN": 64},
    "triton": {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2},
}
"""The tiles of a kernel for which no configuration is given."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a module comes from."""

    digest: str = ""
    command: str = ""
    version: str = ""
    licence: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """What a generated file is made of; `padded` or `packed` may be empty: such calls are refused.

    config  kernel name -> BM, BN and, for Triton, num_warps, num_stages; a missing one has `TILES`
    io      the dtype of q, k and v that Numba's kernels are for; Triton's take any
    leaf    tokens of a leaf of a transport's tree, a power of two; tiles divide it
    width   channels of dots, where they are known: kernels that move queries and keys go by it
    jit     False leaves Numba's kernels plain Python, for small tests without its compiler
    """

    program: Program
    padded: Sequence[Kernels]
    packed: Sequence[Kernels]
    target: Target
    io: numba_printer.Io = "f32"
    config: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    provenance: Provenance = field(default_factory=Provenance)
    jit: bool = True
    descriptors: bool = False
    leaf: int = 64
    width: int | None = None

    @property
    def moves_by_kernels(self) -> bool:
        """Whether kernels may move queries and keys: of 16 bits, where tiles come by descriptor."""
        return self.descriptors and self.width is not None and self.leaf in (64, 128)

    @property
    def by_descriptor(self) -> bool:
        """Whether it has kernels with descriptors; why for a softmax alone: DECISIONS.md."""
        return self.descriptors and all(a.normaliser == "softmax" for a in self.program.attentions)


def print_module(module: Module) -> str:
    """The text of the file; it is valid Python, as `ruff format` would set it."""
    on_gpu = module.target == "triton"
    values = body(module.program, on_gpu=on_gpu, by_kernels=module.moves_by_kernels)
    signature = Signature(module.program.variant)
    printers = _autograd(module)
    kernels = _kernels(module)
    positions = _takes_positions(module, signature)
    code = [
        *_library(module, values, kernels),
        *_printed_kernels(module, kernels),
        *("\n".join(_launch(module, launched)) for p in printers for launched in _launches(p)),
        *("\n".join(printer.lines()) for printer in printers),
        checks(signature, positions=positions),
        "\n".join(_public(module, values, signature)),
    ]
    leaf = ""
    if values.flavours:
        check_leaf(module, kernels)
        apart = "\n" * (3 if module.target == "numba" else 2)  # behind a function, or an import
        leaf = f'{apart}LEAF = {module.leaf}\n"""Tokens of a leaf."""'
        moved = []
        if values.kernel_step is not None and module.width is not None:
            shared = values.kernel_step.is_symmetric
            moved = module_parts(shared=shared, width=module.width, leaf=module.leaf, known=code)
        code[0:0] = [*transport_library.functions(values.flavours), *moved]
        if has_prefill(module.program):
            code += [transport_cache.SOURCE.strip(), "\n".join(_prefill(module, signature))]
    head = _opening(module, kernels, code) + leaf
    text = "\n\n\n".join([head, *(part.strip("\n") for part in code)]) + "\n"
    ast.parse(text)
    return text


def check_leaf(module: Module, kernels: Sequence[tile.Kernel]) -> None:
    """A tile lies in one leaf. Raises InputError."""
    if module.leaf < 1 or module.leaf & (module.leaf - 1):
        raise InputError("leaf", "a power of two", str(module.leaf))
    for kernel in kernels:
        name, tiles = _tiles(module, kernel)
        for extent in ("BM", "BN"):
            if module.leaf % tiles[extent]:
                expected = f"a divisor of the leaf's {module.leaf} tokens for {name}"
                raise InputError(extent, expected, str(tiles[extent]))


# ---- kernels


def _kernels(module: Module) -> list[tile.Kernel]:
    """Every kernel of the file under its name."""
    padded = [kernel for kernels in module.padded for kernel in kernels.all()]
    packed = [packed_name(kernel) for kernels in module.packed for kernel in kernels.all()]
    described = [described_form(kernel) for kernel in padded] if module.by_descriptor else []
    return [*padded, *packed, *(kernel for kernel in described if kernel is not None)]


def _autograd(module: Module) -> list[AutogradPrinter]:
    printers = []
    for place, attention in enumerate(module.program.attentions):
        padded = module.padded[place] if module.padded else None
        packed = module.packed[place] if module.packed else None
        roles = ("fwd", "bwd_rows", "bwd_columns")
        halves = [_launched(module, padded, packed, name) for name in roles]
        fwd, rows, columns = halves
        assert fwd is not None
        assert columns is not None
        near = module.target == "triton"
        printers.append(AutogradPrinter(attention, fwd, rows, columns, near))
    return printers


def _launched(
    module: Module, padded: Kernels | None, packed: Kernels | None, name: str
) -> Launched | None:
    """One kernel in its forms."""
    plain = getattr(padded, name) if padded else None
    other = getattr(packed, name) if packed else None
    if plain is None and other is None:
        return None
    described = described_form(plain) if plain and module.by_descriptor else None
    return Launched(plain, packed_name(other) if other else None, described)


def _launches(printer: AutogradPrinter) -> list[Launched]:
    return [x for x in (printer.fwd, printer.bwd_rows, printer.bwd_columns) if x is not None]


def _launch(module: Module, launched: Launched) -> list[str]:
    _, tiles = _tiles(module, launched.kernel)
    return LaunchPrinter(launched, module.target, tiles).lines()


def _tiles(module: Module, kernel: tile.Kernel) -> tuple[str, dict[str, int]]:
    """The name that all forms of a kernel share, and their tunables."""
    name = kernel.name.removesuffix("_packed").removesuffix("_tma")
    return name, {**TILES[module.target], **module.config.get(name, {})}


def _printed_kernels(module: Module, kernels: Sequence[tile.Kernel]) -> list[str]:
    if module.target == "numba":
        texts = [numba_printer.print_kernel(k, module.io, jit=module.jit) for k in kernels]
        return [text.replace("@njit(", "@when_called(", 1) for text in texts]
    parts = [
        triton_printer.printed(kernel, descriptors=kernel.name.endswith("_tma"))
        for kernel in kernels
    ]
    names = triton_helpers.closure({name for part in parts for name in part.helpers})
    return [*(triton_helpers.source(name) for name in names), *(part.source for part in parts)]


def _library(module: Module, values: Body, kernels: Sequence[tile.Kernel]) -> list[str]:
    found = helpers(values, is_given=_takes_positions(module, values.signature))
    found.add("refuse_second_derivative")
    found |= {"array", "cdiv", "run"} if module.target == "numba" else {"padded_width", "device_of"}
    found |= {"when_called"} if module.target == "numba" and module.jit else set()
    found |= {name for a in module.program.attentions for name in backward_helpers(a)}
    for made in (each for kernel in kernels for each in kernel.made):
        found |= made_library.wanted(made)
    if any(kernel.name.endswith("_tma") for kernel in kernels):
        found |= {"described", "has_descriptors"}
    found |= set(LIBRARY) if values.kernel_step is not None else set()
    if module.target == "triton":
        found.add("within_reach")
        found = {own for name in found for own in gpu_library.INSTEAD.get(name, (name,))}
    return functions(closure(found))


# ---- the head of the file


def _opening(module: Module, kernels: Sequence[tile.Kernel], code: Sequence[str]) -> str:
    lines = [f"# {line}" for line in module.provenance.licence.splitlines()]
    lines += [*docstring(_header(module), 0), ""]
    text = "\n".join(code)
    standard = ["import math"] * ("math." in text)
    if module.target == "numba":
        standard += ["import threading", "from concurrent.futures import ThreadPoolExecutor"]
    contexts = [x for x in ("contextmanager", "nullcontext") if x in text]
    standard += [f"from contextlib import {', '.join(contexts)}"] * bool(contexts)
    tools = "lru_cache, partial" + ", wraps" * ("@wraps(" in text)
    standard += ["from fractions import Fraction", f"from functools import {tools}"]
    standard += ["from itertools import pairwise", "from typing import NamedTuple"]
    third = ["import torch"]
    if module.target == "numba":
        third += ["import scipy.linalg.cython_blas", "import threadpoolctl"]
    third = (["import torch.nn.functional as F"] if "F." in text else []) + third
    if module.target == "triton":
        third += ["import triton", "import triton.language as tl"]
        if "@once_differentiable" in text:
            third += ["from torch.autograd.function import once_differentiable"]
        if "TensorDescriptor(" in text:
            third += ["from triton.tools.tensor_descriptor import TensorDescriptor"]
        return "\n".join([*lines, *standard, "", *_sorted(third)])
    head, constants = _numba_head(numba_printer.helpers(kernels, module.io, jit=module.jit))
    return "\n".join([*lines, *standard, "", *_sorted([*third, *head]), *constants]).rstrip("\n")


def _numba_head(text: str) -> tuple[list[str], list[str]]:
    """The imports of Numba's helpers, and the rest of them."""
    tree = ast.parse(text)
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    last = max(n.end_lineno or 0 for n in imports)
    return [ast.unparse(n) for n in imports], text.splitlines()[last:]


def _sorted(imports: Sequence[str]) -> list[str]:
    """Imports in the order of isort: plain ones first, by module."""
    return sorted(imports, key=lambda line: (line.startswith("from"), line.split()[1].lower()))


def _header(module: Module) -> str:
    variant, origin = module.program.variant, module.provenance
    formula = " ".join(variant.formula.strip().partition("\n\n")[0].split())
    first = f"{variant.name}: attention by {module.target}, generated by gnomon {origin.version}"
    again = origin.command or "gnomon export"
    last = f"Do not edit: `{again}` writes it anew."
    if origin.digest:
        last = f"Variant {origin.digest}. {last}"
    shown = textwrap.wrap(formula, 96, initial_indent=INDENT, subsequent_indent=INDENT)
    return "\n".join([first.strip(), "", *shown, "", *textwrap.wrap(last, 96)])


# ---- the public function


def _refuses_positions(module: Module) -> bool:
    """Whether positions of a call would be ignored by the kernels."""
    return not module.program.positions and reads_memory_order(module.program)


_PREFILL = """What the call without `_prefill` gives, and the cache that decoding goes on from.

Keys of the cache are as a dot through the transport wants them; biases of the formula that are
summed along the sequence are the caller's to keep."""


def _takes_positions(module: Module, signature: Signature) -> bool:
    return signature.reads_positions and not _refuses_positions(module)


def _public(module: Module, values: Body, signature: Signature) -> list[str]:
    name = module.program.variant.name
    device = "cpu" if module.target == "numba" else "cuda"
    # the caller's autocast is for the layers around: here every dtype is chosen
    lines = [f'@torch.autocast("{device}", enabled=False)']
    lines += statement(f"def {name}", call("", *map(atom, signature.parameters)), 0, ":")
    lines += docstring(_doc(module, signature), 1)
    lines += _table([f'"{x.name}": {x.name}' for x in signature.inputs])
    lines += ["    call = check_call(tensors, cu_seqlens, cu_seqlens_q, cu_seqlens_k)"]
    lines += _refusals(module, signature)
    lines += _from_a_leaf(signature) if values.flavours else []
    is_given = _takes_positions(module, signature)
    return [*lines, *opening(values, module.program, is_given=is_given), *values.lines]


def _from_a_leaf(signature: Signature) -> list[str]:
    """The kernels want queries that begin a leaf: the call with some more in front of them."""
    given = [f"{x.name}[:, rows]" if x.place == "row" else x.name for x in signature.inputs]
    inputs = zip(signature.inputs, given, strict=True)
    args = [atom(code) if x.name in "qkv" else keyword(x.name, atom(code)) for x, code in inputs]
    args += [keyword("cu_seqlens_q", atom("offsets"))]
    args += [keyword("cu_seqlens_k", atom("call.cu_seqlens_k"))]
    args += [keyword(x, atom(x)) for x in ("positions", "return_lse")]
    lines = ["    moved = from_a_leaf(call, q.device)", "    if moved is not None:"]
    lines += ["        rows, offsets, asked = moved"]
    lines += statement("found = ", call(signature.variant.name, *args), 2)
    if signature.has_lse:
        lines += ["        if return_lse:"]
        lines += ["            out, lse = found"]
        lines += ["            return taken(out, asked, 0.0), taken(lse, asked, -torch.inf)"]
    return [*lines, "        return taken(found, asked, 0.0)"]


def _prefill(module: Module, signature: Signature) -> list[str]:
    """The forward call that leaves a cache too."""
    name, device = signature.variant.name, "cpu" if module.target == "numba" else "cuda"
    (dot,) = transports(module.program)
    lines, args = prefill(module.program, dot, on_gpu=module.target == "triton")
    given = ["q", "k", "v", "*", *signature.names, "positions=None", "return_lse=False"]
    head = ["@torch.no_grad()", f'@torch.autocast("{device}", enabled=False)']
    head += statement(f"def {name}_prefill", call("", *map(atom, given)), 0, ":")
    head += docstring(_PREFILL, 1)
    named = [*signature.names, "positions", "return_lse"]
    parts = [*map(atom, "qkv"), *(keyword(x, atom(x)) for x in named)]
    head += statement("out = ", call(name, *parts), 1)
    head += _table([f'"{x.name}": {x.name}' for x in signature.inputs])
    head += ["    call = check_call(tensors, None, None, None)", *lines]
    return [*head, *statement("return out, ", call("cache_of", *args), 1)]


def _table(items: Sequence[str]) -> list[str]:
    """The tensors of a call by name."""
    line = f"    tensors = {{{', '.join(items)}}}"
    if len(line) <= WIDTH:
        return [line]
    return ["    tensors = {", *(f"        {item}," for item in items), "    }"]


def _refusals(module: Module, signature: Signature) -> list[str]:
    lines: list[str] = []
    if module.target == "numba":
        dtype = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[module.io]
        lines += [f"    if q.dtype != torch.{dtype}:"]
        lines += [f'        refuse("q", "{dtype}, for which these kernels are", q.dtype)']
        lines += ['    if q.device.type != "cpu":']
        lines += ['        refuse("q", "a tensor in main memory", q.device)']
    if not module.packed:
        lines += ["    if call.cu_seqlens_q is not None:"]
        lines += ['        refuse("cu_seqlens", "None: no kernel for packed sequences", "offsets")']
    if not module.padded:
        lines += ["    if call.cu_seqlens_q is None:"]
        lines += ['        refuse("cu_seqlens", "the offsets of packed sequences", None)']
    if _refuses_positions(module):
        lines += ["    if positions is not None:"]
        lines += ['        refuse("positions", "None: these kernels count them", "positions")']
    if not signature.has_lse:
        lines += ["    if return_lse:"]
        lines += ['        refuse("return_lse", "False: there is no single softmax", True)']
    return lines


def _doc(module: Module, signature: Signature) -> str:
    lines = [signature.formula, ""]
    for item in signature.inputs:
        lines += [f"{item.name} {signature.shape(item)}"]
    lines += [
        "",
        "Packed sequences by `cu_seqlens`, or `cu_seqlens_q` and `cu_seqlens_k`; queries are the",
    ]
    lines += ["last tokens of their sequence. Gives [batch, time_q, head, d_v]"]
    lines[-1] += (
        ", with `return_lse` the\nlog-sum-exp [batch, time_q, head] too."
        if signature.has_lse
        else "."
    )
    return "\n".join(lines)
