"""Sends metrics to Weights & Biases: one run for each step, grouped by experiment.

If there is no key in the environment or in ``~/.netrc``, or the server does not answer, the runs
are kept on this machine for ``wandb sync``. ``WANDB_MODE``, ``WANDB_PROJECT`` and ``WANDB_ENTITY``
are respected. The id of a run follows from the step and its key, so a step that was killed
continues the same run. W&B's server knows how far an online run is; an offline run is written again
from the first step and replaces the files of the killed process.
"""

import netrc
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.show.sinks import Watched

_HOST = "api.wandb.ai"
_OLD_NAMES = {"dryrun": "offline", "run": "online"}
"""Modes that W&B's client still takes."""
INIT_SECONDS = 15.0
"""How long to wait for the server before runs are kept on this machine."""


class WandbSink:
    def __init__(self) -> None:
        asked = os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline")
        self.mode = _OLD_NAMES.get(asked, asked)
        self.folder = Path(".")
        self.refused = ""

    def open(self, watched: Watched) -> "WandbView":
        import wandb

        self.folder = Path(os.environ.get("WANDB_DIR") or watched.folder)
        id = f"{watched.step}-{watched.key[:16]}"[-64:]
        try:
            return self._open(watched, id)
        except Exception as error:  # of the server or the network, or an invalid key
            if self.mode == "offline":
                raise
            self.mode, self.refused = "offline", " ".join(str(error).split())[:200]
            wandb.teardown()  # otherwise wandb keeps the run's id reserved
            return self._open(watched, id)

    def _open(self, watched: Watched, id: str) -> "WandbView":
        import wandb

        if self.mode == "offline":
            for left in (self.folder / "wandb").glob(f"offline-run-*-{id}"):
                shutil.rmtree(left, ignore_errors=True)
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "temper",
            group=watched.group,
            job_type=watched.step,
            name=watched.name,
            id=id,
            resume=None if self.mode == "offline" else "allow",
            config=dict(watched.config),
            dir=str(self.folder),
            mode=self.mode,  # type: ignore[arg-type]
            reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, disable_code=True, save_code=False,
                x_disable_stats=True, x_disable_meta=True, init_timeout=INIT_SECONDS,
            ),
        )  # fmt: skip
        return WandbView(run)

    def notice(self) -> str:
        if self.mode == "offline":
            why = f"not online ({self.refused}); " if self.refused else ""
            folder = self.folder / "wandb"
            return f"{why}kept in {folder}; to send it: wandb sync {folder}/*"
        if self.mode == "disabled":
            return "nothing was sent or kept, as WANDB_MODE says"
        return f"sent ({self.mode})"


class WandbView:
    def __init__(self, run: Any):
        self.run = run

    def log(self, at: int, values: Mapping[str, float]) -> None:
        if at >= self.run.starting_step:
            # commit=True: a row that is committed at the end would overwrite the summary
            self.run.log(dict(values), step=at, commit=True)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        self.run.summary.update(dict(summary or {}))
        self.run.finish(exit_code=0 if summary is not None else 1)


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators(_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False
