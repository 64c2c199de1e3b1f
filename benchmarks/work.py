"""The code that both sides of the benchmark share: the shape of the DAG and the work of a step."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FAN = 10


@dataclass(frozen=True)
class Node:
    """One step of the DAG.

    Attributes:
        stage: the index of its name.
        lane: the index of its chain.
        inputs: the positions of its inputs in the DAG.
    """

    stage: int
    lane: int
    inputs: Sequence[int]


def shape(steps: int, names: int) -> list[Node]:
    """A mixture of chains and fans, as in a large sweep: ``steps`` nodes with ``names`` names.

    Each lane is a chain with one step of every name except the last. In every ten lanes, nine also
    take the outputs of the first one at each stage. The last node takes the ends of all lanes.
    """
    stages = names - 1
    nodes: list[Node] = []
    for index in range(steps - 1):
        lane, stage = divmod(index, stages)
        before = [index - 1] if stage else []
        head = [(lane - lane % FAN) * stages + stage - 1] if stage and lane % FAN else []
        nodes.append(Node(stage, lane, [*before, *head]))
    ends = sorted({node.lane: index for index, node in enumerate(nodes)}.values())
    return [*nodes, Node(stages, 0, ends)]


def chain(steps: int, names: int) -> list[Node]:
    """Each node takes the one before; ten names take turns, as they do down an experiment."""
    stages = names - 1
    nodes = [Node(i % stages, i, [i - 1] if i else []) for i in range(steps - 1)]
    return [*nodes, Node(stages, 0, [steps - 2])]


def fan_in(steps: int, names: int) -> list[Node]:
    """The last node takes all other nodes, which have no inputs."""
    stages = names - 1
    return [*(Node(i % stages, i, []) for i in range(steps - 1)), Node(stages, 0, range(steps - 1))]


SHAPES = {"grid": shape, "chain": chain, "fan-in": fan_in}


def write_value(path: Path, value: int) -> dict[str, int]:
    """Write a small file; return the metrics of the step."""
    path.write_text(json.dumps(value))
    return {"value": value}
