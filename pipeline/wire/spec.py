"""What passes between driver and worker through the store, as JSON: the spec and the report.

A store is not believed, and it is no place for secrets. So a driver hands two things to its worker
in the environment, and not through the store: the digest of the spec, which says what code runs,
and the URLs of which the spec holds only what may be shown.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import blake3

from pipeline.dag.canonical import Json
from pipeline.dag.files import FileEntry
from pipeline.errors import TemperError
from pipeline.redaction import meet, shown
from pipeline.store.manifest import Discovered, file_entries
from pipeline.store.stored import is_count, parse_json

DIGEST, SECRETS = "TEMPER_SPEC_DIGEST", "TEMPER_SPEC_SECRETS"
"""Environment variables of a worker."""


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
class Pause:
    """How far a step is to go for now: until it has told its ``metric`` at ``at`` or later, as
    :meth:`pipeline.dag.step.Output.progress` counts. It then leaves as if its machine were wanted
    back, and goes on from its scratch in another attempt."""

    metric: str
    at: float

    def is_reached(self, done: float, metrics: Mapping[str, Any]) -> bool:
        return done >= self.at and self.metric in metrics


@dataclass(frozen=True)
class StepSpec:
    """Everything a worker needs to run one attempt of a step, on any machine with the code.

    Attributes:
        files: what the key says the step's source files are, by URL.
        code: what the key says the source is, by name; ``None`` where a version stands for it.
        types: ``module:name`` of the arguments' types, whose source belongs to ``code``.
        epoch: which scratch folder; see :meth:`pipeline.store.layout.Store.scratch_path`.
        nodes, processes: machines, and ranks on each of them.
        detached: the driver may end before the worker, and another go on with it: the attempt is
            begun once, and shows that it is alive; see :mod:`pipeline.wire.presence`.
        grace: seconds that a worker has which is told to leave.
        seconds: after so long it takes itself for told.
        pause: where it is to leave of itself.
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
    pause: Pause | None = None

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1, sort_keys=True).encode()

    def without_secrets(self) -> tuple["StepSpec", dict[str, str]]:
        """The spec as a store may have it, and what stands there for which texts."""
        secrets: dict[str, str] = {}

        def safe(text: str) -> str:
            meet(text)
            if (told := shown(text)) == text:
                return text
            known = next((mark for mark, secret in secrets.items() if secret == text), None)
            # numbered: two URLs may differ in their secrets alone
            mark = known or f"{told}#secret-{len(secrets)}"
            secrets[mark] = text
            return mark

        return self._with_texts(safe), secrets

    def _with_texts(self, change: Callable[[str], str]) -> "StepSpec":
        arguments = {name: _changed(value, change) for name, value in self.arguments.items()}
        files = {change(url): identity for url, identity in self.files.items()}
        return replace(self, arguments=arguments, files=files)

    @classmethod
    def from_json(cls, data: bytes) -> "StepSpec":
        """
        Raises:
            TemperError: it is not the spec that the driver of this worker has written.
        """
        digest, secrets = os.environ.pop(DIGEST, None), os.environ.pop(SECRETS, None)
        if digest is not None and digest != blake3.blake3(data).hexdigest():
            raise TemperError("the spec in the store is not what the driver has written there")
        fields = json.loads(data)
        fields["inputs"] = tuple(
            InputSpec(**{**entry, "files": file_entries(entry["files"])})
            for entry in fields["inputs"]
        )
        fields["types"] = tuple(fields["types"])
        if fields.get("pause") is not None:
            fields["pause"] = Pause(**fields["pause"])
        spec = cls(**fields)
        if secrets is None:
            return spec
        known: dict[str, str] = json.loads(secrets)
        for text in known.values():
            meet(text)
        return spec._with_texts(lambda text: known.get(text, text))


def handed_over(data: bytes, secrets: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a worker finds what the store is not trusted with."""
    digest = {DIGEST: blake3.blake3(data).hexdigest()}
    return {**digest, SECRETS: json.dumps(secrets)} if secrets else digest


def _changed(value: Json, change: Callable[[str], str]) -> Json:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_changed(item, change) for item in value]
    if isinstance(value, dict):
        return {name: _changed(item, change) for name, item in value.items()}
    return value


@dataclass(frozen=True)
class Report:
    """How an attempt ended. ``error`` is ``None`` for one that can be committed.

    Attributes:
        excerpt: lines that show where in the project's code a bug lies.
        damaged_input: position of an input whose bytes are not those that were committed.
        preempted: it was told to leave, and goes on from its scratch in another attempt.
        paused: it has come as far as it was to go for now.
        code: digests of the source that ran, by name.
        discovered: what it turned out to depend on besides its key.
        staged: there are copies of its scratch in the store.
    """

    error: str | None = None
    damaged_input: int | None = None
    preempted: bool = False
    paused: bool = False
    staged: bool = False
    excerpt: tuple[str, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)
    discovered: Discovered = field(default_factory=Discovered)
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        told = None if self.error is None else shown(self.error)
        excerpt = tuple(map(shown, self.excerpt))
        return json.dumps(asdict(replace(self, error=told, excerpt=excerpt)), indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Report":
        """The report in a store; a damaged one reports that."""
        try:
            fields = parse_json(data)
            fields["files"] = file_entries(fields["files"])
            fields["excerpt"] = tuple(fields.get("excerpt", ()))
            fields["discovered"] = Discovered.from_dict(fields.get("discovered", {}))
            report = cls(**fields)
            report._require_types()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return cls(f"the worker's report is damaged ({error!s:.200})")
        return report

    def _require_types(self) -> None:
        """
        Raises:
            TypeError: a field has none of its own.
        """
        mappings = (self.code, self.metrics, self.provenance)
        if not (
            isinstance(self.error, str | None)
            and (self.damaged_input is None or is_count(self.damaged_input))
            and isinstance(self.preempted, bool)
            and isinstance(self.paused, bool)
            and isinstance(self.staged, bool)
            and all(isinstance(mapping, dict) for mapping in mappings)
            and all(isinstance(text, str) for text in (*self.code.values(), *self.excerpt))
        ):
            raise TypeError("a field is of another type")
