"""Compare the estimates of steps with their measured time and memory.

    python benchmarks/estimates.py STORE [STORE …]

List the stores of earlier runs first. For every artifact with measurements the estimate is that of
a plan that knows all attempts of earlier runs on similar hardware, and the sizes of the step's
inputs. Times are compared as wall time, and as CPU seconds, which depend less on other load. The
estimate of CPU seconds is that of a run with one thread, because several threads share the work and
add up their time. Memory is that of an attempt that takes as long as this one did: a longer one
writes checkpoints. The script prints the ratios of estimates to measurements. The last lines count
how many are within the promised factor, 1.5 for time and 1.2 for memory, or closer than an amount
that no user decides by: two seconds, 128 MiB, 1 MiB of disk. Below that, a step is mostly the start
of its process.
"""

import math
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console

from benchmarks.measuring import table
from pipeline.price.experience import Experience, corrected, corrected_seconds, experience_of
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest
from pipeline.text import clock, size

PROMISED = {"seconds": 1.5, "cpu_seconds": 1.5, "memory": 1.2, "bytes": 1.2}
FLOOR = {"seconds": 2.0, "cpu_seconds": 2.0, "memory": 128 * 2**20, "bytes": 2**20}


def told(what: str, one: Experience, earlier: Sequence[Experience]) -> float | None:
    """The estimate of a plan that knows earlier attempts; ``None`` if there is no estimate."""
    foreseen = one.foreseen.get(what)
    if foreseen is None:
        return None
    like = [e for e in reversed(earlier) if e.is_like(one.hardware)]
    own = [e for e in like if e.step == one.step]
    if not what.endswith("seconds"):
        return corrected(foreseen, what, one.estimator, own)
    others = [e for e in like if e.step != one.step]
    overhead = one.foreseen.get("overhead", 0.0)
    return corrected_seconds(foreseen, overhead, one.estimator, own, others, what)


def main(stores: Sequence[str]) -> None:
    made: list[Manifest] = [m for url in stores for m in Catalog(Store(url)).everything()]
    by_run = groupby(made, lambda manifest: manifest.provenance.get("run"))
    earlier: list[Experience] = []
    compared_with: dict[str, list[tuple[float, float]]] = {what: [] for what in PROMISED}
    console = Console(width=140)
    for _, group in by_run:
        manifests = list(group)
        title = f"{manifests[0].provenance.get('experiment')}, knowing {len(earlier)} attempts"
        headings = ("took", "CPU", "memory", "disk", "time ×", "CPU ×", "memory ×", "disk ×")
        compared, of_run = table(title, "", *headings), list[Experience]()
        for manifest in manifests:
            if (one := experience_of(manifest)) is None:
                continue
            of_run.append(one)
            cells = []
            for what, measured in ((w, one.took.get(w)) for w in PROMISED):
                said = told(what, one, earlier)
                known = said is not None and measured is not None
                cells.append(f"{said / measured:.2f}" if known and said and measured else "–")
                if known and said and measured:
                    compared_with[what].append((said, measured))
            took = (clock(one.took["seconds"]), clock(one.took.get("cpu_seconds", 0.0)),
                    size(one.took.get("memory", 0.0)), size(manifest.size))  # fmt: skip
            compared.add_row(manifest.step, *took, *cells)
        console.print(compared)
        earlier += of_run
    for what, factor in PROMISED.items():
        pairs = compared_with[what]
        within = [abs(math.log(said / real)) <= math.log(factor) for said, real in pairs]
        close = [abs(said - real) <= FLOOR[what] for said, real in pairs]
        either = sum(map(max, within, close)) if pairs else 0
        console.print(f"{what}: {sum(within)} of {len(pairs)} within {factor}×; {either} or closer")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="+", metavar="STORE")
    main(parser.parse_args().stores)
