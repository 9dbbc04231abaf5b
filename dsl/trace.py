"""`@gn.variant`: runs a declaration once on symbols and keeps the formula that comes out."""

import ast
import inspect
import linecache
import textwrap
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NoReturn

from gnomon.dsl.axes import Annotation, Dim, is_annotation, read_annotation
from gnomon.dsl.errors import VariantError
from gnomon.dsl.kinds import describe, kind
from gnomon.dsl.nodes import Expr, Input, Variant, Where, Width, walk
from gnomon.dsl.verify import verify

RESERVED = ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "positions", "return_lse")
_Q = Annotation("row", "Head", (Dim,), "real")
_K = Annotation("token", "KVHead", (Dim,), "real")  # as a user writes it; k itself is a column


@dataclass(frozen=True, slots=True, repr=False)
class Declaration:
    """A declared variant: its function, and its formula traced with the default numbers."""

    function: Callable[..., Expr]
    node: Variant = field(compare=False)

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.node.name

    @property
    def formula(self) -> str:
        """The docstring: the specification of the variant."""
        return self.node.formula

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The tensors of a call but v: q, k and what is declared."""
        return self.node.inputs

    def bind(self, **overrides: object) -> Variant:
        """The variant with other hyperparameters: a number, or an annotation for an input.

        Raises:
            VariantError: no such hyperparameter, or a value of another type.
        """
        return trace(self.function, overrides)

    def __repr__(self) -> str:
        inputs = ", ".join(x.name for x in self.node.inputs)
        return f"<variant {self.name}({inputs}): {self.formula}>"

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Refused: it has no kernels before it is compiled."""
        raise VariantError(
            f"{self.name} is a declaration, not a function of tensors",
            f"attention = gn.compile({self.name}); attention(q, k, v, ...)",
        )


def variant(function: Callable[..., Expr]) -> Declaration:
    """Declare a variant: traced at once, so that what is wrong is said at the declaration.

    Raises:
        VariantError: an argument or a kind is wrong, at its line.
        LawError: well formed, but no sentence of the grammar.
    """
    return Declaration(function, trace(function, {}))


def trace(function: Callable[..., Expr], overrides: dict[str, object]) -> Variant:
    """Run the declaration on its inputs and check the laws of the whole variant."""
    lines = _lines(function)
    parameters = inspect.signature(function).parameters
    given = _arguments(function, overrides, lines)
    inputs = tuple(x for x in given.values() if isinstance(x, Input))
    where = lines[""]
    _need_q_and_k(parameters, where)
    result = function(**given)
    if not isinstance(result, Expr) or not kind(result).is_output:
        raise VariantError(
            f"a variant returns an attention output; got {describe(result)}",
            "end with gn.softmax(logit, mask=...), gn.weighted_sum, gn.ratio or gn.stick_breaking",
            where,
        )
    numbers = tuple((n, x) for n, x in given.items() if not isinstance(x, Input))
    formula = inspect.getdoc(function) or ""
    traced = Variant(function.__name__, formula, inputs, numbers, result, where=where)
    _check_inputs(traced)
    verify(traced)
    return traced


def _lines(function: Callable[..., object]) -> dict[str, Where]:
    """The line of each parameter, and of the def itself under ""."""
    code = function.__code__
    first, file, name = code.co_firstlineno, code.co_filename, function.__name__

    def place(number: int) -> Where:
        return Where(file, number, linecache.getline(file, number).strip(), name)

    found = {"": place(first)}
    try:
        source, first = inspect.getsourcelines(function)
        body = ast.parse(textwrap.dedent("".join(source))).body[0]
    except (OSError, SyntaxError):
        return found  # typed at a prompt: the first line has to do
    if isinstance(body, ast.FunctionDef):
        found[""] = place(first + body.lineno - 1)
        args = body.args
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs):
            found[arg.arg] = place(first + arg.lineno - 1)
    return found


def _annotations(function: Callable[..., object], where: Where) -> dict[str, object]:
    notes = dict(inspect.get_annotations(function))
    if any(isinstance(note, str) for note in notes.values()):
        try:
            notes = typing.get_type_hints(function)
        except NameError as error:
            raise VariantError(
                f"an annotation names something unknown: {error}",
                "define axis classes at the top of the module, "
                "or drop `from __future__ import annotations`",
                where,
            ) from None
    return notes


def _arguments(
    function: Callable[..., object], overrides: dict[str, object], lines: dict[str, Where]
) -> dict[str, object]:
    """What the declaration is called with: an Input or a hyperparameter for each argument."""
    notes = _annotations(function, lines[""])
    parameters = inspect.signature(function).parameters
    _refuse_unknown(function.__name__, overrides, parameters)
    given: dict[str, object] = {}
    for name, parameter in parameters.items():
        where = lines.get(name, lines[""])
        note = notes.get(name)
        if name in overrides:
            value = overrides[name]
            if is_annotation(value):
                given[name] = read_annotation(name, value, where).input(name, where)
            else:
                given[name] = _same_type(name, value, parameter.default)
        elif name in ("q", "k"):
            given[name] = _q_or_k(name, note, where)
        else:
            given[name] = _argument(name, parameter, note, where)
    return given


def _q_or_k(name: str, note: object, where: Where) -> Input:
    wanted = _Q if name == "q" else _K
    if is_annotation(note) and read_annotation(name, note, where) != wanted:
        text = "gn.Query[gn.Head, gn.Dim]" if name == "q" else "gn.Token[gn.KVHead, gn.Dim]"
        raise VariantError(
            f"{name} is what every kernel takes as {name}, and cannot be declared otherwise",
            f"leave it bare, or write {name}: {text}",
            where,
        )
    if name == "q":
        return Input("q", "row", "Head", (Width.of("d"),), "real", where=where)
    return Input("k", "column", "KVHead", (Width.of("d"),), "real", where=where)


def _argument(name: str, parameter: inspect.Parameter, note: object, where: Where) -> object:
    if name == "v":
        raise VariantError(
            "v is not declared: a variant says how v is weighted, and every kernel takes v",
            "drop v from the arguments",
            where,
        )
    if name in RESERVED:
        raise VariantError(
            f"{name!r} is a keyword of every call and cannot name an argument",
            "choose another name",
            where,
        )
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise VariantError(
            f"*{name} hides which inputs the kernel takes", "name each argument", where
        )
    default = parameter.default
    if is_annotation(note):
        if default is not inspect.Parameter.empty:
            raise VariantError(
                f"the input {name!r} has a default; a tensor is given at each call",
                f"drop = {default!r}, or drop the annotation to make it a hyperparameter",
                where,
            )
        return read_annotation(name, note, where).input(name, where)
    if default is inspect.Parameter.empty:
        raise VariantError(
            f"the argument {name!r} says neither what it is nor what it is by default",
            f"a tensor: {name}: gn.Token[gn.KVHead, gn.Dim] (or Query, Param);  "
            f"a number fixed at compile time: *, {name}=0.5",
            where,
        )
    if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
        raise VariantError(
            f"the hyperparameter {name!r} must be keyword-only",
            f"put it behind a *:  *, {name}={default!r}",
            where,
        )
    return _plain(name, default, where)


def _plain(name: str, value: object, where: Where | None = None) -> object:
    """A number, a string, or a tuple of them: it goes into the digest."""
    items = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(x, (int, float, str)) for x in items):
        raise VariantError(
            f"the hyperparameter {name!r} is a number, a string or a tuple of them; "
            f"got {describe(value)}",
            "tensors are inputs: annotate them with gn.Token, gn.Query or gn.Param",
            where,
        )
    return value


def _same_type(name: str, value: object, default: object) -> object:
    value = _plain(name, value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    families = ((bool,), (int, float), (str,), (tuple,))
    mine = next(f for f in families if isinstance(default, f))
    if not isinstance(value, mine) or (isinstance(value, bool) and mine != (bool,)):
        raise VariantError(
            f"the hyperparameter {name!r} is {default!r} by default; got {value!r}",
            f"give {name}= as a value of the same type",
        )
    return value


def _refuse_unknown(
    variant_name: str,
    overrides: dict[str, object],
    parameters: typing.Mapping[str, inspect.Parameter],
) -> None:
    empty = inspect.Parameter.empty
    known = [n for n, p in parameters.items() if p.default is not empty]
    for name in overrides:
        if name in known:
            continue
        if name in parameters:
            raise VariantError(
                f"{name!r} is an input of {variant_name}, not a hyperparameter",
                f"pass the tensor at the call: attention(q, k, v, {name}=...)",
            )
        near = get_close_matches(name, known, 1)
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise VariantError(
            f"{variant_name} has no hyperparameter {name!r}",
            f"did you mean {near[0]}?" if near else has,
        )


def _need_q_and_k(parameters: typing.Mapping[str, object], where: Where) -> None:
    missing = [name for name in ("q", "k") if name not in parameters]
    if missing:
        raise VariantError(
            f"every kernel takes q, k and v; the arguments lack {' and '.join(missing)}",
            "begin with q, k: def my_variant(q, k, ...)",
            where,
        )


def _check_inputs(traced: Variant) -> None:
    """Every declared input is used, and nothing else is."""
    used = {x for x in walk(traced.output) if isinstance(x, Input)}
    for x in traced.inputs:
        if x not in used and x.name not in ("q", "k"):
            raise VariantError(
                f"the input {x.name!r} is never used",
                "drop it: its gradient would be silently None",
                x.where,
            )
    for stray in sorted(used - set(traced.inputs), key=lambda x: x.name):
        raise VariantError(
            f"the formula holds the input {stray.name!r} of another variant",
            "pass it as an argument of this declaration",
            traced.where,
        )
