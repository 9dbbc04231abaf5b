"""Places the boxes of a directed graph without cycles in layers, left to right.

    layers    a box stands one layer before the first of those that use it
    order     sweeps by the mean place of the neighbours, so that few edges cross
    heights   each box as near to its neighbours as the gaps allow (isotonic regression)

Long edges pass through the layers between by points of their own, so that no edge runs under a box.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import networkx as nx

SWEEPS = 12
GAP_X, GAP_Y, LANE, PORT = 56.0, 18.0, 4.0, 11.0

Size = tuple[float, float]
Joint = tuple[str, str, int]  # where the edge (from, to) passes a layer


@dataclass(frozen=True, slots=True)
class Placed:
    """Left upper corners of the boxes, the points of each edge, and the size of it all."""

    corners: dict[str, tuple[float, float]]
    edges: dict[tuple[str, str], list[tuple[float, float]]]
    size: Size


def place(graph: "nx.DiGraph[str]", sizes: Mapping[str, Size]) -> Placed:
    """Coordinates for a graph whose nodes have the given widths and heights."""
    layer = _layers(graph)
    routed, paths = _routed(graph, layer)
    columns = _ordered(routed)
    heights = {n: sizes[n][1] if isinstance(n, str) else LANE for n in routed}
    middle = _heights(routed, columns, heights)
    top = min(middle[n] - heights[n] / 2 for n in routed)
    middle = {n: y - top for n, y in middle.items()}
    spans, width = _spans(columns, sizes)
    corners = {}
    for n in graph:
        left, right = spans[layer[n]]
        corners[n] = ((left + right - sizes[n][0]) / 2, middle[n] - sizes[n][1] / 2)
    ports = _ports(paths, middle, sizes)
    edges = {}
    for (start, end), joints in paths.items():
        points = [(corners[start][0] + sizes[start][0], middle[start])]
        points.append((spans[layer[start]][1], middle[start]))
        for joint in joints:
            points += [(x, middle[joint]) for x in spans[joint[2]]]
        points.append((spans[layer[end]][0], ports[start, end]))
        points.append((corners[end][0], ports[start, end]))
        edges[start, end] = points
    return Placed(corners, edges, (width, max(middle[n] + heights[n] / 2 for n in routed)))


def _ports(
    paths: Mapping[tuple[str, str], list[Joint]],
    middle: Mapping[str | Joint, float],
    sizes: Mapping[str, Size],
) -> dict[tuple[str, str], float]:
    """Where each edge meets the left side of its box: one below the other, as they come."""
    coming: dict[str, list[tuple[float, tuple[str, str]]]] = {}
    for (start, end), joints in paths.items():
        last = middle[joints[-1]] if joints else middle[start]
        coming.setdefault(end, []).append((last, (start, end)))
    ports = {}
    for end, edges in coming.items():
        step = min(PORT, sizes[end][1] / (len(edges) + 1))
        for n, (_, edge) in enumerate(sorted(edges)):
            ports[edge] = middle[end] + (n - (len(edges) - 1) / 2) * step
    return ports


def _layers(graph: "nx.DiGraph[str]") -> dict[str, int]:
    """As near to the result as the longest path from it allows."""
    before: dict[str, int] = {}
    for node in nx.lexicographical_topological_sort(graph.reverse(), key=list(graph).index):
        before[node] = max((before[c] + 1 for c in graph.successors(node)), default=0)
    first = max(before.values())
    return {node: first - steps for node, steps in before.items()}


def _routed(
    graph: "nx.DiGraph[str]", layer: Mapping[str, int]
) -> tuple["nx.DiGraph[str | Joint]", dict[tuple[str, str], list[Joint]]]:
    """The graph with a joint wherever an edge passes a layer, and the joints of each edge."""
    routed: nx.DiGraph[str | Joint] = nx.DiGraph()
    for node in graph:
        routed.add_node(node, layer=layer[node])
    paths: dict[tuple[str, str], list[Joint]] = {}
    for start, end in graph.edges:
        joints = [(start, end, n) for n in range(layer[start] + 1, layer[end])]
        paths[start, end] = joints
        for joint in joints:
            routed.add_node(joint, layer=joint[2])
        nx.add_path(routed, [start, *joints, end])
    return routed, paths


def _ordered(routed: "nx.DiGraph[str | Joint]") -> list[list[str | Joint]]:
    """The layers, each from top to bottom: the order of the sweep with the fewest crossings."""
    count = 1 + max(routed.nodes[n]["layer"] for n in routed)
    columns: list[list[str | Joint]] = [[] for _ in range(count)]
    for node in routed:
        columns[routed.nodes[node]["layer"]].append(node)
    best, fewest = [list(c) for c in columns], _crossings(routed, columns)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        neighbours = routed.predecessors if forward else routed.successors
        for column in columns if forward else reversed(columns):
            _sort(column, neighbours, columns)
        crossings = _crossings(routed, columns)
        if crossings < fewest:
            best, fewest = [list(c) for c in columns], crossings
    return best


def _sort(
    column: list[str | Joint],
    neighbours: Callable[[str | Joint], object],
    columns: Sequence[Sequence[str | Joint]],
) -> None:
    rank = {n: k for c in columns for k, n in enumerate(c)}
    mean = {
        n: fmean(rank[m] for m in near) if (near := list(neighbours(n))) else float(rank[n])  # type: ignore[call-overload]
        for n in column
    }
    column.sort(key=lambda n: (mean[n], rank[n]))


def _crossings(routed: "nx.DiGraph[str | Joint]", columns: Sequence[Sequence[str | Joint]]) -> int:
    rank = {n: k for c in columns for k, n in enumerate(c)}
    total = 0
    for column in columns:
        ends = [(rank[a], rank[b]) for a in column for b in routed.successors(a)]
        total += sum(
            (a - c) * (b - d) < 0 for n, (a, b) in enumerate(ends) for c, d in ends[n + 1 :]
        )
    return total


def _heights(
    routed: "nx.DiGraph[str | Joint]",
    columns: Sequence[Sequence[str | Joint]],
    heights: Mapping[str | Joint, float],
) -> dict[str | Joint, float]:
    """The middle of every box and joint."""
    middle: dict[str | Joint, float] = dict.fromkeys(routed, 0.0)
    for sweep in range(2 * SWEEPS):
        order = columns if sweep % 2 == 0 else columns[::-1]
        for column in order:
            wanted = []
            for node in column:
                near = [*routed.predecessors(node), *routed.successors(node)]
                wanted.append(fmean(middle[n] for n in near) if near else middle[node])
            middle.update(zip(column, _spread(wanted, column, heights), strict=True))
    return middle


def _spread(
    wanted: Sequence[float], column: Sequence[str | Joint], heights: Mapping[str | Joint, float]
) -> list[float]:
    """The nearest places to the wanted ones in this order that keep the gaps."""
    offsets = [0.0]
    for above, below in pairwise(column):
        offsets.append(offsets[-1] + (heights[above] + heights[below]) / 2 + GAP_Y)
    pools: list[list[float]] = []
    for value in (w - o for w, o in zip(wanted, offsets, strict=True)):
        pools.append([value])
        while len(pools) > 1 and fmean(pools[-2]) >= fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    flat = [fmean(pool) for pool in pools for _ in pool]
    return [value + offset for value, offset in zip(flat, offsets, strict=True)]


def _spans(
    columns: Sequence[Sequence[str | Joint]], sizes: Mapping[str, Size]
) -> tuple[list[tuple[float, float]], float]:
    """Where each layer begins and ends, and the width of all."""
    spans, x = [], 0.0
    for column in columns:
        width = max((sizes[n][0] for n in column if isinstance(n, str)), default=0.0)
        spans.append((x, x + width))
        x += width + GAP_X
    return spans, x - GAP_X
