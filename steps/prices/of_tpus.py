"""Estimates of steps on a TPU slice: the memory of a chip by the TPU compiler, without a TPU.

    model's config, slice, settings  →  temper fit, in a process of its own  →  bytes a chip

Compiling takes minutes, so its answer is kept in the user's cache, by all that it depends on: these
inputs, the versions of JAX and libtpu, and the source of the JAX backend. A plan shows the answer.
If there is none yet, a plan starts that process and does not wait; a run waits for it, and ends it
when it is itself ended.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import blake3
from filelock import FileLock, Timeout

import steps.jax_backend
from pipeline.code.shelf import load, place, save
from pipeline.launchers.environment import import_path
from pipeline.price.estimator import Call, Foreseen, Sizes
from steps.models.config import Dtype

_CHIP = re.compile(r"(v4|v5p|v5e|v5litepod|v6e)-(\d+) chip")
_WITHOUT_SHAPES = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache",
                   "architectures", "bos_token_id", "eos_token_id")  # fmt: skip

_started: dict[Path, subprocess.Popen[Any]] = {}
"""The processes that this one started, by the place of their answer."""


def is_tpu(call: Call) -> bool:
    """Whether a step asks for a TPU slice."""
    return call.hardware.devices > 0 and call.hardware.model.endswith(" chip")


def on_tpu(call: Call, model: Sizes, config: Any, trains: bool, rewards: bool = False) -> Foreseen:
    """The memory of a chip while a step trains or scores, or a note why it is not known.

    Args:
        model: the sizes of its model, with the ``config`` of its folder.
        rewards: its model is a reward model.
    """
    backend: Any = getattr(config, "backend", None)
    topology = topology_of(call.hardware.model)
    if (named := getattr(backend, "name", "null (torch)")) != "jax":
        return Foreseen(note=f"asks for a TPU, but its backend is {named}: set backend=jax")
    if find_spec("jax") is None or find_spec("libtpu") is None:
        return Foreseen(note="for its memory on a TPU, pip install 'temper-ml[tpu]' and plan again")
    if topology is None:
        return Foreseen(note=f"the memory of a {call.hardware.model} is not known here")
    if getattr(config, "lora", None) is not None or backend.devices is not None:
        return Foreseen(note="its memory on a TPU is not known with lora or backend.devices")
    if not model.get("config"):
        return Foreseen(note="its memory on a TPU is known once its model has been imported")
    return _compiled(
        {
            "topology": topology,
            "config": {n: v for n, v in model["config"].items() if n not in _WITHOUT_SHAPES},
            "tokens_per_forward": config.tokens_per_forward,
            "step": {
                "dtype": str(Dtype(config.dtype)),
                "trains": trains,
                "master_weights": getattr(config, "master_weights", False),
                "recomputed": str(getattr(config, "activation_checkpointing", "none")),
                "kernel": backend.kernel,
                "rewards": rewards,
            },
            "by": _compiler(),
        }
    )


def topology_of(chip: str) -> str | None:
    """libtpu's name of a slice: ``v5p:2x2x2`` for ``v5p-16 chip``; None if its shape is unknown.

    The number of a v4 or v5p slice is of cores, two a chip. The chips of a slice of 2^n lie in two
    or, with v4 and v5p, in three dimensions that are as equal as possible.
    """
    if (found := _CHIP.fullmatch(chip)) is None:
        return None
    kind, dimensions = found[1].replace("litepod", "e"), 3 if found[1] in ("v4", "v5p") else 2
    chips = int(found[2]) // (dimensions - 1)
    if chips < 1 or chips & (chips - 1):
        return None
    twos = chips.bit_length() - 1
    sides = [2 ** ((twos + place) // dimensions) for place in range(dimensions)]
    if chips == 4 and dimensions == 3:
        sides.reverse()
    return f"{kind}:{'x'.join(map(str, sides))}"


@cache
def _compiler() -> list[str]:
    """All that the compiler's answer depends on beside its inputs."""
    found = blake3.blake3()
    for path in sorted(Path(steps.jax_backend.__path__[0]).rglob("*.py")):
        found.update(path.read_bytes())
    return [*map(version, ("jax", "jaxlib", "libtpu", "transformers")), found.hexdigest()]


def _compiled(request: Mapping[str, Any]) -> Foreseen:
    text = json.dumps(request, sort_keys=True)
    path = place("tpu", text.encode())
    if (answer := _kept(path)) is not None:
        return Foreseen(**answer)

    def start() -> subprocess.Popen[Any]:
        command = [sys.executable, "-P", "-m", "steps.prices.of_tpus", str(path), text]
        environment = {**os.environ, "PYTHONPATH": import_path(), "JAX_PLATFORMS": "cpu"}
        nothing: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        return subprocess.Popen(command, env=environment, start_new_session=True, **nothing)

    def wait(seconds: float) -> None:
        if _kept(path) is not None or (not seconds and _is_being_made(path)):
            return
        process = start()  # a process that another plan began goes first
        _started[path] = process
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        except BaseException:
            process.kill()
            raise

    note = "the TPU compiler works out its memory, which takes minutes: plan again later"
    return Foreseen(note=note, wait=wait)


def _kept(path: Path) -> dict[str, Any] | None:
    """The answer, unless there is none or it is damaged."""
    with suppress(OSError, ValueError):
        return load(path)
    return None


def _is_being_made(path: Path) -> bool:
    """Whether a process is at work on the answer. One that this process started may not have the
    lock yet."""
    if path in _started and _started[path].poll() is None:
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path.with_suffix(".lock"), timeout=0):
            return False
    except Timeout:
        return True


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a step, in a process of its own."""
    from steps.jax_backend.fitting.fit import Step, TooLarge, compile_step
    from steps.jax_backend.rounds import tokens_size
    from steps.models.config import ActivationCheckpointing

    budget = request["tokens_per_forward"]
    tokens = tokens_size(budget, budget, request["step"]["kernel"])
    step = {**request["step"], "dtype": Dtype(request["step"]["dtype"])}
    step["recomputed"] = ActivationCheckpointing(step["recomputed"])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(request["config"]))
        try:  # with all tokens scored, which takes at most some hundredths of a GiB more
            found = compile_step(Path(folder), request["topology"], Step(tokens, tokens, **step))
        except TooLarge as error:
            return {"note": f"does not fit: {error}"}
        except (OSError, MemoryError):  # another time it may go well
            raise
        except Exception as error:  # whatever the compiler or the config does
            reason = (str(error).splitlines() or [repr(error)])[0]
            return {"note": f"does not compile for {request['topology']}: {reason}"}
    return {"memory": found.peak, "capacity": found.limit}


def main(path: Path, request: str) -> None:
    """Keep the answer to a request; one compiler runs at a time, behind everything else."""
    os.nice(10)
    with FileLock(path.with_suffix(".lock")), FileLock(path.parents[1] / "compiling.lock"):
        if _kept(path) is None:
            save(path, _answer(json.loads(request)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
