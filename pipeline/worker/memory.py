"""What a worker does with memory that its step has freed.

A step of training frees and allocates the same tensors again and again. By default the C library
returns freed memory to the system, which clears every page anew at the next use; a step with small
tensors spends a tenth of its time on that. So a worker keeps what it has freed, up to a limit.
Tensors above 32 MiB are still returned at once.

oneDNN keeps a kernel for every shape of a product, a thousand of them by default, and so does
PyTorch beside it. Packs have many sizes, and kernels that stay lie between the tensors: after some
hundred sizes a worker held over a GiB. So it keeps as many as the sizes of one iteration of online
training need.
"""

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # parameters of mallopt in glibc
_KEPT = 2**30
_KERNELS = b"128"
_LARGE = 32 * 2**20
"""The largest value that glibc takes for tensors that have memory of their own."""


def keep_freed_memory() -> None:
    """Keep up to a GiB of freed memory in this process, with glibc; and few kernels, if no product
    has been computed yet."""
    try:
        libc = ctypes.CDLL(None)
        mallopt, setenv = libc.mallopt, libc.setenv
    except (AttributeError, OSError, TypeError):
        return
    for capacity in (b"ONEDNN_PRIMITIVE_CACHE_CAPACITY", b"LRU_CACHE_CAPACITY"):
        setenv(capacity, _KERNELS, 0)  # in os.environ, libraries would be imported anew
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return  # the user has decided
    mallopt(_MMAP_THRESHOLD, _LARGE)
    mallopt(_TRIM_THRESHOLD, _KEPT)
    mallopt(_TOP_PAD, 2 * _LARGE)  # threads have heaps of this size, which are kept whole
