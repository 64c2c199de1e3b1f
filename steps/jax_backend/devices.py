"""The devices of all processes as one mesh, over which weights are in pieces (FSDP, ZeRO-3).

Of each weight a device keeps a share of the first axis that divides evenly, that of the layers left
out; a round of packs has one for each device. The compiler adds the gathers and the sums: a weight
is whole while its layer is at work, and its gradient is summed over the devices.

On several hosts there is one process a host (`steps.models.ranks`). Every process lays out the same
rounds and asks for the same programs in the same order; it holds what lies on its own devices, and
gets whole what comes back to the host.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from steps.models.ranks import ALONE, Ranks

_AXIS = "fsdp"
_WORTH_KEEPING_SECONDS = 0.1

_PATIENCE = "xla_cpu_collective_call_terminate_timeout_seconds"

_coordinators: list[str] = []
"""Where the processes that this one has joined have found each other: joining is for life."""


@dataclass(frozen=True)
class Devices:
    """Some devices, all of one kind."""

    mesh: Mesh

    @property
    def count(self) -> int:
        """The number of devices, which is also the number of packs in a round."""
        return self.mesh.size

    @property
    def kind(self) -> str:
        """The kind of the devices: cpu, gpu or tpu."""
        return self.mesh.devices.flat[0].platform

    def of_weight(self, shape: Sequence[int], is_stacked: bool) -> NamedSharding:
        """The sharding of a weight; the first axis of a stack is the layers."""
        for axis in range(int(is_stacked), len(shape)):
            if shape[axis] % self.count == 0:
                return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, _AXIS))
        return NamedSharding(self.mesh, PartitionSpec())

    def of_packs(self, axis: int = 0) -> NamedSharding:
        """The sharding of a round whose packs are along `axis`."""
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, _AXIS))

    def weights(self, tree: Any) -> Any:
        """The shardings of a tree of weights, or of their shapes."""

        def shape(leaf: Any) -> Any:
            return leaf if isinstance(leaf, tuple) else leaf.shape

        outside = {k: self.of_weight(shape(v), False) for k, v in tree.items() if k != "layers"}
        layers = {k: self.of_weight(shape(v), True) for k, v in tree["layers"].items()}
        return {**outside, "layers": layers}

    def put_weights(self, tree: Any) -> Any:
        """Copies of host arrays on the devices, each with its share."""
        return jax.tree.map(put, tree, self.weights(tree))

    def spread(self, activations: Array) -> Array:
        """Tell the compiler to shard activations [B, …] like their packs."""
        return jax.lax.with_sharding_constraint(activations, self.of_packs())


def put(array: Any, where: NamedSharding) -> Array:
    """A host array that every process has, spread: each copies what its own devices hold."""
    return jax.make_array_from_callback(array.shape, where, lambda part: array[part])


def on_host(array: Array) -> np.ndarray:
    """All of an array, on every process; all must ask."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def open_devices(count: int | None, dtype: np.dtype, ranks: Ranks = ALONE) -> Devices:
    """The first `count` devices of each process, or all, made ready to compute in `dtype`.

    On a host without accelerators, `count` devices are simulated on the CPU; this works only before
    JAX has computed anything. Compiled programs are cached in ``~/.cache/temper/jax``
    (`TEMPER_CACHE` names another folder).

    Raises ValueError if there are fewer devices than `count`.
    """
    cache = Path(os.environ.get("TEMPER_CACHE", "~/.cache/temper")).expanduser()
    jax.config.update("jax_compilation_cache_dir", str(cache / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING_SECONDS)
    if dtype == np.float64:
        jax.config.update("jax_enable_x64", True)
    if count is not None and count > 1:
        _simulate(count)
    _join(ranks)
    found = [jax.local_devices(process) for process in range(jax.process_count())]
    fewest = min(found, key=len)
    if count is not None and len(fewest) < count:
        raise ValueError(
            f"backend.devices is {count}, but JAX sees {len(fewest)} ({fewest[0].platform}); on "
            "processors, a process that has computed with JAX already cannot have more"
        )
    taken = [device for of_process in found for device in of_process[:count]]
    return Devices(Mesh(np.array(taken), (_AXIS,)))


def _join(ranks: Ranks) -> None:
    """Makes one system of the processes of a step, once; its devices are those of all of them.

    The first says where the others find it: on the machine that `torchrun` has told everybody.
    Raises RuntimeError if this process has computed with JAX alone before.
    """
    if ranks.count == 1 or _coordinators:
        return
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    address = ranks.gather(f"{os.environ['MASTER_ADDR']}:{port}")[0]
    jax.distributed.initialize(address, ranks.count, ranks.index)
    _coordinators.append(address)


def leave_together() -> None:
    """Ends the watch that processes keep over each other, once all of them are here: otherwise who
    ends a moment later than the first takes that for its death, and ends with an error.

    Devices go on working together.
    """
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def _simulate(count: int) -> None:
    """Simulate several devices on a CPU; this has no effect after JAX has initialised devices.

    XLA aborts the process when such a device has waited 40 seconds for the others. On a machine
    with other work they may take longer, so it waits a day, unless the user's flags say how long.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _PATIENCE not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{_PATIENCE}={24 * 3600}".strip()
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return  # JAX has initialised its devices; `open_devices` checks their number


def accurate(dtype: np.dtype) -> np.dtype:
    """The dtype of sums: float32, or float64 for a float64 model."""
    return jnp.promote_types(dtype, jnp.float32)
