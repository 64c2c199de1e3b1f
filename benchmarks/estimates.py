"""Compare the estimates of steps with their measured time and memory.

    python benchmarks/estimates.py STORE [STORE …]

List the stores of earlier runs first. For every artifact with measurements the estimate is that of
a plan that knows all earlier runs on such hardware. The script prints the ratios of estimates to
measurements, and counts how many are within the promised factor, 1.5 for time and 1.2 for memory
and disk, or closer than an amount that no user decides by: two seconds, 128 MiB, 1 MiB of disk.
"""

import math
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence

from rich.console import Console

from benchmarks.measuring import table
from pipeline.base.text import clock, size
from pipeline.estimate.past_runs import PastRun, nearest, past_run, scaled, seconds_of
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store

PROMISED = {"seconds": 1.5, "memory": 1.2, "disk": 1.2}
FLOOR = {"seconds": 2.0, "memory": 128 * 2**20, "disk": 2**20}


def estimated(what: str, one: PastRun, earlier: Sequence[PastRun]) -> float | None:
    """What a plan says that knows the earlier runs of the step, the newest first."""
    like = [run for run in earlier if run.hardware.is_like(one.hardware)]
    if what == "seconds":
        return seconds_of(one.work, like)
    return scaled(what, one.needs.get(what), nearest(one.work, like))


def main(stores: Sequence[str]) -> None:
    earlier: dict[str, list[PastRun]] = {}
    pairs: dict[str, list[tuple[float, float]]] = {what: [] for what in PROMISED}
    compared = table("", "", "took", "memory", "disk", "time ×", "memory ×", "disk ×")
    for manifest in (m for url in stores for m in Catalog(Store(url)).everything()):
        if (one := past_run(manifest)) is None:
            continue
        before, cells = earlier.setdefault(manifest.step, []), []
        for what in PROMISED:
            said, real = estimated(what, one, before), one.took.get(what)
            cells.append(f"{said / real:.2f}" if said and real else "–")
            pairs[what] += [(said, real)] if said and real else []
        took = clock(one.took["seconds"]), size(one.took.get("memory", 0.0)), size(manifest.size)
        compared.add_row(manifest.step, *took, *cells)
        before.insert(0, one)
    Console(width=140).print(compared)
    for what, factor in PROMISED.items():
        within = [abs(math.log(said / real)) <= math.log(factor) for said, real in pairs[what]]
        close = [abs(said - real) <= FLOOR[what] for said, real in pairs[what]]
        either = sum(a or b for a, b in zip(within, close, strict=True))
        print(f"{what}: {sum(within)} of {len(within)} within {factor}×; {either} or closer")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="+", metavar="STORE")
    main(parser.parse_args().stores)
