"""The record of a run: what was requested and planned, and the outcome of each step.

Each invocation writes one JSON object under ``runs/``, even if everything was cached. The record
protects artifacts from ``temper gc``, and comparisons of runs read it. It is written at the
beginning and at the end of a run. In between, each step that ends writes a small object under
``runs/<run>/``, so that even a killed run shows what it did.
"""

import hashlib
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.base.redaction import without_secrets
from pipeline.dag.step import Step
from pipeline.plan.planning import Plan, PlannedStep
from pipeline.store.layout import Store, name_by_time
from pipeline.store.runs import UNKNOWN, experiment_of


@dataclass(frozen=True)
class RunRecord:
    """What is known of a run at its beginning.

    Attributes:
        title: the model, the data and such that it is about, in a line.
        began: by a clock that nobody sets, which tells how long the run takes.
    """

    name: str
    started: float
    git: Mapping[str, Any]
    roots: Mapping[str, str]
    store: str
    title: str = ""
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(cls, roots: Mapping[str, Step], store: Store, title: str = "") -> "RunRecord":
        now = time.time()
        name = name_by_time(now)
        fingerprints = {name: step.fingerprint for name, step in roots.items()}
        return cls(name, now, git_state(), fingerprints, store.url, title)

    @property
    def seconds(self) -> float:
        """How long the run has taken until now."""
        return round(time.monotonic() - self.began, 3)

    @property
    def experiment(self) -> str:
        """The name of the experiment: that of its script or notebook."""
        name = experiment_of([*sys.orig_argv, *sys.argv[:1]])
        return _notebook() if name == "ipykernel_launcher" else name

    @property
    def provenance(self) -> dict[str, Any]:
        """The provenance in the manifest of every artifact that the run makes."""
        return {"run": self.name, "experiment": self.experiment, **self.git}

    def to_dict(
        self, outcome: str, plan: Plan, steps: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The record as JSON values.

        Args:
            outcome: ``running | done | failed | stopped``.
            steps: the outcome of each step, by fingerprint; for other steps the plan is recorded.
        """
        return {
            "run": self.name,
            "experiment": self.experiment,
            "title": self.title,
            "started": time.strftime("%FT%TZ", time.gmtime(self.started)),
            "seconds": self.seconds,
            "outcome": outcome,
            "argv": without_secrets(sys.orig_argv),  # as typed, not as Hydra extends it
            "cwd": os.getcwd(),
            "host": platform.node(),
            "pid": os.getpid(),
            **self.git,
            "store": self.store,
            "roots": dict(self.roots),
            "steps": [
                _entry(p, plan.labels[p.step.fingerprint], steps.get(p.step.fingerprint, {}))
                for p in plan.steps
            ],
        }


def _entry(planned: PlannedStep, label: str, went: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": planned.manifest.step if planned.manifest else planned.step.name,
        "label": label,
        "fingerprint": planned.step.fingerprint,
        "inputs": list(dict.fromkeys(i.step.fingerprint for i in planned.step.inputs)),
        "plan": planned.state.value,
        "why": planned.reason,
        "state": planned.state.value,
        "key": planned.key,
        "attempt": planned.manifest.attempt if planned.manifest else None,
        **went,
    }


def git_state() -> dict[str, Any]:
    """The commit of the working directory and a digest of the changes since (``None`` if there are
    none, `UNKNOWN` if git does not list them); empty outside git."""
    commit = (_git("rev-parse", "HEAD") or b"").decode(errors="replace").strip()
    if not re.fullmatch("[0-9a-f]{40,64}", commit):
        return {}
    changes = b""
    for asked in (
        ("diff", "HEAD", "--full-index", "--no-ext-diff", "--no-textconv"),
        ("status", "--porcelain"),
    ):
        if (told := _git(*asked)) is None:
            return {"commit": commit, "dirty": UNKNOWN}
        changes += told
    return {"commit": commit, "dirty": hashlib.sha256(changes).hexdigest() if changes else None}


def _git(*arguments: str) -> bytes | None:
    """What a command of git prints; ``None`` if it fails or takes too long."""
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout


def _notebook() -> str:
    """The name of the notebook, which Jupyter's server tells its kernels. VS Code has it told the
    name of a file of its own, ``NOTEBOOK-jvsc-….ipynb``; other servers tell none."""
    told = Path(os.environ.get("JPY_SESSION_NAME", ""))
    return told.stem.partition("-jvsc-")[0] if told.suffix else "notebook"
