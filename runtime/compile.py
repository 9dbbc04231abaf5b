"""`gnomon.compile`: a variant as a function of torch tensors, with autograd.

    attention = gnomon.compile(fox)
    out = attention(q, k, v, log_f=log_f)

The first call of a kind (device, dtype, packed or not, with positions or not, widths) lowers the
variant, writes the module and imports it; later calls of that kind go straight to the module's
function. A new length compiles at most once in each of three ranges of lengths (tuned.LENGTHS), and
only where other tiles were found best there.
"""

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn, cast

import torch
from torch import Tensor

from gnomon.dsl.errors import InputError, UnsupportedError
from gnomon.dsl.nodes import Variant
from gnomon.dsl.show import digest
from gnomon.dsl.trace import Declaration
from gnomon.lowering.config import Config
from gnomon.lowering.emit.module import Module, Provenance, print_module
from gnomon.lowering.pipelines import Kernels, dump, to_kernels, to_program
from gnomon.runtime import configs
from gnomon.runtime.call import check_positions, check_tensors
from gnomon.runtime.configs import NEAREST, Site, Tuning
from gnomon.runtime.guard import guard
from gnomon.runtime.here import device_of, is_capturing
from gnomon.runtime.modules import load
from gnomon.runtime.settings import logger, settings
from gnomon.runtime.versions import check_triton

Target = Literal["numba", "triton"]
TARGETS: Mapping[str, Target] = {"cpu": "numba", "cuda": "triton"}
IO: Mapping[torch.dtype, Literal["f32", "f16", "bf16"]] = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}


KINDS = 1024
"""Calls with other shapes than those seen are checked anew; so many are remembered."""


def compile(
    variant: Declaration | Variant,
    *,
    target: Target | None = None,
    config: Config | None = None,
    tuning: Tuning | Literal["nearest", "strict"] = NEAREST,
    **hyperparameters: Any,
) -> "Attention":
    """A function of torch tensors: f(q, k, v, **inputs) -> [batch, time_q, head, d_v].

    `hyperparameters` are those of the declaration: numbers, or an annotation that turns one into an
    input (alpha=gn.Param[gn.Head]). `target` is chosen by the device of the tensors unless it is
    given; `config` by the look-up of `tuning` (runtime/configs.py): "nearest", "strict", or pins.
    Nothing is measured here, nor by a call. Raises VariantError where a law is broken,
    UnsupportedError where no lowering exists yet.
    """
    if not isinstance(variant, (Declaration, Variant)):
        came = f"a {type(variant).__name__}"
        raise InputError("variant", "what @gn.variant returns", came, "decorate the function")
    if target not in (None, "numba", "triton"):
        raise InputError("target", "'numba', 'triton' or None", repr(target))
    if not isinstance(tuning, Tuning):
        if tuning not in ("nearest", "strict"):
            raise InputError("tuning", "'nearest', 'strict' or pins", repr(tuning))
        tuning = Tuning(tuning)
    if isinstance(variant, Declaration):
        node = variant.bind(**hyperparameters) if hyperparameters else variant.node
    elif hyperparameters:
        came = f"a traced variant and {', '.join(hyperparameters)}"
        raise InputError("variant", "a declaration, so that hyperparameters can be set", came)
    else:
        node = variant
    to_program(node)  # an error of the lowering belongs here, not to the first call
    return Attention(node, target, config, tuning)


def eager(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call that torch.compile leaves as it is: kernels are launched, not traced.

    torch's own decorator loads the compiler, so it is asked for when somebody compiles.
    """
    hidden: list[Callable[..., Any]] = []

    @wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            return call(*args, **kwargs)
        if not hidden:
            hidden.append(torch.compiler.disable(call))
        return hidden[0](*args, **kwargs)

    return run


@dataclass(frozen=True, slots=True)
class Form:
    """What a module is generated for.

    descriptors  a GPU copies tiles by hardware
    site         the GPU and the bucket of the shape, by which tiles are looked up; None: by default
    """

    target: Target
    io: Literal["f32", "f16", "bf16"]
    packed: bool
    positions: bool
    widths: tuple[int, int]
    descriptors: bool = False
    site: Site | None = None


class Attention:
    """A compiled variant. Safe to call from several threads; pickles as its variant."""

    def __init__(
        self,
        variant: Variant,
        target: Target | None,
        config: Config | None,
        tuning: Tuning = NEAREST,
    ) -> None:
        self.variant, self.target, self.config, self.tuning = variant, target, config, tuning
        self._modules: dict[Form, ModuleType] = {}
        self._known: dict[Hashable, tuple[dict[str, int], Form]] = {}
        self._lock = threading.Lock()

    @eager
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *extra: Tensor,
        cu_seqlens: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        positions: Tensor | Mapping[str, Tensor] | None = None,
        return_lse: bool = False,
        **inputs: Tensor,
    ) -> Any:
        """The output [batch, time_q, head, d_v], and with `return_lse` (.., [batch, time_q, head]).

        q [batch, time_q, head, d], k [batch, time_k, kv_head, d], v [batch, time_k, kv_head, d_v],
        any strides; bf16, fp16 or fp32. `cu_seqlens` packs sequences (batch 1); with `cu_seqlens_q`
        and `cu_seqlens_k` queries and keys differ. `positions` [batch, time_k], or one such tensor
        a coordinate. The last query stands on the last key. Raises InputError naming the argument,
        what was expected and what came.
        """
        if extra:
            raise self._surplus(len(extra))
        tensors = {"q": q, "k": k, "v": v, **inputs}
        packed = any(x is not None for x in (cu_seqlens, cu_seqlens_q, cu_seqlens_k))
        offsets = next((x for x in (cu_seqlens, cu_seqlens_k) if x is not None), None)
        sizes, form = self._checked(tensors, offsets, packed=packed, at=positions is not None)
        if positions is not None:
            check_positions(self.variant, positions, sizes, offsets)
        function = getattr(self.module(form), self.variant.name)
        packs = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        options = {"cu_seqlens": cu_seqlens, "positions": positions, "return_lse": return_lse}
        return function(q, k, v, **inputs, **packs, **options)

    def _checked(
        self, tensors: Mapping[str, Any], offsets: Tensor | None, *, packed: bool, at: bool
    ) -> tuple[dict[str, int], Form]:
        """The sizes and the form of a call; tensors of the same kinds are looked at once."""
        sequences = getattr(offsets, "shape", None)
        kinds = tuple((name, *_kind(x)) for name, x in tensors.items()), sequences, packed, at
        known = self._known.get(kinds)
        if known is None:
            sizes = check_tensors(self.variant, tensors, packed=packed)
            known = sizes, self._form(tensors, offsets, packed=packed, positions=at)
            if len(self._known) >= KINDS:
                self._known.clear()
            self._known[kinds] = known
        return known

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, **inputs: Any) -> Any:
        """The output as of a call, and the cache that decoding goes on from; without gradients.

        The cache has `nodes`, each with k [batch, kv_head, token, d] at its right edge, v and the
        product of its steps, and an open `leaf` (lowering/emit/transport_cache.py). Raises
        UnsupportedError where the formula has no transport of the form I minus a low rank.
        """
        options = {x: inputs.pop(x) for x in ("positions", "return_lse") if x in inputs}
        tensors = {"q": q, "k": k, "v": v, **inputs}
        is_given = options.get("positions") is not None
        _, form = self._checked(tensors, None, packed=False, at=is_given)
        function = getattr(self.module(form), f"{self.variant.name}_prefill", None)
        if function is None:
            raise UnsupportedError(
                f"{self.variant.name} has no prefill: it has no transport of one low rank",
                "keep k and v as they are",
            )
        return function(q, k, v, **inputs, **options)

    def source(self, form: Form) -> str:
        """The text of the module for one form of call."""
        return self._source(form)[0]

    def _source(self, form: Form, *, tuned: bool = True) -> tuple[str, bool]:
        """The text, and whether its tiles are from a record that another compiler made."""
        program = to_program(self.variant, positions=form.positions)
        kernels = tuple(to_kernels(a, packed=form.packed) for a in program.attentions)
        tiles, leaf, is_foreign = self._tiles(form, kernels, tuned=tuned)
        text = print_module(
            Module(
                program,
                () if form.packed else kernels,
                kernels if form.packed else (),
                form.target,
                form.io,
                tiles,
                Provenance(digest(self.variant), "gnomon.compile", installed_version()),
                descriptors=form.descriptors,
                leaf=leaf,
                width=form.widths[0],
            )
        )
        return text, is_foreign

    def _tiles(
        self, form: Form, kernels: tuple[Kernels, ...], *, tuned: bool
    ) -> tuple[dict[str, Mapping[str, int]], int, bool]:
        """Kernel name -> its tunables, the leaf, and whether another compiler made some records."""
        if self.config is not None:
            return tiles_by_name(kernels, self.config, form.target), self.config.leaf, False
        if form.site is None or not tuned:
            device = None if form.site is None else form.site.device
            choice = configs.default_config(
                kernels, form.widths, form.io, form.target, device=device
            )
            leaf = choice.config.leaf
            return tiles_by_name(kernels, choice.config, form.target), leaf, False
        chosen = configs.choose(
            kernels,
            form.widths,
            form.io,
            site=form.site,
            packed=form.packed,
            descriptors=form.descriptors,
            formula=digest(self.variant),
            tuning=self.tuning,
        )
        configs.say(self.variant.name, form.site, chosen)
        tiles = {name: each.tiles.numbers(form.target) for name, each in chosen.items()}
        # tiles of a transport lie in one leaf, the largest that there is by default
        leaf = configs.default_config(kernels, form.widths, form.io, form.target).config.leaf
        foreign = any(c.found is not None and not c.found.exact for c in chosen.values())
        return tiles, leaf, foreign

    def module(self, form: Form) -> ModuleType:
        """The imported module for one form of call; made once."""
        with self._lock:
            if form not in self._modules and (near := self._made_before_capture(form)) is not None:
                return near
            if form not in self._modules:
                if form.target == "triton":
                    check_triton()
                logger().info("lowering %s for %s", self.variant.name, form)
                folder = settings().dump
                if folder is not None:
                    text = folder / self.variant.name
                    dump(self.variant, text, packed=form.packed, positions=form.positions)
                source, is_foreign = self._source(form)
                made = self._load(source)
                if is_foreign:
                    guard(made, lambda: self._load(self._source(form, tuned=False)[0]))
                self._modules[form] = made
            return self._modules[form]

    def _load(self, text: str) -> ModuleType:
        made = load(self.variant.name, text)
        made.refuse = _refuse  # type: ignore[attr-defined]  # standalone it is a ValueError
        return made

    def _made_before_capture(self, form: Form) -> ModuleType | None:
        """While a graph is captured nothing is compiled: a module of another length is as right."""
        if form.site is None or not is_capturing():
            return None
        plain = replace(form, site=None)
        return next((m for f, m in self._modules.items() if replace(f, site=None) == plain), None)

    def path(self, form: Form) -> Path:
        """Where the generated source of one form lies."""
        return Path(cast(str, self.module(form).__file__))

    def _form(
        self,
        tensors: Mapping[str, Any],
        offsets: Tensor | None,
        *,
        packed: bool,
        positions: bool,
    ) -> Form:
        """The form of a call; `offsets` are those of packed keys."""
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        if q.dtype not in IO:
            raise InputError(
                "q", "float32, float16 or bfloat16", str(q.dtype).removeprefix("torch.")
            )
        target = self.target or TARGETS.get(q.device.type)
        if target is None:
            raise UnsupportedError(
                f"no target runs on the device {q.device}", "move the tensors to cpu or cuda"
            )
        io, widths = IO[q.dtype], (q.shape[3], v.shape[3])
        descriptors = target == "triton" and not packed and io != "f32" and copies_tiles(q.device)
        site = None
        if target == "triton" and q.device.type == "cuda" and self.config is None:
            sequences = 1 if offsets is None else max(offsets.numel() - 1, 1)
            groups = q.shape[2] // max(k.shape[2], 1)
            site = Site.of(device_of(q.device), max(k.shape[1] // sequences, 1), groups)
        return Form(target, io, packed, positions, widths, descriptors, site)

    def _surplus(self, count: int) -> InputError:
        names = self._names()
        expected = f"{names} by name" if names else "q, k and v alone"
        return InputError("inputs", expected, f"{count} more positional arguments")

    def _names(self) -> str:
        return ", ".join(x.name for x in self.variant.inputs if x.name not in ("q", "k"))

    def __repr__(self) -> str:
        names = self._names()
        return f"Attention({self.variant.name}: q, k, v{f', {names}' if names else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Attention, (self.variant, self.target, self.config, self.tuning)


def _kind(x: Any) -> tuple[Any, ...]:
    """What a check reads of a tensor; of anything else what refuses it."""
    return (x.shape, x.dtype, x.device, x.layout) if isinstance(x, Tensor) else (type(x),)


def copies_tiles(device: torch.device) -> bool:
    """Whether tiles shall be copied by hardware: on CUDA GPUs of compute capability 9 and 10.

    12 can, too. But its matrix products read registers, and Triton (3.7) makes of such loads what
    spills: FoX, d = 128, 64 x 32 tiles of the rows kernel 5132 bytes, by pointer 0.
    """
    if device.type != "cuda":
        return False
    return (9, 0) <= torch.cuda.get_device_capability(device) < (12, 0)


def _refuse(name: str, expected: str, came: object) -> NoReturn:
    """What a generated module does with a bad call."""
    raise InputError(name, expected, str(came))


def tiles_by_name(
    kernels: tuple[Kernels, ...], config: Config, target: Target
) -> dict[str, Mapping[str, int]]:
    """Kernel name -> its tunables."""
    tiles: dict[str, Mapping[str, int]] = {}
    for each in kernels:
        tiles[each.fwd.name] = config.fwd.numbers(target)
        if each.bwd_rows is not None:
            tiles[each.bwd_rows.name] = config.bwd_rows.numbers(target)
        tiles[each.bwd_columns.name] = config.bwd_columns.numbers(target)
    return tiles


def installed_version() -> str:
    """The version of this package; "unknown" in a checkout that is not installed."""
    try:
        return version("gnomon")
    except PackageNotFoundError:
        return "unknown"
