"""What each shipped step makes of tiny inputs, beside what its release once made of them.

Users keep what a step of the same release made, however its code has changed. So a step whose
output changes must have its number in ``steps/releases.json`` raised. Then, and for a new step,
write its lines of the table anew; without names, those of all steps, which takes minutes:

    S=tests/support; PYTHONPATH=.:$S:$S/processes:$S/models:$S/outside \\
        python tests/contract/test_golden_outputs.py train_dpo evaluate

Texts, ids, counts and shapes must be equal. Processors round differently, so numbers with a
fraction are compared by one weighted sum for each field of a file, or for all its tensors. A change
of less than a thousandth of such a sum is not seen; nor is one that only other arguments show.
"""

import hashlib
import io
import json
import math
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from places import GOLDEN, REPOSITORY
from rich.console import Console
from safetensors.numpy import load_file
from shipped_calls import NOT_CALLED, calls_of_all_losses, calls_of_all_steps, write_inputs
from workers_here import instead_of_processes

from pipeline import run

TABLE = GOLDEN / "outputs.json"
RELEASES = REPOSITORY / "steps" / "releases.json"
NEW = "write the table anew, as the head of tests/contract/test_golden_outputs.py says"
ROUNDING = 1e-3
"""What processors may add to a sum, relative to the sum of sizes."""
Numbers = Mapping[str, Iterable[float]]
"""By field."""


def summary(folder: Path) -> dict[str, Any]:
    """The digest of what must be equal, and of each field of each file the sum of its numbers."""
    equal, sums = hashlib.sha256(), dict[str, list[float]]()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(file.relative_to(folder))
        exact, numbers = _content(file)
        equal.update(json.dumps([name, exact]).encode())
        for field, of in numbers.items():
            values = np.fromiter(of, np.float64)
            weighted = values @ np.cos(np.arange(values.size))  # sees swapped numbers and signs
            sizes = np.abs(values).sum()
            sums[f"{name} {field}".strip()] = [float(f"{v:.5g}") for v in (weighted, sizes)]
    return {"digest": equal.hexdigest()[:16], "sums": sums}


def _content(file: Path) -> tuple[Any, Numbers]:
    """What must be equal in a file, and its numbers with a fraction."""
    if file.suffix == ".safetensors":
        tensors = sorted(load_file(file).items())
        shapes = [[name, str(t.dtype), list(t.shape)] for name, t in tensors]
        return shapes, {"": np.concatenate([t.ravel().astype(np.float64) for _, t in tensors])}
    if file.suffix == ".parquet":
        return _without_numbers(pq.read_table(file).to_pylist())
    if file.name.endswith("config.json"):
        settings = json.loads(file.read_text("utf-8"))
        return {k: v for k, v in settings.items() if not _OF_RUN.search(k)}, {}
    if file.suffix in (".json", ".jsonl"):
        lines = file.read_text("utf-8").splitlines()
        text = lines if file.suffix == ".jsonl" else [" ".join(lines)]
        return _without_numbers([json.loads(line) for line in text])
    if file.suffix in (".md", ".png"):
        return "for people: names digests, versions and times", {}
    return hashlib.sha256(file.read_bytes()).hexdigest(), {}


def _without_numbers(value: Any) -> tuple[Any, Numbers]:
    numbers = defaultdict[str, list[float]](list)

    def rest(value: Any, name: str = "") -> Any:
        if isinstance(value, Mapping):
            return {key: rest(of, str(key)) for key, of in value.items() if not _OF_RUN.search(key)}
        if isinstance(value, list | tuple):
            return [rest(of, name) for of in value]
        if isinstance(value, float) and math.isfinite(value):
            numbers[name].append(value)
            return "number"
        return value if isinstance(value, str | int | None) else repr(value)

    return rest(value), numbers


NAME_WEIGHTS = {"train_online", "train_online_with_reward_model", "train_on_rollouts"}
"""Steps whose texts hold digests of weights, whose last bits depend on the machine's threads."""
_OF_RUN = re.compile(r"second|_version|memory|wall|flops|^(torch|transformers|weights)$")
"""Names of values that differ between two runs, installations or processors."""


def differences(module: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two summaries of a step's output by more than rounding."""
    same = was["digest"] == now["digest"] or module in NAME_WEIGHTS
    found = [] if same else ["its rows, texts or names"]
    for name in sorted(was["sums"].keys() | now["sums"].keys()):
        old, new = was["sums"].get(name, [0.0, 0.0]), now["sums"].get(name, [0.0, 0.0])
        most = ROUNDING * max(old[1], new[1]) + 1e-6
        if any(abs(o - n) > most for o, n in zip(old, new, strict=True)):
            found.append(f"the numbers in {name}")
    return found


def made_now(work: Path, modules: Collection[str] = ()) -> dict[str, Any]:
    """The summaries of the outputs of these steps, or of all."""
    (data := work / "data").mkdir()
    write_inputs(data)
    calls = calls_of_all_steps(data) | calls_of_all_losses(data)
    calls = {name: call for name, call in calls.items() if not modules or _module(name) in modules}
    made = run(calls, str(work / "store"), console=Console(file=io.StringIO()))
    return {name: summary(made[name].path) for name in calls}


def test_every_shipped_step_is_called() -> None:
    table, releases = (json.loads(file.read_text("utf-8")) for file in (TABLE, RELEASES))
    called = {_module(name) for name in table["outputs"]}
    missing, gone = releases.keys() - called - NOT_CALLED.keys(), called - releases.keys()
    advice = f"call it in tests/support/models/shipped_calls.py, then {NEW}"
    assert not missing, f"{', '.join(sorted(missing))} has no golden output: {advice}"
    assert not gone, f"{', '.join(sorted(gone))} is no shipped step: {NEW}"
    assert not called & NOT_CALLED.keys()


@pytest.mark.slow
def test_a_release_makes_what_it_always_made(tmp_path: Path, workers_here: None) -> None:
    table, releases = (json.loads(file.read_text("utf-8")) for file in (TABLE, RELEASES))
    if table["torch"] != _torch():
        pytest.skip(f"the table was written with torch {table['torch']}: run it there")
    now, said = made_now(tmp_path), []
    assert now.keys() == table["outputs"].keys(), NEW
    for name, (release, was) in table["outputs"].items():
        module = _module(name)
        if release != releases[module]:
            said.append(f"the release of {module} is {releases[module]}, and was {release}: {NEW}")
        elif found := differences(module, was, now[name]):
            said.append(
                f"{name} makes another output ({', '.join(found)}) under the same release: undo "
                f"the change, or raise the number of {module} in steps/releases.json, so that "
                "users' steps run again"
            )
    assert not said, "\n".join(said)


def _module(name: str) -> str:
    return name.partition(" ")[0]


def _torch() -> str:
    """The version, whose initial weights other versions need not draw, without the build."""
    return torch.__version__.partition("+")[0]


def _write_anew(modules: Collection[str]) -> None:
    releases = json.loads(RELEASES.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as work, pytest.MonkeyPatch.context() as patch:
        instead_of_processes(patch)
        made = made_now(Path(work), modules)
    outputs = json.loads(TABLE.read_text("utf-8"))["outputs"] if modules else {}
    outputs |= {name: [releases[_module(name)], of] for name, of in made.items()}
    rows = ",\n".join(f"  {json.dumps(n)}: {json.dumps(outputs[n])}" for n in sorted(outputs))
    TABLE.write_text(f'{{\n "torch": "{_torch()}",\n "outputs": {{\n{rows}\n }}\n}}\n', "utf-8")


if __name__ == "__main__":
    _write_anew(sys.argv[1:])
