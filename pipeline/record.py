"""The record of a run: what was asked for, what was planned, how each step went.

One JSON object per invocation under ``runs/``, also when everything was cached: it is what keeps
artifacts from being collected, and what a later comparison of runs reads.
"""

import hashlib
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.plan import Plan
from pipeline.step import Step
from pipeline.store import Store, name_by_time

_SECRET = re.compile(r"(?i)([^=\s]*(token|secret|password|api_?key|credential)[^=\s]*=).*")


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
    def provenance(self) -> dict[str, Any]:
        """What goes into the manifest of every artifact that the run makes."""
        return {"run": self.name, **self.git}

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
            "started": time.strftime("%FT%TZ", time.gmtime(self.started)),
            "seconds": round(time.time() - self.started, 3),
            "outcome": outcome,
            "argv": _without_secrets(sys.orig_argv),  # as typed: Hydra gets a longer one
            "cwd": os.getcwd(),
            "host": platform.node(),
            "pid": os.getpid(),
            **self.git,
            "store": self.store,
            "roots": dict(self.roots),
            "steps": [
                {
                    "step": planned.step.name,
                    "fingerprint": planned.step.fingerprint,
                    "plan": planned.state.value,
                    "why": planned.reason,
                    "state": planned.state.value,
                    "key": planned.key,
                    "attempt": planned.manifest.attempt if planned.manifest else None,
                    **steps.get(planned.step.fingerprint, {}),
                }
                for planned in plan.steps
            ],
        }


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


def _without_secrets(arguments: Sequence[str]) -> list[str]:
    return [_SECRET.sub(r"\1…", argument) for argument in arguments]
