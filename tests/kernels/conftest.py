"""Figures of every comparison: printed, judged, and summed up at the end of the session.

With GNOMON_KERNEL_SUMMARY=FILE in the environment the summary is written there as JSON:
{device, versions, commit, tests, seconds, comparisons, worst: [{tensor, dtype, error, bound, ...}]}
"""

import os
from pathlib import Path

import pytest
from kernel_calls import Judge
from kernel_summary import Summary

from gnomon.benchmarks.machine import commit
from gnomon.runtime.check import Record

# read now, and taken away: the package refuses settings that are not its own
SUMMARY_FILE = os.environ.pop("GNOMON_KERNEL_SUMMARY", None)
COMMIT = commit() if SUMMARY_FILE else ""
SUMMARY = Summary()


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Judge:
    """Prints and keeps each figure; fails where an error is beyond its bound."""

    def judged(records: list[Record]) -> None:
        assert records, "nothing was compared"
        for each in records:
            print(f"{each.tensor:>12}  error {each.error:.2e}  bound {each.bound:.0e}  {each.case}")
        kept = [[each.tensor, each.dtype, each.error, each.bound] for each in records]
        request.node.user_properties.append(("figures", kept))
        wrong = [each for each in records if not each.passed]
        assert not wrong, "\n".join(
            f"{each.case}, {each.dtype}, {each.tensor}: error {each.error:.3e}, "
            f"bound {each.bound:.1e} {each.note}"
            for each in wrong
        )

    return judged


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Reports of all workers arrive here, in the process that started them."""
    if "tests/kernels/" in report.nodeid:
        SUMMARY.add(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table; the file where one is asked for."""
    if not SUMMARY.comparisons:
        return
    terminalreporter.section("kernels against the float64 oracle")
    for line in SUMMARY.table():
        terminalreporter.write_line(line)
    if SUMMARY_FILE:
        SUMMARY.write(Path(SUMMARY_FILE), COMMIT)
        terminalreporter.write_line(f"written to {SUMMARY_FILE}")
