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
from pathlib import Path
from typing import Any

from pipeline import variants
from pipeline.plan import Plan, PlannedStep
from pipeline.step import Step
from pipeline.store import Store, name_by_time

_SECRET_NAME = re.compile(
    r"(token|secrets?|passwords?|passwd|passphrase|pwd|credentials?|authorization|signature)(?![a-z])"
    r"|(?<![a-z])(auth|key|sig|pw)$|(api|access|secret|private|account)key$"
)
_NAMED = re.compile(r"""(?<![\w.+~?&-])([\w.+~-]+)["']?\s*[=:]\s*(?=\S)""")
_PARAMETER = re.compile(r"""([?&;])([\w.-]+)=[^&\s"'#]+""")
_FLAG = re.compile(r"--?[\w.-]+|(?i:bearer)")
_BEARER = re.compile(r"(?i)\b(bearer\s+)\S+")
_USER_INFO = re.compile(
    r"(?i)(\bhttps?://)[^\s/?#]+@"  # a token alone, too
    r"|(://)(?:[^\s/?#]*:[^\s/?#]*@|[^\s/?#:@]*:(?!\d+[/?#])[^\s@]*@)"  # as S3 has, with slashes
)


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
        scripts = [a for a in sys.orig_argv if a.endswith(".py")]
        return Path(scripts[0]).stem if scripts else "interactive"

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
        labels = variants.names(variants.of_steps(planned.step for planned in plan.steps))
        return {
            "run": self.name,
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
                _entry(p, labels[p.step.fingerprint], steps.get(p.step.fingerprint, {}))
                for p in plan.steps
            ],
        }


def _entry(planned: PlannedStep, label: str, went: Mapping[str, Any]) -> dict[str, Any]:
    entry = {
        "step": planned.step.name,
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
    return entry | ({"message": shown(entry["message"])} if "message" in entry else {})


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


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line as it may be kept: what a name or a flag says is secret is ``…``.

    Rather too much than too little: the rest of an argument goes with what follows such a name.
    """
    kept: list[str] = []
    for before, argument in zip(("", *arguments), arguments, strict=False):
        follows = _FLAG.fullmatch(before) and (is_secret(before) or before.lower() == "bearer")
        if follows and not argument.startswith("-"):
            kept.append("…")
        else:
            kept.append(_up_to_secret(shown(argument)))
    return kept


def shown(text: str) -> str:
    """A text without users and passwords in URLs, signatures of URLs, and bearer tokens."""
    text = _USER_INFO.sub(lambda found: f"{found[1] or found[2]}…@", text)
    text = _PARAMETER.sub(
        lambda found: f"{found[1]}{found[2]}=…" if is_secret(found[2]) else found[0], text
    )
    return _BEARER.sub(r"\1…", text)


def _up_to_secret(argument: str) -> str:
    for named in _NAMED.finditer(argument):
        if is_secret(named[1]):
            return f"{argument[: named.end()]}…"
    return argument


def is_secret(name: str) -> bool:
    """Whether what is called so is rather not shown to anybody."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return _SECRET_NAME.search(words) is not None
