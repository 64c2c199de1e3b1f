"""A training step that logs and stops as real ones do, and costs nothing, for tests of tuning."""

import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import Artifact, File, Output, Step, step


@dataclass(frozen=True)
class Fit:
    rate: float = 0.1
    beta: float = 1.0
    method: str = "plain"
    steps: int = 8

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate must be above 0, got {self.rate}")


@dataclass(frozen=True)
class Config:
    journal: str
    fit: Fit = field(default_factory=Fit)


def experiment(config: Config) -> dict[str, Step]:
    """Two results, of one corpus; only the second depends on ``fit``."""
    rows = corpus(config.journal)
    return {
        "before": score(fit(rows, Fit(), config.journal)),
        "after": score(fit(rows, config.fit, config.journal)),
    }


@step(version="1")
def corpus(out: Output, journal: str) -> dict:
    _note(journal, "corpus")
    (out.path / "rows.txt").write_text("rows")
    return {}


@step(version="1")
def fit(out: Output, rows: Artifact, config: Fit, journal: str) -> dict:
    """A loss whose minimum is at a rate of 0.3 and a beta of 2; evaluated after every second step,
    except by the method ``silent``.

    It kills its driver at the step that a file beside the journal names, once.
    """
    log = out.scratch / "checkpoint" / "metrics.jsonl"
    log.parent.mkdir(exist_ok=True)
    lines = log.read_text().splitlines() if log.exists() else []
    for at in range(len(lines) + 1, config.steps + 1):
        _note(journal, f"rate={config.rate:g} beta={config.beta:g} step {at}")
        if config.method == "explode" and at == 2:
            raise ValueError("the loss is not finite")
        loss = (config.rate - 0.3) ** 2 + (config.beta - 2) ** 2 + 1 / at
        is_evaluated = at % 2 == 0 and config.method != "silent"
        metrics = {"step": at, "loss": loss} | ({"eval_loss": loss} if is_evaluated else {})
        lines.append(json.dumps(metrics))
        leaving = out.stopping
        (new := log.with_suffix(".new")).write_text("\n".join(lines))
        new.replace(log)
        _kill_driver(journal, f"{config.rate:g} {config.beta:g} {at}")
        out.progress(at, config.steps, metrics)
        if leaving and at < config.steps:
            raise RuntimeError(f"left after step {at}")
    (out.path / "metrics.jsonl").write_text("\n".join(lines))
    return {"loss": json.loads(lines[-1])["loss"]}


@step(version="1")
def score(out: Output, model: Artifact) -> dict:
    """The quality is not known if the model was not evaluated at its end."""
    last = json.loads((model / "metrics.jsonl").read_text().splitlines()[-1])
    quality = {"value": -last["loss"], "low": -9.0, "high": 0.0} if "eval_loss" in last else None
    return {"quality": quality, "loss": last["loss"]}


@step(version="1")
def numbers_of(out: Output, rows: File, beta: float) -> dict:
    return {"count": len(Path(rows.url).read_text().split()), "beta": beta}


def _note(journal: str, line: str) -> None:
    with open(journal, "a") as file:
        file.write(f"{line}\n")


def _kill_driver(journal: str, at: str) -> None:
    order = Path(f"{journal}.kill")
    if order.exists() and order.read_text() == at:
        pid = int(Path(f"{journal}.driver").read_text())
        order.unlink()
        os.kill(pid, signal.SIGKILL)
        signal.pause()  # the lifeline ends this process
