"""The record of a run: what was asked for, what was planned, how each step went.

One JSON object per invocation under ``runs/``, also when everything was cached: it is what keeps
artifacts from being collected, and what a later comparison of runs reads. While the run is at work,
each step that ends has a small object of its own under ``runs/<run>/``, so that a run which is
killed shows what it did; the record itself is written in the beginning and in the end.
"""

import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.dag.step import Step
from pipeline.plan.planning import Plan, PlannedStep
from pipeline.redaction import shown, without_secrets
from pipeline.store.layout import Store, name_by_time
from pipeline.store.runs import experiment_of


@dataclass(frozen=True)
class RunRecord:
    """What is known of a run when it begins."""

    name: str
    started: float
    git: Mapping[str, Any]
    roots: Mapping[str, str]
    store: str

    @classmethod
    def begin(cls, roots: Mapping[str, Step], store: Store) -> "RunRecord":
        now = time.time()
        name = name_by_time(now)
        fingerprints = {name: step.fingerprint for name, step in roots.items()}
        return cls(name, now, git_state(), fingerprints, store.url)

    @property
    def experiment(self) -> str:
        """What to call what is run: the script's name."""
        return experiment_of([*sys.orig_argv, *sys.argv[:1]])

    @property
    def provenance(self) -> dict[str, Any]:
        """What goes into the manifest of every artifact that the run makes."""
        return {"run": self.name, "experiment": self.experiment, **self.git}

    def to_dict(
        self, outcome: str, plan: Plan, steps: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The record as JSON values.

        Args:
            outcome: ``running | done | failed | stopped``.
            steps: how each step went, by fingerprint; of others the plan is all there is.
        """
        return {
            "run": self.name,
            "experiment": self.experiment,
            "started": time.strftime("%FT%TZ", time.gmtime(self.started)),
            "seconds": round(time.time() - self.started, 3),
            "outcome": outcome,
            "argv": without_secrets(sys.orig_argv),  # as typed: Hydra gets a longer one
            "cwd": os.getcwd(),
            "host": platform.node(),
            "pid": os.getpid(),
            **self.git,
            "store": shown(self.store),
            "roots": dict(self.roots),
            "steps": [
                _entry(p, plan.labels[p.step.fingerprint], steps.get(p.step.fingerprint, {}))
                for p in plan.steps
            ],
        }


def _entry(planned: PlannedStep, label: str, went: Mapping[str, Any]) -> dict[str, Any]:
    entry = {
        "step": planned.manifest.step if planned.manifest else planned.step.name,
        "label": shown(label),
        "fingerprint": planned.step.fingerprint,
        "inputs": list(dict.fromkeys(i.step.fingerprint for i in planned.step.inputs)),
        "plan": planned.state.value,
        "why": shown(planned.reason),
        "state": planned.state.value,
        "key": planned.key,
        "attempt": planned.manifest.attempt if planned.manifest else None,
        **went,
    }
    return redacted(entry)


def redacted(went: dict[str, Any]) -> dict[str, Any]:
    """How a step went, without secrets in what it said."""
    return went | ({"message": shown(went["message"])} if "message" in went else {})


def git_state() -> dict[str, Any]:
    """The commit of the working directory and a digest of what differs from it (``None`` if
    nothing does); empty outside git."""

    def git(*arguments: str) -> bytes:
        command = ["git", *arguments]
        return subprocess.run(command, capture_output=True, check=True, timeout=10).stdout

    try:
        commit = git("rev-parse", "HEAD").decode().strip()
        changes = git("diff", "HEAD", "--binary") + git("status", "--porcelain")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": commit, "dirty": hashlib.sha256(changes).hexdigest() if changes else None}
