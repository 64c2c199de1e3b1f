"""The kernel as what a decoder attends with: on every device for the packs that it has."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from steps.jax_backend.architecture import NO_WINDOW, Architecture
from steps.jax_backend.attending.prefix_kernel import prefix_attention
from steps.jax_backend.pack_arrays import LayerFacts, PackArrays


def attend_with_kernel(
    a: Architecture,
    q: Array,
    k: Array,
    v: Array,
    pack: PackArrays,
    facts: LayerFacts,
    *,
    mesh: Mesh,
    interpreted: bool,
) -> Array:
    """As `query_blocks.attend`, of packs that are spread over a mesh."""
    sees = jnp.stack([pack.own, pack.first, pack.last], axis=1)
    of_packs = PartitionSpec(mesh.axis_names[0])
    of_device: Any = jax.shard_map(
        lambda *own: prefix_attention(*own, a.attention_scale, interpreted),
        mesh=mesh,
        in_specs=(of_packs,) * 4,
        out_specs=of_packs,
        check_vma=False,
    )
    return of_device(q, k, v, sees)


def open_kernel(a: Architecture, mesh: Mesh, kind: str) -> Any:
    """`attend_with_kernel` for devices of a kind (cpu, tpu).

    Raises ValueError for a model or for devices that the kernel is not for.
    """
    if min(a.windows) < NO_WINDOW or a.attention_cap is not None:
        raise ValueError(
            f"backend.kernel=true has no windows and no caps, and attention in this {a.family} "
            "model has; set backend.kernel=false"
        )
    if kind not in ("cpu", "tpu"):
        raise ValueError(f"backend.kernel=true is for TPUs, not for {kind}; set it to false")
    return partial(attend_with_kernel, mesh=mesh, interpreted=kind == "cpu")
