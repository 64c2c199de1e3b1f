"""The resources that a step requests: ``step(...).on(gpus=8, nodes=2, time="12h")``.

Resources do not affect the result, so they are in no key. A step's own request takes precedence
over the defaults for its name in ``conf/launcher``; a field that is ``None`` requests nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.base.text import did_you_mean

MOST_PREEMPTIONS = 100
"""How often a step is resumed by default after it has lost its machine."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_LEAST_MEMORY = 2**20
"""Bytes; a smaller request is a number without its unit."""
_TIME_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Resources:
    """A request. All fields but ``nodes``, ``time``, ``retries`` and ``preemptions`` are per node.

    Args:
        gpus: CUDA devices.
        nodes: machines.
        accelerator: the kind of GPU, as the engine names it: ``H100``.
        tpu: a pod slice with all its hosts: ``v5p-8``. ``nodes`` is then the number of hosts, which
            follows from the name of a slice of Google Cloud.
        cpus: processor cores.
        memory: for example ``64GiB`` or ``64GB``.
        time: for one attempt, for example ``90m``, ``12h``, ``2d`` or ``HH:MM:SS``. A step that is
            stopped at the end of its time resumes in another attempt.
        processes: ranks that ``torchrun`` starts; by default one for each GPU.
        retries: how often to retry after a failure; by default the value in ``@step``.
        preemptions: how often to resume after the step was asked to stop or its machine was lost.

    Raises:
        TemperError: a value is out of range or invalid.
    """

    gpus: int | None = None
    nodes: int | None = None
    accelerator: str | None = None
    tpu: str | None = None
    cpus: int | None = None
    memory: str | None = None
    time: str | None = None
    processes: int | None = None
    retries: int | None = None
    preemptions: int | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise TemperError(f"{name}={value!r}: give a whole number from {least}")
        for name in ("accelerator", "tpu"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and re.fullmatch(_NAME, value)):
                raise TemperError(f"{name}={value!r}: give its name, as in {_EXAMPLES[name]}")
        if self.accelerator is not None and not self.gpus:
            raise TemperError(f"accelerator={self.accelerator!r}: say how many, as in gpus=8")
        if self.tpu is not None and self.gpus:
            raise TemperError(f"tpu={self.tpu!r} and gpus={self.gpus}: a step has one or the other")
        _bytes(self.memory)  # raises if it is invalid, and so does the next line
        _seconds(self.time)

    def over(self, defaults: "Resources") -> "Resources":
        """This request, with open fields filled from ``defaults``."""
        return replace(defaults, **self.requested)

    @property
    def requested(self) -> dict[str, Any]:
        """The fields that request something."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def num_nodes(self) -> int:
        """Machines; those of a TPU slice by its name, one if its kind is not known."""
        kind, _, number = (self.tpu or "").rpartition("-")
        is_one = kind not in _PER_HOST or not number.isdecimal() or int(number) <= _ONE_HOST
        return self.nodes or (1 if is_one else -(-int(number) // _PER_HOST[kind]))

    @property
    def num_chips(self) -> int:
        """Chips of the TPU slice, by its name; one a host if its kind is not known."""
        kind, _, number = (self.tpu or "").rpartition("-")
        if kind not in _PER_HOST or not number.isdecimal():
            return self.num_nodes
        return max(1, int(number) * _CHIPS_PER_HOST // _PER_HOST[kind])

    @property
    def num_gpus(self) -> int:
        """GPUs of each node."""
        return self.gpus or 0

    @property
    def num_processes(self) -> int:
        """Processes on each node."""
        return self.processes or max(1, self.num_gpus)

    @property
    def memory_bytes(self) -> int | None:
        """Memory of each node in bytes."""
        return _bytes(self.memory)

    @property
    def seconds(self) -> int | None:
        """The longest duration of one attempt."""
        return _seconds(self.time)

    def __str__(self) -> str:
        """The request in its own notation: ``gpus=8, nodes=2``."""
        return ", ".join(f"{name}={value}" for name, value in self.requested.items()) or "nothing"


_LEAST = {
    "gpus": 0, "nodes": 1, "cpus": 1, "processes": 1, "retries": 0, "preemptions": 0,
}  # fmt: skip
_PER_HOST = {"v2": 8, "v3": 8, "v4": 8, "v5p": 8, "v7x": 8, "v5litepod": 4, "v6e": 4}
"""How much of the number in a slice's name one of several hosts is: cores of 4 chips, or chips."""
_CHIPS_PER_HOST = 4
_ONE_HOST = 8
"""The largest number of a slice that is one host, of either kind."""
_NAME = r"[A-Za-z0-9][\w.-]*"
_EXAMPLES = {"accelerator": "accelerator='H100'", "tpu": "tpu='v5p-8'"}


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]?i?)b?", str(text).lower())
    size = 0 if found is None else int(float(found[1]) * _UNITS.get(found[2], 0))
    if size < _LEAST_MEMORY:
        raise TemperError(f"memory={text!r}: give it as in 64GiB or 64GB")
    return size


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    if found := re.fullmatch(r"(\d+(?:\.\d+)?) ?([smhd])", str(text).lower()):
        seconds = int(float(found[1]) * _TIME_UNITS[found[2]])
    elif found := re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", str(text)):
        days, hours, minutes, rest = (int(part or 0) for part in found.groups())
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    else:
        seconds = 0
    if seconds <= 0:
        raise TemperError(f"time={text!r}: give it as in 90m, 12h, 2d or HH:MM:SS")
    return seconds


def refuse_unknown(names: Iterable[Any]) -> None:
    """Refuse requests for what is no resource.

    Raises:
        TemperError: a name is no field of :class:`Resources`.
    """
    known = [entry.name for entry in fields(Resources)]
    if unknown := next((str(name) for name in names if name not in known), None):
        raise TemperError(f"{unknown} is none of {', '.join(known)}{did_you_mean(unknown, known)}")


NOTHING = Resources()
"""An empty request."""
