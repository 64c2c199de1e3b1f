"""Draws the DAG: igraph's layered layout (Sugiyama 1981) places the boxes, edges are SVG curves.

Wide graphs, such as sweeps, run from left to right, narrow ones from top to bottom. An edge from A
to C is left out if edges from A to B and from B to C imply it: most steps use outputs of much
earlier steps, and a picture with all of these edges would be unreadable.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BOX = (196.0, 46.0)  # wide enough for the longest name that is shown
GAPS = (18.0, 38.0)
"""Between boxes of a layer, and between layers."""
MARGIN = 6.0
WIDEST_DOWNWARD = 4

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    id: str
    x: float
    y: float


@dataclass(frozen=True)
class Drawing:
    """Boxes by their upper left corners, and edges as SVG paths."""

    width: float
    height: float
    boxes: Sequence[Box]
    edges: Sequence[str]


def draw(inputs: Mapping[str, Sequence[str]]) -> Drawing:
    """Lay out a graph.

    Args:
        inputs: the ids of each node's inputs, by the id of the node, in topological order. An input
            that does not come before its node is ignored.
    """
    from igraph import Graph

    ids, edges = list(inputs), _not_implied(_places(inputs))
    layout: Any = Graph(n=len(ids), edges=edges, directed=True).layout_sugiyama()
    widest = max(Counter(layer for _, layer in layout.coords).values(), default=0)
    downward = widest <= WIDEST_DOWNWARD
    every = [*layout.coords, *(bend for bends in layout.edge_routing for bend in bends)]
    first = min((column for column, _ in every), default=0.0)

    def centre(position: Point) -> Point:
        return _point((position[0] - first, position[1]), downward)

    centres = list(map(centre, layout.coords))
    ways = [
        [centres[start], *map(centre, bends), centres[end]]
        for (start, end), bends in zip(edges, layout.edge_routing, strict=True)
    ]
    return _drawing(ids, centres, ways, downward)


def _places(inputs: Mapping[str, Sequence[str]]) -> list[list[int]]:
    """The positions of each node's inputs; only inputs that come before the node."""
    place = {id: index for index, id in enumerate(inputs)}
    return [
        [place[i] for i in given if place.get(i, index) < index]
        for index, given in enumerate(inputs.values())
    ]


def _point(position: Point, downward: bool) -> Point:
    """The centre of the box at a column and layer, in the picture's coordinates."""
    column, layer = position
    if downward:
        x, y = column * (BOX[0] + GAPS[0]), layer * (BOX[1] + GAPS[1])
    else:
        x, y = layer * (BOX[0] + GAPS[1] * 0.9), column * (BOX[1] + GAPS[0] / 2)
    return x + MARGIN + BOX[0] / 2, y + MARGIN + BOX[1] / 2


def _drawing(
    ids: Sequence[str], centres: Sequence[Point], ways: Sequence[Sequence[Point]], downward: bool
) -> Drawing:
    every = [*centres, *(point for way in ways for point in way)]
    return Drawing(
        width=max((x for x, _ in every), default=0.0) + BOX[0] / 2 + MARGIN,
        height=max((y for _, y in every), default=0.0) + BOX[1] / 2 + MARGIN,
        boxes=[
            Box(id, x - BOX[0] / 2, y - BOX[1] / 2) for id, (x, y) in zip(ids, centres, strict=True)
        ],
        edges=[_path(way, downward) for way in ways],
    )


def _not_implied(above: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The edges of the transitive reduction.

    Args:
        above: the positions of each node's inputs.
    """
    reached: list[set[int]] = []  # by node, all of its ancestors
    edges = []
    for index, given in enumerate(above):
        implied = set().union(*(reached[i] for i in given))
        reached.append(implied | set(given))
        edges += [(i, index) for i in dict.fromkeys(given) if i not in implied]
    return edges


def _path(points: Sequence[Point], downward: bool) -> str:
    """A smooth line from the border of one box to the border of another."""

    def at(across: float, along: float) -> str:
        x, y = (across, along) if downward else (along, across)
        return f"{x:.1f},{y:.1f}"

    half = BOX[downward] / 2
    (across, along), *bends, end = (point if downward else point[::-1] for point in points)
    along += half
    path = [f"M{at(across, along)}"]
    for to_across, to_along in [*bends, (end[0], end[1] - half - 4)]:
        middle = (along + to_along) / 2
        path.append(f"C{at(across, middle)} {at(to_across, middle)} {at(to_across, to_along)}")
        across, along = to_across, to_along
    return "".join(path)
