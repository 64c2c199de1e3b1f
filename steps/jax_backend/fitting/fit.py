"""Check whether a training step fits TPUs or GPUs, by compiling its programs without them.

The compiler works on any machine (see `targets`). It compiles the programs that a run would
execute: forward, backward and update of `jax_trainer`, with one pack per device (chip) and weights
sharded over all of them. It reports each program's memory on a device, and its collectives. So the
step compiles, partitions and fits; this does not measure speed or check numbers on the device. This
module counts FLOPs itself, as the compiler counts the body of a loop only once.
"""

import re
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from steps.jax_backend.architecture import Architecture, read_architecture
from steps.jax_backend.attending.with_kernel import open_kernel
from steps.jax_backend.decoder import SCORE, token_logps
from steps.jax_backend.devices import Devices, accurate
from steps.jax_backend.fitting.targets import memory_of, mesh_of, without_devices
from steps.jax_backend.jax_scorer import NUMPY_DTYPES
from steps.jax_backend.jax_trainer import forward_and_backward
from steps.jax_backend.jax_updates import clipped, rules_of, state_shapes, updated
from steps.jax_backend.pack_arrays import PackArrays
from steps.jax_backend.param_tree import NOTHING, expected_shapes, shape_tree
from steps.models.config import ActivationCheckpointing, Dtype
from steps.training.config import OptimizerConfig

_COLLECTIVES = re.compile(
    r"= [^=]*? (all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all)(?:-start)?\("
)


@dataclass(frozen=True)
class Step:
    """The step to compile: a training step, or with `trains` false a scoring step.

    tokens: of a forward on one chip; scored: how many of them count; kernel: as in `JaxTraining`;
    rewards: of a reward model.
    """

    tokens: int
    scored: int
    dtype: Dtype = Dtype.bfloat16
    trains: bool = True
    master_weights: bool = True
    recomputed: ActivationCheckpointing = ActivationCheckpointing.full
    kernel: bool = False
    rewards: bool = False


@dataclass(frozen=True)
class Program:
    """One compiled program, its memory in bytes on a chip, and its collectives by name."""

    name: str
    arguments: int
    outputs: int
    temporaries: int
    aliased: int
    collectives: dict[str, int]
    seconds: float

    @property
    def peak(self) -> int:
        """The sum of arguments, outputs outside the arguments, and temporary memory."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


class TooLarge(ValueError):
    """A program needs more memory than a chip has, by the compiler, which then makes none."""


@dataclass(frozen=True)
class Fit:
    """The result of compiling a step for a topology.

    limit: the memory of a chip in bytes; None where that is not known.
    flops: the operations of a step with one pack on every chip, in which a token attends to half of
        the tokens.
    """

    topology: str
    chips: int
    parameters: int
    programs: tuple[Program, ...]
    limit: int | None
    flops: float

    @property
    def peak(self) -> int:
        """The largest memory that a program needs on a chip, including data of other programs."""
        return max(program.peak + self.beside(program) for program in self.programs)

    def beside(self, program: Program) -> int:
        """The bytes on a chip that a program does not use while it runs: the optimiser's state,
        whose size follows from the update's arguments, and the accumulated gradient."""
        if program.name not in ("forward", "backward") or len(self.programs) == 1:
            return 0
        state = self.programs[-1].arguments
        weights = state // 4  # weights, two moments and a gradient are of one size
        return state - weights * (1 if program.name == "forward" else 2)

    @property
    def fits(self) -> bool | None:
        """Whether the peak fits into a chip's memory; None if that is unknown."""
        return None if self.limit is None else self.peak < self.limit


def compile_step(config: Path, topology: str, step: Step, slices: int = 1) -> Fit:
    """Compile `step` for a topology; `config` is a config.json or a folder that contains one.

    Needs the extra ``temper-ml[tpu]`` or ``temper-ml[cuda]``, but no device. Raises ValueError for
    a name that no compiler knows, and TooLarge if the compiler finds no memory for a program.
    """
    without_devices()
    architecture, shapes = _described(config, step)
    devices = Devices(mesh_of(topology, slices))
    programs = tuple(_programs(architecture, shapes, devices, step))
    return Fit(
        topology if slices == 1 else f"{slices} × {topology}",
        devices.count,
        sum(int(np.prod(shape)) for shape in shapes.values()),
        programs,
        memory_of(topology),
        _flops(architecture, shapes, step) * devices.count,
    )


def _described(config: Path, step: Step) -> tuple[Architecture, dict[str, tuple[int, ...]]]:
    folder = config.parent if config.is_file() else config
    kind = AutoModelForSequenceClassification if step.rewards else AutoModelForCausalLM
    return read_architecture(folder), expected_shapes(folder, kind)


def _programs(
    a: Architecture, shapes: dict[str, tuple[int, ...]], devices: Devices, step: Step
) -> Any:
    """Compile the programs of a step, one after another."""
    dtype = NUMPY_DTYPES[step.dtype]
    held = accurate(dtype) if step.trains and step.master_weights else dtype
    tree = shape_tree(a, shapes)
    weights = jax.tree.map(
        lambda shape, spread: jax.ShapeDtypeStruct(shape, held, sharding=spread),
        tree,
        devices.weights(tree),
        is_leaf=lambda leaf: isinstance(leaf, tuple),
    )
    pack = _pack(a, devices, step)
    kernel = {"attend": open_kernel(a, devices.mesh, devices.kind)} if step.kernel else {}
    logps_of = partial(token_logps, a, dtype=dtype, shard=devices.spread, **kernel)
    with jax.sharding.use_abstract_mesh(devices.mesh.abstract_mesh):
        if not step.trains:
            yield _compiled("score", jax.jit(logps_of), weights, pack)[0]
            return
        forward, backward = forward_and_backward(
            partial(logps_of, recomputed=str(step.recomputed)), devices
        )
        program, (logps, pull) = _compiled("forward", forward, weights, NOTHING, pack)
        yield program
        given = (weights, NOTHING, pack, pull, logps)
        program, _ = _compiled("backward", backward, weights, *given)
        yield program
        config = OptimizerConfig(weight_decay=0.1)
        rules = rules_of(weights, config)

        def update(weights: Any, states: Any, gradient: Any) -> Any:
            gradient, norm = clipped(gradient, config.max_grad_norm)
            return *updated(rules, weights, states, gradient, 1e-3), norm

        states = state_shapes(rules, weights, devices)
        jitted = jax.jit(update, donate_argnums=(0, 1))
        yield _compiled("update", jitted, weights, states, weights)[0]


def _pack(a: Architecture, devices: Devices, step: Step) -> PackArrays:
    chips, channels = devices.count, 2 * len(a.rotations[0].frequencies)

    def of(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=devices.of_packs())

    rows, scored = of(chips, step.tokens), of(chips, step.scored)
    angles = jax.ShapeDtypeStruct(
        (len(a.rotations), chips, step.tokens, channels),
        jnp.float32,
        sharding=devices.of_packs(axis=1),
    )
    arrays: Any = (rows, rows, rows, rows, rows, angles, angles, scored, scored)
    return PackArrays(*arrays, reach=step.tokens)


def _compiled(name: str, function: Any, *arguments: Any) -> tuple[Program, Any]:
    """A program, and the shapes and shardings of its outputs."""
    started = time.process_time()
    traced = function.trace(*arguments)
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("RESOURCE_EXHAUSTED"):
            raise
        reason = str(error).splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ")
        raise TooLarge(f"{name} runs out of a chip's memory: {reason}") from error
    memory = compiled.memory_analysis()  # first, because some versions cannot write the text
    seconds = time.process_time() - started
    program = Program(
        name,
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.alias_size_in_bytes,
        dict(Counter(_COLLECTIVES.findall(compiled.as_text()))),
        seconds,
    )
    spreads = jax.tree.leaves(compiled.output_shardings)
    given = jax.tree.map(
        lambda leaf, spread: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=spread),
        traced.out_info,
        jax.tree.unflatten(jax.tree.structure(traced.out_info), spreads),
    )
    return program, given


def _flops(a: Architecture, shapes: dict[str, tuple[int, ...]], step: Step) -> float:
    """Of a pack: 2 for each weight and token, of the head for each scored one, and 4 for each
    channel and pair of tokens that see each other; three times that with a backward. What is
    recomputed is not counted."""
    outside = {"model.embed_tokens.weight", "lm_head.weight", SCORE}
    body = sum(int(np.prod(shape)) for name, shape in shapes.items() if name not in outside)
    outputs = 1 if step.rewards else a.vocabulary
    pairs = sum(min(t + 1, w) for w in a.windows for t in range(step.tokens))
    forward = 2 * body * step.tokens + 2 * outputs * a.hidden * step.scored
    forward += 4 * a.heads * a.head_size * pairs
    return float(forward * (3 if step.trains else 1))
