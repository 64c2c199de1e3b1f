"""What passes between driver and worker through the store, as JSON: the spec and the report."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.canonical import Json
from pipeline.manifest import FileEntry


@dataclass(frozen=True)
class InputSpec:
    """One input of a step: where its content lies (a path within the store), what it is, of which
    kind, and the files that it must hold."""

    step: str
    content: str
    digest: str
    kind: str
    files: Mapping[str, FileEntry]


@dataclass(frozen=True)
class StepSpec:
    """Everything a worker needs to run one attempt of a step, on any machine with the code.

    Attributes:
        files: what the key says the step's source files are, by URL.
        code: what the key says the source is, by name; ``None`` where a version stands for it.
        types: ``module:name`` of the arguments' types, whose source belongs to ``code``.
        epoch: which scratch folder; see :meth:`pipeline.store.Store.scratch_path`.
        nodes, processes: machines, and ranks on each of them.
        detached: the driver may end before the worker, and another go on with it: the attempt is
            begun once, and shows that it is alive; see :mod:`pipeline.presence`.
        grace: seconds that a worker has which is told to leave.
        seconds: after so long it takes itself for told.
    """

    store: str
    step: str
    key: str
    function: str
    arguments: Mapping[str, Json]
    inputs: tuple[InputSpec, ...]
    attempt: str
    files: Mapping[str, Json]
    code: Mapping[str, str] | None
    types: tuple[str, ...]
    epoch: int
    nodes: int = 1
    processes: int = 1
    detached: bool = False
    grace: float = 10.0
    seconds: int | None = None

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "StepSpec":
        fields = json.loads(data)
        fields["inputs"] = tuple(
            InputSpec(**{**entry, "files": _file_entries(entry["files"])})
            for entry in fields["inputs"]
        )
        fields["types"] = tuple(fields["types"])
        return cls(**fields)


@dataclass(frozen=True)
class Report:
    """How an attempt ended. ``error`` is ``None`` for one that can be committed.

    Attributes:
        damaged_input: position of an input whose bytes are not those that were committed.
        preempted: it was told to leave, and goes on from its scratch in another attempt.
        code: digests of the source that ran, by name.
        staged: there are copies of its scratch in the store.
    """

    error: str | None = None
    damaged_input: int | None = None
    preempted: bool = False
    staged: bool = False
    code: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Report":
        fields = json.loads(data)
        fields["files"] = _file_entries(fields["files"])
        return cls(**fields)


def _file_entries(data: Mapping[str, Any]) -> dict[str, FileEntry]:
    return {name: FileEntry(**entry) for name, entry in data.items()}
