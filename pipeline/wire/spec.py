"""The JSON that driver and worker exchange through the store: the spec and the report.

A store is not trusted, and must not contain secrets. So a driver passes two things to its worker in
the environment instead: the digest of the spec, which decides what code runs, and full URLs for
which the spec contains only redacted text.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import blake3

from pipeline.base.errors import TemperError
from pipeline.base.redaction import exact_record, in_urls, meet, record
from pipeline.dag.canonical import Json
from pipeline.dag.files import FileEntry
from pipeline.store.manifest import Discovered, file_entries
from pipeline.store.untrusted_input import is_count, parse_json

DIGEST, SECRETS = "TEMPER_SPEC_DIGEST", "TEMPER_SPEC_SECRETS"
"""Environment variables of a worker."""


@dataclass(frozen=True)
class InputSpec:
    """One input of a step: the path of its content within the store, its digest and kind, and the
    files that it must contain."""

    step: str
    content: str
    digest: str
    kind: str
    files: Mapping[str, FileEntry]


@dataclass(frozen=True)
class Pause:
    """The point at which a step pauses: once it has reported ``metric`` at ``at`` or later, as
    :meth:`pipeline.dag.step.Output.progress` counts. It then ends as if it were preempted, and
    another attempt resumes from its scratch."""

    metric: str
    at: float

    def is_reached(self, done: float, metrics: Mapping[str, Any]) -> bool:
        return done >= self.at and self.metric in metrics


@dataclass(frozen=True)
class StepSpec:
    """Everything that a worker needs to run one attempt of a step, on any machine with the code.

    Attributes:
        types: ``module:name`` of each class of the arguments and inputs, in order.
        files: the identities of the step's source files in the key, by URL.
        epoch: selects the scratch folder; see :meth:`pipeline.store.layout.Store.scratch_path`.
        nodes, processes: the number of machines, and of ranks on each.
        detached: whether the worker outlives its driver, so that another driver may take over. Then
            the attempt is begun once, and shows that it is alive; see
            :mod:`pipeline.wire.presence`.
        grace: seconds that a worker has after it was asked to stop.
        seconds: after so long, the worker stops as if it were asked to.
        pause: the point at which the step pauses.
    """

    store: str
    step: str
    key: str
    function: str
    arguments: Mapping[str, Json]
    inputs: tuple[InputSpec, ...]
    attempt: str
    types: tuple[str, ...]
    files: Mapping[str, Json]
    epoch: int
    nodes: int = 1
    processes: int = 1
    detached: bool = False
    grace: float = 10.0
    seconds: int | None = None
    pause: Pause | None = None

    def to_json(self) -> bytes:
        """The texts of arguments are to be redacted by now: the digest is of what is written."""
        return exact_record(dict(sorted(asdict(self).items())), indent=1)

    def without_secrets(self) -> tuple["StepSpec", dict[str, str]]:
        """The spec without secrets, for the store; and the full text for each redacted one."""
        marks: dict[str, str] = {}

        def safe(text: str) -> str:
            meet(text)
            if (redacted := in_urls(text)) == text:
                return text
            # numbered, since two URLs may differ only in their secrets
            return marks.setdefault(text, f"{redacted}#secret-{len(marks)}")

        spec = self._with_texts(safe)
        return spec, {mark: text for text, mark in marks.items()}

    def _with_texts(self, change: Callable[[str], str]) -> "StepSpec":
        arguments = {name: _changed(value, change) for name, value in self.arguments.items()}
        files = {change(url): identity for url, identity in self.files.items()}
        return replace(self, arguments=arguments, files=files)

    @classmethod
    def from_json(cls, data: bytes) -> "StepSpec":
        """Raise `TemperError` if it is not the spec that this worker's driver has written."""
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
    """The environment variables with which a driver passes digest and secrets to its worker."""
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
    """How an attempt ended. ``error`` is ``None`` if the attempt can be committed.

    Attributes:
        excerpt: lines that show where in the project's code a bug is.
        damaged_input: position of an input whose bytes are not as committed.
        preempted: it was asked to stop; another attempt resumes from its scratch.
        paused: it has reached the point of its pause.
        discovered: its dependencies that are not in the key.
        staged: whether the store has copies of its scratch.
    """

    error: str | None = None
    damaged_input: int | None = None
    preempted: bool = False
    paused: bool = False
    staged: bool = False
    excerpt: tuple[str, ...] = ()
    discovered: Discovered = field(default_factory=Discovered)
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return record(asdict(self), exact=("discovered", "files"), indent=1)

    @classmethod
    def from_json(cls, data: bytes) -> "Report":
        """Parse a report; for a damaged one, return a report of that error."""
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
        """Raise `TypeError` if a field has a wrong type."""
        mappings = (self.metrics, self.provenance)
        if not (
            isinstance(self.error, str | None)
            and (self.damaged_input is None or is_count(self.damaged_input))
            and isinstance(self.preempted, bool)
            and isinstance(self.paused, bool)
            and isinstance(self.staged, bool)
            and all(isinstance(mapping, dict) for mapping in mappings)
            and all(isinstance(text, str) for text in self.excerpt)
        ):
            raise TypeError("a field is of another type")
