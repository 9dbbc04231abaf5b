"""What a search found, for a person: tables of the best, what was dropped by which rule, a plot."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gnomon.autotune.offline import Ranking
from gnomon.autotune.online import Outcome, Race
from gnomon.autotune.space import Point
from gnomon.autotune.store import Difference
from gnomon.runtime.configs import Chosen

SHOWN = 5


def tiles(point: Mapping[str, int]) -> str:
    """128 x 64, 8 warps, 3 stages."""
    rest = {k: v for k, v in point.items() if k not in ("BM", "BN", "num_warps", "num_stages")}
    parts = [f"{point['BM']} x {point['BN']}"] if "BM" in point and "BN" in point else []
    parts += [
        f"{point[name]} {word}"
        for name, word in (("num_warps", "warps"), ("num_stages", "stages"))
        if name in point
    ]
    return ", ".join([*parts, *(f"{name} {value}" for name, value in rest.items())])


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < 1 else "right", no_wrap=place < 1)
    return table


# ---- offline


def offline(rankings: Sequence[Ranking]) -> RenderableType:
    """For each kernel its best by the model, then what was dropped and why."""
    parts: list[RenderableType] = []
    for ranking in rankings:
        parts += [_ranked(ranking), Text()]
    parts.append(dropped(rankings))
    waiting = sum(r.waiting for r in rankings)
    if waiting:
        parts.append(Text(f"{waiting} points were not compiled: the budget was over", "yellow"))
    return Group(*parts)


def _ranked(ranking: Ranking) -> Table:
    task, found = ranking.task, ranking.ranked
    title = f"{task.variant}, {task.role}: {len(found)} points fit"
    columns = ("tiles", "modelled", "limited by", "programs", "shared", "registers", "spills")
    table = _table(title, *columns)
    for place, candidate in enumerate(found[:SHOWN]):
        needs = candidate.estimate.needs
        table.add_row(
            Text(tiles(candidate.point), "green" if place == 0 else ""),
            _time(candidate.microseconds),
            candidate.estimate.limit,
            str(candidate.estimate.resident),
            f"{needs.shared / 1024:.0f} KiB",
            str(needs.registers),
            f"{needs.spills} B" if needs.spills else "",
        )
    if not found:
        table.add_row(Text("nothing fits", "red"))
    return table


def dropped(rankings: Sequence[Ranking]) -> Table:
    """Rule, how many points it took out in each kernel, and one of the reasons."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    example: dict[str, str] = {}
    for ranking in rankings:
        for refusal in ranking.refusals:
            counts[refusal.rule][ranking.task.role] += 1
            example.setdefault(refusal.rule, f"{tiles(refusal.point)}: {refusal.reason}")
        if ranking.left_out:
            counts["beyond the best 64"][ranking.task.role] += ranking.left_out
            example.setdefault("beyond the best 64", "by the model, before compiling")
    roles = list(dict.fromkeys(r.task.role for r in rankings))
    table = _table("dropped", "rule", *roles, "for example")
    table.columns[-1].justify = "left"
    for rule, count in counts.items():
        table.add_row(rule, *(str(count[role] or "") for role in roles), Text(example[rule]))
    return table


# ---- online


def online(outcome: Outcome) -> RenderableType:
    """For each kernel the winner, how sure it is, and what else there was."""
    title = f"{outcome.plan.problem} on {outcome.plan.device.id}"
    table = _table(title, "kernel", "tiles", "median", "range", "in use", "ties", "timed", "failed")
    for race in outcome.races:
        table.add_row(race.task.role, *_raced(race, outcome))
    lines: list[RenderableType] = [table]
    if outcome.stopped:
        text = f"{outcome.stopped}: what was measured is kept, running again continues"
        lines.append(Text(text, "yellow"))
    return Group(*lines)


def _raced(race: Race, outcome: Outcome) -> list[RenderableType]:
    failed = ", ".join(f"{count} {kind}" for kind, count in race.failures().items())
    timed = str(sum(bool(e.samples) for e in race.entries.values()))
    pick = next((p for p in outcome.picks if p.key == race.task.key), None)
    if pick is None:
        trouble = Text(race.trouble or "not decided", "red" if race.trouble else "yellow")
        return [trouble, "", "", "", "", timed, failed]
    facts = pick.evidence
    in_use = facts.get("in_use_us")
    return [
        Text(tiles(pick.tiles), "green"),
        _time(facts["median_us"]),
        f"{_time(facts['low_us'])} to {_time(facts['high_us'])}",
        "" if in_use is None else f"{in_use / facts['median_us']:.3f}",
        str(len(pick.ties) or ""),
        timed,
        failed,
    ]


def line(step: str, outcome: Outcome, left: float) -> str:
    """What happens now, in one line: the best of each kernel, failures, time left."""
    parts = []
    failures: Counter[str] = Counter()
    for race in outcome.races:
        alive = race.alive()
        launched = sum(e.launched for e in race.entries.values())
        best = f"{_time(alive[0].median)}" if alive else "-"
        gain = ""
        if alive and race.in_use.samples:
            gain = f" ({race.in_use.median / alive[0].median:.2f}x)"
        parts.append(f"{race.task.role} {launched}/{len(race.entries)} {best}{gain}")
        failures.update(race.failures())
    failed = ", ".join(f"{count} {kind}" for kind, count in failures.items())
    end = f"; failed: {failed}" if failed else ""
    return f"{outcome.plan.problem}: {step}; {'; '.join(parts)}{end}; {max(left, 0):.0f} s left"


def _time(microseconds: float) -> str:
    if microseconds >= 1000:
        return f"{microseconds / 1000:.3f} ms"
    return f"{microseconds:.1f} us"


# ---- why


def explained(chosen: Mapping[str, Chosen], losers: Mapping[str, Sequence[str]]) -> RenderableType:
    """For each kernel its tiles, the step of the look-up that gave them, and what lost."""
    table = _table("", "kernel", "tiles", "why")
    for column in table.columns[1:]:
        column.justify = "left"
    for name, each in chosen.items():
        why = Text(each.reason)
        if each.found is not None:
            facts = ", ".join(f"{n} {v:g}" for n, v in each.found.pick.evidence.items())
            why.append(f"\n{facts}" if facts else "", "dim")
            for tie in each.found.pick.ties:
                why.append(f"\ntie: {tiles(tie)}", "dim")
        for loser in losers.get(name, ()):
            why.append(f"\n{loser}", "dim")
        table.add_row(name, tiles(each.tiles.numbers("triton")), why)
    return table


def differences(found: Sequence[Difference], names: tuple[str, str]) -> RenderableType:
    """The keys for which two stores have other tiles."""
    table = _table("", "kernel", "shape", "device", *names)
    for column in table.columns[1:]:
        column.justify = "left"
    for each in found:
        pick = each.first or each.second
        assert pick is not None
        shape = f"{pick.key.widths} {pick.key.io} T={pick.key.length} G={pick.key.groups}"
        cells = [
            "-" if p is None else _with_time(p.tiles, p.evidence) for p in (each.first, each.second)
        ]
        table.add_row(f"{pick.variant} {pick.key.role}", shape, pick.device.id, *cells)
    return table


def _with_time(point: Point, evidence: Mapping[str, float]) -> str:
    time = evidence.get("median_us", evidence.get("modelled_us"))
    return tiles(point) + ("" if time is None else f": {_time(time)}")


# ---- the landscape


def plot(
    rankings: Sequence[Ranking],
    path: Path,
    samples: Mapping[Any, Mapping[Any, float]] | None = None,
) -> None:
    """Write a picture: a panel for each kernel, time against the area of a tile.

    Colour is the number of warps, the marker that of stages; crosses are points that were dropped
    after compiling. `samples`: key -> tiles (as items) -> measured microseconds, drawn in black.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(4.2 * len(rankings), 4.0), layout="constrained")
    axes = figure.subplots(1, len(rankings), squeeze=False)[0]
    for ax, ranking in zip(axes, rankings, strict=True):
        _panel(ax, ranking, (samples or {}).get(ranking.task.key, {}))
    axes[0].set_ylabel("modelled time of a launch, ms")
    handles: list[Any] = [
        axes[0].scatter([], [], marker=_MARKERS[n], color="grey", label=f"{n} stage{'s' * (n > 1)}")
        for n in (1, 2, 3, 4)
    ]
    handles += [Patch(color=colour, label=f"{n} warps") for n, colour in _COLOURS.items()]
    axes[-1].legend(handles=handles, fontsize=7, loc="upper right")
    figure.savefig(path, dpi=120)


_MARKERS = {1: "o", 2: "^", 3: "s", 4: "D"}
_COLOURS = {4: "tab:blue", 8: "tab:orange"}


def _panel(ax: Any, ranking: Ranking, measured: Mapping[Any, float]) -> None:
    best = ranking.best
    shapes = sorted({(c.point["BM"], c.point["BN"]) for c in ranking.guesses})
    places = {shape: place for place, shape in enumerate(shapes)}
    for candidate in ranking.ranked:
        point = candidate.point
        x = places[point["BM"], point["BN"]] + 0.12 * (point["num_stages"] - 2.5)
        y = candidate.microseconds / 1e3
        colour = _COLOURS.get(point["num_warps"], "tab:green")
        ax.scatter([x], [y], marker=_MARKERS.get(point["num_stages"], "o"), color=colour, s=22)
        if candidate is best:
            ax.scatter([x], [y], s=160, facecolors="none", edgecolors="tab:green", linewidths=2)
        time = measured.get(frozenset(point.items()))
        if time is not None:
            ax.plot([x, x], [y, time / 1e3], color="black", linewidth=0.6)
            ax.scatter([x], [time / 1e3], color="black", s=8)
    ax.set_xticks(range(len(shapes)), [f"{m}x{n}" for m, n in shapes], rotation=60, fontsize=7)
    ax.set_title(f"{ranking.task.variant} {ranking.task.role}", fontsize=9)
    ax.set_xlabel("queries x keys of a tile", fontsize=8)
