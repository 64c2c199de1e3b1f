"""A step compiled for TPUs and GPUs that are not there, at toy size."""

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

from priced_steps import write_rows
from tiny_models import llama, model_folder
from typer.testing import CliRunner
from waiting import HANGS_SECONDS

from pipeline.price.estimator import Call, Foreseen, Hardware
from steps.jax_backend.config import JaxTraining
from steps.jax_backend.fitting import fit
from steps.prices import model_sizes, of_tpus, of_training
from steps.training.config import TrainConfig


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


@pytest.mark.slow
def test_a_plan_starts_the_compiler_once_and_a_run_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_libtpu = importlib.util.find_spec("libtpu") is not None
    monkeypatch.setattr(of_tpus, "find_spec", lambda _: object())
    monkeypatch.setattr(of_tpus, "place", lambda kind, about: tmp_path / kind / "ab" / "c.json")
    monkeypatch.setattr(of_tpus, "_started", {})
    if not has_libtpu:
        monkeypatch.setattr(of_tpus, "_compiler", list)
    saved = json.loads((model_folder(tmp_path / "model") / "config.json").read_bytes())
    sizes, model = model_sizes.of_config(saved), write_rows(1)
    arguments = {"init": model, "config": TrainConfig(backend=JaxTraining())}
    call = Call(arguments, lambda _: sizes, Hardware("v5litepod-4 chip", 4))

    planned = of_training.IMITATION.foresee(call)
    assert planned.note.endswith("plan again later")
    assert planned.wait is not None
    planned.wait(0)
    (begun,) = of_tpus._started.values()
    planned.wait(0)  # before the compiler has taken its lock
    assert list(of_tpus._started.values()) == [begun]
    planned.wait(24 * HANGS_SECONDS)  # it leaves the processors to everybody else
    known = of_training.IMITATION.foresee(call)
    assert known.wait is None
    if has_libtpu:
        assert 0 < (known.memory or 0) < (known.capacity or 0)
    else:
        assert known.note.startswith("does not compile for v5e:2x2: 'v5e:2x2' is none of the GPUs")


class CompilerHere:
    """In place of the process that compiles: it compiles when somebody waits for it."""

    def __init__(self, command: list[str], **_: Any) -> None:
        self.arguments, self.is_over = command[4:], False
        self.is_killed = False
        assert command[1:4] == ["-P", "-m", "steps.prices.of_tpus"]

    def __class_getitem__(cls, _: object) -> type["CompilerHere"]:
        return cls

    def poll(self) -> int | None:
        return 0 if self.is_over else None

    def wait(self, seconds: float) -> None:
        if not seconds:
            raise subprocess.TimeoutExpired("python", seconds)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["of_tpus", *self.arguments])
            patch.setattr(os, "nice", lambda _: 0)
            patch.delitem(sys.modules, "steps.prices.of_tpus")
            runpy.run_module("steps.prices.of_tpus", run_name="__main__")
        self.is_over = True

    def kill(self) -> None:
        self.is_killed = True


@pytest.fixture
def foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Foreseen]:
    """The estimate of a training on a TPU, with nothing known of it at first."""
    monkeypatch.setattr(of_tpus, "find_spec", lambda _: object())
    monkeypatch.setattr(of_tpus, "place", lambda kind, about: tmp_path / kind / "ab" / "c.json")
    monkeypatch.setattr(of_tpus, "_started", {})
    monkeypatch.setattr(of_tpus, "_compiler", list)
    monkeypatch.setattr(of_tpus.subprocess, "Popen", CompilerHere)
    saved = json.loads((model_folder(tmp_path / "model") / "config.json").read_bytes())
    sizes, model = model_sizes.of_config(saved), write_rows(1)
    arguments = {"init": model, "config": TrainConfig(backend=JaxTraining())}
    call = Call(arguments, lambda _: sizes, Hardware("v5litepod-4 chip", 4))
    return lambda: of_training.IMITATION.foresee(call)


def compiling(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[str]:
    """Let the compiler answer this, or raise it; return for what it is asked."""
    asked: list[str] = []

    def compile_step(folder: Path, topology: str, step: Any) -> Any:
        assert (folder / "config.json").exists()
        asked.append(topology)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(fit, "compile_step", compile_step)
    return asked


def waiting(foreseen: Callable[[], Foreseen]) -> Callable[[float], None]:
    planned = foreseen()
    assert planned.note.endswith("plan again later")
    assert planned.wait is not None
    return planned.wait


def test_a_plan_starts_one_compiler_and_what_it_says_is_kept(
    foreseen: Callable[[], Foreseen], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = compiling(monkeypatch, SimpleNamespace(peak=3 * 2**30, limit=16 * 2**30))
    wait = waiting(foreseen)
    wait(0)
    (begun,) = of_tpus._started.values()
    wait(0)  # it is at work
    assert list(of_tpus._started.values()) == [begun]
    assert not asked
    wait(HANGS_SECONDS)
    known = foreseen()
    assert (known.memory, known.capacity, known.wait) == (3 * 2**30, 16 * 2**30, None)
    (last,) = of_tpus._started.values()
    wait(HANGS_SECONDS)
    assert list(of_tpus._started.values()) == [last]  # nothing is left to compile
    last.wait(HANGS_SECONDS)  # one that another plan began meanwhile
    assert asked == ["v5e:2x2"]


def test_the_compiler_of_another_plan_is_not_doubled_and_one_that_is_interrupted_ends(
    foreseen: Callable[[], Foreseen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = waiting(foreseen)
    (tmp_path / "tpu" / "ab").mkdir(parents=True)
    with FileLock(tmp_path / "tpu" / "ab" / "c.lock"):
        wait(0)
    assert not of_tpus._started
    wait(0)
    (begun,) = of_tpus._started.values()

    def interrupt(self: CompilerHere, seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CompilerHere, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        wait(HANGS_SECONDS)
    (ended,) = of_tpus._started.values()
    assert ended is not begun
    assert ended.is_killed  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (fit.TooLarge("it takes 17.2 GiB of 16"), "does not fit: it takes 17.2 GiB of 16"),
        (ValueError("no such layer\nat 7"), "does not compile for v5e:2x2: no such layer"),
        (KeyError(), "does not compile for v5e:2x2: KeyError()"),
    ],
)
def test_what_the_compiler_cannot_make_is_told_and_kept(
    foreseen: Callable[[], Foreseen], monkeypatch: pytest.MonkeyPatch, error: Exception, note: str
) -> None:
    compiling(monkeypatch, error)
    waiting(foreseen)(HANGS_SECONDS)
    assert (foreseen().note, foreseen().memory) == (note, None)


def test_a_compiler_without_memory_of_its_own_has_said_nothing(
    foreseen: Callable[[], Foreseen], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling(monkeypatch, MemoryError())
    with pytest.raises(MemoryError):
        waiting(foreseen)(HANGS_SECONDS)
    waiting(foreseen)


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        pytest.param("v5p-8", "", marks=needs_libtpu),
        pytest.param("h100:12", "12 are no whole nodes of 8", marks=needs_cuda),
        pytest.param("a100:x", "give the number of GPUs, as in a100:8", marks=needs_cuda),
    ],
)
def test_a_target_that_is_not_known_is_an_error_that_names_some(
    tmp_path: Path, target: str, fault: str
) -> None:
    from steps.jax_backend.fitting.fit import Step, compile_step

    expected = rf"no TPU topology or GPUs '{target}' \(.*{fault}.*; names are like v5e:2x4"
    with pytest.raises(ValueError, match=expected):
        compile_step(model_folder(tmp_path), target, Step(128, 64))


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("h100:8", r"'h100:8' needs XLA's compiler for GPUs: pip install 'temper-ml\[cuda\]'"),
        ("v5e:2x4", r"TPU topologies need libtpu: pip install 'temper-ml\[tpu\]'"),
    ],
)
def test_without_its_compiler_a_target_s_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, target: str, said: str
) -> None:
    from steps.jax_backend.fitting import targets

    monkeypatch.setattr(targets, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=said):
        targets.mesh_of(target, 1)


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


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ([], "nowhere"),
        (["--tokens-per-forward", "0"], "tokens-per-forward"),
        (["--scored", "-3"], "scored"),
        (["--scored", "4096"], "of 2048 tokens_per_forward"),
        (["--slices", "0"], "slices"),
    ],
)
def test_what_the_command_cannot_take_is_named(wrong: list[str], named: str) -> None:
    import typer

    from steps.jax_backend.command import fit

    app = typer.Typer()
    app.command()(fit)
    said = CliRunner().invoke(app, ["train_dpo", "--on", "v5e:2x4", "--model", "nowhere", *wrong])
    assert said.exit_code == 2
    assert named in said.output
