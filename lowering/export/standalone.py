"""A variant as a folder of files that need torch and a kernel language, and not this package.

<name>.py             the function; kernels too where there is one target
<name>_<target>.py    kernels, launches, autograd function of each target, where there are several
<name>_reference.py   the same function in plain float64 torch
test_<name>.py        outputs and gradients of the one against the other
README.md             formula, provenance, how to run
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnomon.dsl.errors import InputError
from gnomon.lowering.emit.module import Module, print_module
from gnomon.lowering.emit.plain import print_reference
from gnomon.lowering.emit.signature_text import Signature
from gnomon.lowering.emit.text import INDENT, atom, call, docstring, statement
from gnomon.lowering.export.tests_text import print_tests

_DEVICES = {"numba": "cpu", "triton": "cuda"}
_NEEDS = {"numba": "numba, scipy and threadpoolctl", "triton": "triton and an NVIDIA or AMD GPU"}


@dataclass(frozen=True, slots=True)
class Standalone:
    """What is exported: one module for each target, all of the same program."""

    modules: Sequence[Module]

    @property
    def module(self) -> Module:
        """The one that names, formula and provenance are taken from."""
        if not self.modules:
            raise InputError("modules", "a module for each target", "none")
        return self.modules[0]

    @property
    def name(self) -> str:
        """The name of the variant."""
        return self.module.program.variant.name

    @property
    def targets(self) -> list[str]:
        """The targets in the order in which they were given."""
        return [module.target for module in self.modules]


def print_standalone(export: Standalone) -> Mapping[str, str]:
    """File name -> text."""
    name = export.name
    files = {}
    if len(export.modules) == 1:
        files[f"{name}.py"] = print_module(export.module)
    else:
        files[f"{name}.py"] = _entry(export)
        for module in export.modules:
            files[f"{name}_{module.target}.py"] = print_module(module)
    files[f"{name}_reference.py"] = _reference(export)
    files[f"test_{name}.py"] = _licensed(export, print_tests(export.module.program, export.targets))
    files["README.md"] = _readme(export)
    return files


def write_standalone(export: Standalone, folder: Path) -> list[Path]:
    """Write the files into a folder, made where it is missing; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in print_standalone(export).items():
        path = folder / name
        path.write_text(text)
        written.append(path)
    return written


def _licensed(export: Standalone, text: str) -> str:
    lines = [f"# {line}".rstrip() for line in export.module.provenance.licence.splitlines()]
    return "\n".join([*lines, text])


def _again(export: Standalone) -> str:
    command = export.module.provenance.command or "gnomon export"
    return "\n".join(textwrap.wrap(f"Do not edit: `{command}` writes it anew.", 96))


# ---- the files


def _entry(export: Standalone) -> str:
    """The function that goes to the kernels for the device of its tensors."""
    signature = Signature(export.module.program.variant)
    lines = docstring(
        f"{export.name}: attention on {' and '.join(_places(export))}\n\n{_again(export)}", 0
    )
    lines += ["", "from importlib import import_module", ""]
    devices = ", ".join(f'"{_DEVICES[target]}": "{target}"' for target in export.targets)
    lines += [f"TARGETS = {{{devices}}}", "", ""]
    lines += statement(f"def {export.name}", call("", *map(atom, signature.parameters)), 0, ":")
    lines += docstring(_entry_doc(signature), 1)
    lines += [f"{INDENT}target = TARGETS.get(q.device.type)", f"{INDENT}if target is None:"]
    wrong = 'f"q: expected a device of {list(TARGETS)}; got {q.device}"'
    lines += [f"{INDENT * 2}raise ValueError({wrong})"]
    lines += [f'{INDENT}package = f"{{__package__}}." if __package__ else ""']
    lines += [f'{INDENT}kernels = import_module(f"{{package}}{export.name}_{{target}}")']
    given = [x.split("=")[0] for x in signature.parameters if x != "*"]
    args = [*given[:3], *(f"{x}={x}" for x in given[3:])]
    lines += statement("return ", call(f"kernels.{export.name}", *map(atom, args)), 1)
    return _licensed(export, "\n".join(lines) + "\n")


def _entry_doc(signature: Signature) -> str:
    shapes = "\n".join(f"{x.name} {signature.shape(x)}" for x in signature.inputs)
    return f"{signature.formula}\n\n{shapes}"


def _places(export: Standalone) -> list[str]:
    words = {"numba": "CPUs (Numba)", "triton": "GPUs (Triton)"}
    return [words[target] for target in export.targets]


def _reference(export: Standalone) -> str:
    text = print_reference(export.module.program)
    what = f"{export.name} in plain torch, float64 and O(T^2)."
    lines = [*docstring(f"{what}\n\n{_again(export)}", 0), ""]
    lines += ["import math", ""] if "math." in text else []
    lines += ["import torch", *(["import torch.nn.functional as F"] * ("F." in text))]
    return _licensed(export, "\n".join([*lines, "", "", text]))


def _readme(export: Standalone) -> str:
    variant, origin = export.module.program.variant, export.module.provenance
    signature = Signature(variant)
    formula, _, rest = variant.formula.strip().partition("\n\n")
    needs = ", or ".join(_NEEDS[target] for target in export.targets)
    lines = [f"# {export.name}", "", *_indented(" ".join(formula.split())), ""]
    lines += [textwrap.fill(" ".join(rest.split()), 100), ""] if rest.strip() else []
    lines += ["```python", *_example(export, signature), "```", ""]
    lines += ["| argument | shape |", "|---|---|"]
    lines += [f"| `{x.name}` | {signature.shape(x)} |" for x in signature.inputs]
    lines += ["", _CALLS, ""]
    lines += [f"Needs torch, and {needs}. The tests: `python -m pytest test_{export.name}.py`.", ""]
    lines += [
        f"Made by gnomon {origin.version}".rstrip()
        + (f", variant {origin.digest}" * bool(origin.digest))
    ]
    lines[-1] += f", with `{origin.command}`." if origin.command else "."
    return "\n".join(lines) + "\n"


_CALLS = """Any strides; queries are the last tokens of their sequence. `cu_seqlens` packs sequences
(batch 1), `cu_seqlens_q` and `cu_seqlens_k` where queries and keys differ; `positions`
[batch, time_k] replaces 0, 1, 2, ... where the formula speaks of positions and no kernel counts
them. Gradients reach every floating point argument."""


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, 96, initial_indent="    ", subsequent_indent="    ")


def _example(export: Standalone, signature: Signature) -> list[str]:
    inputs = ", ".join(["q", "k", "v", *(f"{name}={name}" for name in signature.names)])
    return [f"from {export.name} import {export.name}", "", f"out = {export.name}({inputs})"]
