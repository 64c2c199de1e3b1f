"""Devices to compile for, which need not be there: TPU slices (v5e:2x4) and GPUs (h100:8).

libtpu knows its topologies by name. The compiler for GPUs has to be told what a GPU is like.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

GIB = 2**30
TPUS = {  # bytes of memory a chip, from Google Cloud's pages of each generation
    "v4": 32 * GIB,
    "v5e": 16 * GIB,
    "v5p": 95 * GIB,
    "v6e": 32 * GIB,
}


@dataclass(frozen=True)
class Gpu:
    """A GPU, by NVIDIA's data sheets.

    capability: the number of its generation; cores: its streaming multiprocessors; shared: bytes of
        shared memory of each; cache: bytes of the second cache; bandwidth: bytes a second; clock:
        GHz; memory: bytes, as its driver says.
    """

    capability: int
    cores: int
    shared: int
    cache: int
    bandwidth: float
    clock: float
    memory: int


GPUS = {
    "a100": Gpu(8, 108, 164 * 2**10, 40 * 2**20, 2.04e12, 1.41, 85_100_068_864),
    "h100": Gpu(9, 132, 228 * 2**10, 50 * 2**20, 3.35e12, 1.98, 84_942_979_072),
    "h200": Gpu(9, 132, 228 * 2**10, 50 * 2**20, 4.8e12, 1.98, 151_397_597_184),
    "b200": Gpu(10, 148, 228 * 2**10, 126 * 2**20, 7.67e12, 1.965, 191_514_411_008),
}
"""With 80 GB (A100 and H100, SXM), 141 GB and 180 GB."""

_GPUS_OF_A_NODE = 8
_GPU = """
gpu_device_info {{
  cuda_compute_capability {{ major: {capability} }}
  core_count: {cores} fpus_per_core: 128 clock_rate_ghz: {clock}
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_core: {shared} shared_memory_per_block: 49152
  shared_memory_per_block_optin: {shared_by_one}
  l2_cache_size: {cache} memory_bandwidth: {bandwidth:.0f} device_memory_size: {memory}
}}
platform_name: "CUDA" device_description_str: "{name}"
runtime_version {{ major: 12 minor: 8 }} dnn_version_info {{ major: 9 minor: 10 }}
"""
_WITHOUT_DEVICES = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
}


def without_devices() -> None:
    """Lets the compilers work on a machine without devices; before JAX has looked for some."""
    for name, value in _WITHOUT_DEVICES.items():
        os.environ.setdefault(name, value)
    jax.config.update("jax_platforms", "cpu")


def memory_of(target: str) -> int | None:
    """The bytes of memory of one device; None if that is not known."""
    kind = _kind(target)
    return GPUS[kind].memory if kind in GPUS else TPUS.get(kind)


def mesh_of(target: str, slices: int) -> Mesh:
    """All devices of some slices, or of some groups of GPUs; raises ValueError for a name that no
    compiler knows, and where its compiler is not installed."""
    are_gpus = _kind(target) in GPUS
    if are_gpus and find_spec("jax_cuda12_plugin") is None:
        raise ValueError(f"{target!r} needs XLA's compiler for GPUs: pip install 'temper-ml[cuda]'")
    if not are_gpus and find_spec("libtpu") is None:
        raise ValueError(
            f"{target!r} is none of the GPUs {', '.join(GPUS)}, and TPU topologies need libtpu: "
            "pip install 'temper-ml[tpu]'"
        )
    try:
        return (_gpus if are_gpus else _tpus)(target, slices)
    except Exception as error:
        raise ValueError(
            f"no TPU topology or GPUs {target!r} ({str(error).splitlines()[0]}); names are like "
            f"v5e:2x4, v5p:2x2x2 or v6e:4x4, and {':8, '.join(GPUS)}:8"
        ) from error


def _tpus(target: str, slices: int) -> Mesh:
    options: dict[str, Any] = {"chip_config_name": "megacore"} if target.startswith("v4") else {}
    if slices > 1:
        options["num_slices"] = slices
    if target.endswith(":1x1"):  # part of a host
        options["chips_per_host_bounds"] = (1, 1, 1)
    found = topologies.get_topology_desc(platform="tpu", topology_name=target, **options)
    if slices > 1:  # which JAX lays out as axes of their own, or not at all
        return _all_of(found)
    return topologies.make_mesh(found, (len(found.devices),), ("fsdp",))


def _gpus(target: str, slices: int) -> Mesh:
    """On nodes of eight; all of a slice are on one fast network."""
    kind, _, number = target.partition(":")
    if not number.isdecimal():
        raise ValueError(f"give the number of GPUs, as in {kind}:8")
    count = int(number)
    of_node = min(count, _GPUS_OF_A_NODE)
    if count < 1 or count % of_node:
        raise ValueError(f"{count} are no whole nodes of {_GPUS_OF_A_NODE}")
    gpu = GPUS[kind]
    text = _GPU.format(name=f"NVIDIA {kind.upper()}", shared_by_one=gpu.shared - 1024, **vars(gpu))
    return _all_of(
        topologies.get_topology_desc(
            platform="cuda",
            topology_name=kind,
            target_config=text,
            topology=f"{slices}x{count // of_node}x{of_node}",
        )
    )


def _all_of(found: topologies.TopologyDescription) -> Mesh:
    return Mesh(np.array(found.devices), ("fsdp",))


def _kind(target: str) -> str:
    return target.partition(":")[0]
