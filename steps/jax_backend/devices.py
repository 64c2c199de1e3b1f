"""The devices of this process as a mesh over which weights are sharded (FSDP, ZeRO-3).

Each weight is sharded along its first axis that divides evenly, except the axis of layers. A round
has one pack for each device. The compiler adds the collectives: a weight is gathered while its
layer runs, and its gradient is summed over the devices.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_AXIS = "fsdp"
_WORTH_KEEPING_SECONDS = 0.1


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
        return jax.tree.map(jax.device_put, tree, self.weights(tree))

    def spread(self, activations: Array) -> Array:
        """Tell the compiler to shard activations [B, …] like their packs."""
        return jax.lax.with_sharding_constraint(activations, self.of_packs())


def open_devices(count: int | None, dtype: np.dtype) -> Devices:
    """The first `count` devices of this process, or all, prepared for computations in `dtype`.

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
    found = jax.devices()
    if count is not None and len(found) < count:
        raise ValueError(
            f"backend.devices is {count}, but JAX sees {len(found)} ({found[0].platform}); on "
            "processors, a process that has computed with JAX already cannot have more"
        )
    return Devices(Mesh(np.array(found[:count]), (_AXIS,)))


def _simulate(count: int) -> None:
    """Simulate several devices on a CPU; this has no effect after JAX has initialised devices."""
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return  # JAX has initialised its devices; `open_devices` checks their number


def accurate(dtype: np.dtype) -> np.dtype:
    """The dtype of sums: float32, or float64 for a float64 model."""
    return jnp.promote_types(dtype, jnp.float32)
