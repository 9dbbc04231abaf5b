"""The GPU results as Markdown: times beside the peers, targets, and what was not measured."""

from collections.abc import Iterable, Sequence
from typing import Any

from gnomon.benchmarks.targets import PLAIN, Record, Verdict, verdicts

PASSES = {"fwd": "forward", "fwd_bwd": "forward + backward"}
SHOWN_LENGTH = 8192
"""The length of the table of times, where it was measured; else the longest."""


def gpu_section(found: Any, name: str) -> str:
    """All of it; `name` is that of the file of results, and begins those of its plots."""
    records = found["records"]
    parts = [heading(found), times(records), targets(records), remarks(found)]
    pictures = [
        f"![{variant}: time and ratio to cuDNN](benchmarks/results/{name}_{variant}.png)"
        for variant in variants(records)
        if is_a_line(records)
    ]
    return "\n\n".join(part for part in [*parts, "\n".join(pictures)] if part)


def is_a_line(records: Sequence[Record]) -> bool:
    """Whether there is more than one length: time against length is a point else."""
    return len({record["T"] for record in records}) > 1


def heading(found: Any) -> str:
    """The device, the versions, the rule of measuring."""
    device, versions, rule = found["device"], found["versions"], found["protocol"]
    names = [f"{name} {versions[name]}" for name in ("torch", "triton", "driver") if versions[name]]
    dtypes = sorted({record["dtype"] for record in found["records"]})
    return (
        f"**GPU kernels beside their peers**, one {device['name']}, {', '.join(dtypes)}, causal; "
        f"{', '.join(names)}, commit `{found['commit']}`, `gnomon bench`: medians of "
        f"{rule['rounds']} interleaved rounds in one run. Ratios are to cuDNN's plain causal "
        "attention of the same shape, which has no position in its score."
    )


def variants(records: Iterable[Record]) -> list[str]:
    """The variants that have a kernel of ours, in the order in which they were asked for."""
    return list(dict.fromkeys(r["variant"] for r in records if r["implementation"] == "gnomon"))


def times(records: Sequence[Record]) -> str:
    """A row for each implementation: ms and ratio for each pass and width, at one length."""
    lengths = {record["T"] for record in records}
    if not lengths:
        return "No shape was measured."
    length = SHOWN_LENGTH if SHOWN_LENGTH in lengths else max(lengths)
    shown = [record for record in records if record["T"] == length]
    columns = list(dict.fromkeys((record["D"], record["pass"]) for record in shown))
    columns.sort(key=lambda column: (-column[0], list(PASSES).index(column[1])))
    titles = [f"D = {dim}, {PASSES[which]}" for dim, which in columns]
    lines = [
        f"At T = {length}, ms (ratio), and MiB of one call:",
        "",
        row(["variant", "implementation", *titles]),
        row(["---"] * (2 + len(titles))),
    ]
    found = {(r["variant"], r["implementation"], r["D"], r["pass"]): r for r in shown}
    for variant in dict.fromkeys(record["variant"] for record in shown):
        for implementation in dict.fromkeys(r["implementation"] for r in shown):
            cells = [found.get((variant, implementation, *column)) for column in columns]
            if any(cells):
                name = f"**{implementation}**" if implementation == "gnomon" else implementation
                lines.append(row([variant, name, *map(time_cell, cells)]))
    return "\n".join(lines)


def time_cell(record: Record | None) -> str:
    """The time, the ratio and the memory; or that it failed or is absent."""
    if record is None:
        return ""
    if record["median_ms"] is None:
        return "failed" if record.get("error") else "absent"
    ratio, peak = record["ratio_to_cudnn"], record["peak_mib"]
    shown = f"{record['median_ms']:.2f}"
    shown += f" ({ratio:.2f})" if ratio is not None else ""
    return shown + (f", {peak:.0f} MiB" if peak is not None else "")


def targets(records: Sequence[Record]) -> str:
    """The measured ratio beside the one that must be reached: met, or by how much it is missed."""
    found = verdicts(records)
    if not found:
        return ""
    columns = sorted(
        {(v.record["D"], v.record["T"]) for v in found}, key=lambda c: (-int(c[0]), int(c[1]))
    )
    titles = [f"D = {dim}, T = {length}" for dim, length in columns]
    met = sum(verdict.met for verdict in found)
    lines = [
        f"Targets, {met} of {len(found)} met: the ratio to cuDNN of our kernels, of the largest "
        "that is allowed (for learned parameters: to our plain attention).",
        "",
        row(["variant", "pass", *titles]),
        row(["---"] * (2 + len(titles))),
    ]
    cells = {
        (v.record["variant"], v.record["pass"], v.record["D"], v.record["T"]): v for v in found
    }
    for variant, which in dict.fromkeys((v.record["variant"], v.record["pass"]) for v in found):
        mine = [cells.get((variant, which, *column)) for column in columns]
        lines.append(row([variant, PASSES[which], *map(target_cell, mine)]))
    return "\n".join(lines)


def target_cell(verdict: Verdict | None) -> str:
    """A ratio, its target, and whether it is met."""
    if verdict is None:
        return ""
    shown = f"{verdict.ratio:.2f} of {verdict.must:.2f}"
    return f"{shown}, met" if verdict.met else f"**{shown}, missed by {verdict.missed_by:.2f}**"


def remarks(found: Any) -> str:
    """What has no time, with the reason; each reason once."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for record in found["records"]:
        for word in ("error", "absent"):
            if record.get(word):
                key = f"{record['implementation']} ({record['variant']})", word, record[word]
                place = f"T = {record['T']}, D = {record['D']}, {PASSES[record['pass']]}"
                lines.setdefault(key, []).append(place)
    rows = [f"- {name} {word}: {why}{_places(at)}" for (name, word, why), at in lines.items()]
    for left in found["left_out"]:
        place = f"T = {left['T']}, D = {left['D']}, {PASSES[left['pass']]}"
        rows.append(f"- not measured: {place}: {left['reason']}")
    return "\n".join(["Without a time:", "", *rows]) if rows else ""


def _places(places: Sequence[str]) -> str:
    """Where it was; not said of what was so in many places."""
    return f" ({'; '.join(places)})" if len(places) <= 2 else ""


def row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def lines_of(records: Iterable[Record], variant: str) -> list[tuple[str, str]]:
    """The (variant, implementation) in the plot of a variant; cuDNN's plain one comes last."""
    known = dict.fromkeys(
        (r["variant"], r["implementation"]) for r in records if r["median_ms"] is not None
    )
    mine = [key for key in known if key[0] == variant and key != (PLAIN, "cudnn")]
    return mine + [key for key in known if key == (PLAIN, "cudnn")]
