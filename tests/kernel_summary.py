"""The summary of a session of kernel tests: counts, and the worst figure of each tensor."""

import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from gnomon.benchmarks.machine import device, versions

Figure = tuple[float, float, str]
"""Error, bound, test."""


@dataclass
class Summary:
    """Filled by the reports of tests, whose user property `figures` holds their comparisons."""

    outcomes: Counter[str] = field(default_factory=Counter)
    comparisons: int = 0
    worst: dict[tuple[str, str], Figure] = field(default_factory=dict)
    start: float = field(default_factory=time.monotonic)

    def add(self, report: pytest.TestReport) -> None:
        """Counts a test when it has run, been skipped, or failed on the way in or out."""
        if report.when != "call" and report.outcome == "passed":
            return
        expected = hasattr(report, "wasxfail")
        self.outcomes["expected to fail" if expected else report.outcome] += 1
        if report.when != "call" or expected:
            return
        for name, kept in report.user_properties:
            if name == "figures":
                self._take(kept, report.nodeid)

    def _take(self, kept: Any, test: str) -> None:
        for tensor, dtype, error, bound in kept:
            self.comparisons += 1
            known = self.worst.get((tensor, dtype))
            if known is None or _badness(error, bound) > _badness(*known[:2]):
                self.worst[tensor, dtype] = (error, bound, test)

    def table(self) -> Iterator[str]:
        """Lines for a person: q, k, v, the output, and the worst of all other gradients."""
        counts = ", ".join(f"{n} {word}" for word, n in sorted(self.outcomes.items()))
        yield f"{counts}; {self.comparisons} comparisons; error / bound where it is worst:"
        plain = ("out", "lse", "dq", "dk", "dv")
        lines: dict[tuple[str, str], Figure] = {}
        for (tensor, dtype), figure in self.worst.items():
            key = (tensor if tensor in plain else "other gradients", dtype)
            if key not in lines or _badness(*figure[:2]) > _badness(*lines[key][:2]):
                lines[key] = figure
        for (tensor, dtype), (error, bound, test) in sorted(lines.items()):
            yield f"{tensor:>16} {dtype}  {error:.1e} / {bound:.0e}  {test.rpartition('::')[2]}"

    def write(self, path: Path, commit: str) -> None:
        """The summary as JSON."""
        found = {
            "device": device("cuda" if torch.cuda.is_available() else "cpu"),
            "versions": versions(),
            "commit": commit,
            "tests": dict(sorted(self.outcomes.items())),
            "seconds": round(time.monotonic() - self.start),
            "comparisons": self.comparisons,
            "worst": [
                {
                    "tensor": tensor,
                    "dtype": dtype,
                    "error": float(f"{error:.3g}") if math.isfinite(error) else str(error),
                    "bound": bound,
                    "test": test,
                }
                for (tensor, dtype), (error, bound, test) in sorted(self.worst.items())
            ],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


def _badness(error: float, bound: float) -> float:
    """The share of the bound that an error takes; NaN is worse than anything."""
    return math.inf if math.isnan(error) else error / max(bound, 1e-30)
