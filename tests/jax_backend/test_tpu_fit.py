"""A step compiled for TPUs and GPUs that are not there, at toy size."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

from tiny_models import llama, model_folder


def _needs(package: str, extra: str) -> pytest.MarkDecorator:
    is_missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(is_missing, reason=f"the extra temper-ml[{extra}] is not installed")


needs_libtpu, needs_cuda = _needs("libtpu", "tpu"), _needs("jax_cuda12_plugin", "cuda")

SCRIPT = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from steps.jax_backend.fitting.fit import Step, compile_step

found = {}
for topology in sys.argv[2:]:
    step = Step(128, 64, kernel=topology.startswith("v5p"))
    fit = compile_step(Path(sys.argv[1]), topology, step)
    found[topology] = {"chips": fit.chips, "flops": fit.flops, "fits": fit.fits, "peak": fit.peak}
    found[topology]["programs"] = [asdict(program) for program in fit.programs]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "targets",
    [
        pytest.param(["v5e:2x2", "v5p:2x2x1"], marks=needs_libtpu),
        pytest.param(["a100:4", "b200:4"], marks=needs_cuda),
    ],
)
def test_a_training_step_compiles_for_devices_that_are_not_there(
    tmp_path: Path, targets: list[str]
) -> None:
    policy = model_folder(tmp_path, lambda: llama(tied=False, intermediate=256))
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(policy), *targets],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    for found in json.loads(ran.stdout.splitlines()[-1]).values():
        assert found["chips"] == 4
        assert found["fits"] is True
        assert [p["name"] for p in found["programs"]] == ["forward", "backward", "update"]
        for program in found["programs"][:2]:  # weights are in pieces: they are gathered
            assert program["collectives"]["all-gather"] > 0
        # The update holds a quarter of weights, two moments and a gradient, laid out in tiles.
        parameters = 2 * 64 * 16 + 2 * (16 * 16 * 2 + 16 * 8 * 2 + 3 * 16 * 256 + 2 * 16) + 16
        whole = 4 * 4 * parameters
        assert whole / 4 <= found["programs"][2]["arguments"] < whole


def test_the_report_says_what_each_program_takes_and_whether_it_fits() -> None:
    from steps.jax_backend.command import GIB, report
    from steps.jax_backend.fitting.fit import Fit, Program

    forward = Program("forward", 4 * GIB, 2 * GIB, GIB, 0, {"all-gather": 3}, 12.0)
    backward = Program("backward", 7 * GIB, 4 * GIB, 2 * GIB, 4 * GIB, {}, 34.0)
    update = Program("update", 16 * GIB, 12 * GIB, GIB, 12 * GIB, {"all-reduce": 1}, 5.0)
    fit = Fit("v5e:2x4", 8, 10**9, (forward, backward, update), 16 * GIB, 2e12)
    # Beside the forward lie two moments and a gradient, beside the backward the moments.
    assert [fit.beside(program) // GIB for program in fit.programs] == [12, 8, 0]
    assert (fit.peak // GIB, fit.fits) == (19, False)
    said = report(fit, 2048, 1024)
    assert "8 devices, 1.000 B parameters, a pack of 2048 tokens (1024 scored) a device" in said
    assert "3 all-gather; 12" in said
    assert said.endswith("at most 19.00 GiB a device of 16: it does not fit")
