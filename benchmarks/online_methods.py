"""Compare methods of online training on the harder task, at equal CPU cost, over seeds.

    python -m benchmarks.online_methods                       all presets, five seeds
    python -m benchmarks.online_methods --methods grpo raft --seeds 0 1 2

Each run is ``experiments/grpo_tools.py`` with one preset, on one thread and from the same SFT
model; seeds are those of the online part. Segments are judged on held-out sums. The cost is the CPU
time of the steps that train: all that a process of ``train_online`` spends, its start and the
judging of rewards included. The table compares runs at the cost of the cheapest one, between two
segments by linear interpolation, and gives means over the seeds with 95 % intervals of Student's t.
Runs take turns by seed. Cached runs are not repeated, so an interrupted comparison goes on.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Console

from benchmarks.measuring import table
from pipeline import results
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest

METHODS = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "raft", "online_dpo")
OWN = {"online_dpo": ["rl.method.loss.beta=1"]}
"""Settings of single methods: at a beta of 0.1, DPO moves far in few updates."""
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Student's t for a two-sided interval of 95 %, by the number of seeds."""

Curve = list[tuple[float, float]]
"""CPU seconds so far and the share of right answers, after SFT and after each segment."""


def run(asked: argparse.Namespace, method: str, seed: int) -> None:
    settings = [f"rl={method}", f"rl.seed={seed}", f"rl.minibatches={asked.minibatches}"]
    length = [f"iterations={asked.iterations}", f"segment={asked.segment}"]
    command = [sys.executable, "experiments/grpo_tools.py", *settings, *length]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TEMPER_STORE": asked.store}
    quiet = ["-q", *OWN.get(method, [])]
    subprocess.run([*command, *quiet], check=True, env=environment, stdout=subprocess.DEVNULL)


def curve(store: str) -> Curve:
    """The curve of the run that has just ended."""
    made = {manifest.key: manifest for manifest in Catalog(Store(store)).everything()}
    points = []
    for row in results("grpo_tools", store).to_pylist():
        cost = _cost(_above(_above(made[row["key"]], made, "sample_rollouts"), made), made)
        points.append((cost, row["right_share"]))
    return sorted(points)


def _above(
    below: Manifest | None, made: dict[str, Manifest], step: str = "train_online"
) -> Manifest | None:
    """The input of an artifact that a step of this name has made; None if there is none."""
    keys = [given.key for given in below.inputs if given.step == step] if below else []
    return made[keys[0]] if keys else None


def _cost(segment: Manifest | None, made: dict[str, Manifest]) -> float:
    """The CPU seconds of a segment and of all segments before it."""
    total = 0.0
    while segment is not None:
        total += segment.provenance["spent"]["cpu_seconds"]
        segment = _above(segment, made)
    return total


def at(cost: float, points: Curve) -> float:
    """The share of right answers at a cost, between two points by linear interpolation."""
    for (before, low), (after, high) in pairwise(points):
        if before <= cost <= after:
            return low + (high - low) * (cost - before) / (after - before)
    return points[-1][1]


def interval(values: Sequence[float]) -> str:
    mean = statistics.mean(values)
    if len(values) not in T_95:
        return f"{mean:.3f}"
    half = T_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.3f} ± {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5))
    parser.add_argument("--iterations", type=int, default=18)
    parser.add_argument("--segment", type=int, default=6)
    parser.add_argument("--minibatches", type=int, default=4, help="updates of each sampling")
    parser.add_argument("--store", default="store/online_methods")
    asked = parser.parse_args()
    Path(asked.store).mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[Curve]] = {method: [] for method in asked.methods}
    for seed in asked.seeds:
        for method in asked.methods:
            run(asked, method, seed)
            curves[method].append(curve(asked.store))
    budget = min(points[-1][0] for runs in curves.values() for points in runs)
    title = f"Right of the held-out sums; {len(asked.seeds)} seeds, {asked.minibatches} minibatches"
    shown = table(title, "", f"at {budget:.0f} CPU s", "at the end", "CPU s of all")
    for method, runs in curves.items():
        equal, end = [at(budget, points) for points in runs], [points[-1][1] for points in runs]
        spent = statistics.mean(points[-1][0] for points in runs)
        shown.add_row(method, interval(equal), interval(end), f"{spent:.0f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
