"""Steps whose artifacts have something to see, and names that nobody should trust."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from waiting import wait_while_held

from pipeline import Artifact, Output, step
from pipeline.show.artifact_handle import Made
from pipeline.show.views import (
    Curves,
    Histogram,
    Measure,
    Measures,
    Table,
    Text,
    Texts,
    View,
    curves,
    summary,
)

HOSTILE = {
    "html": "<b>bold</b><img src=x onerror=\"document.title='owned'\">",
    "script": "</script></style></title><script>document.title='owned'</script>",
    "quotes": '" \' ` onfocus=alert(1) autofocus x="',
    "template": "{{ 7 * 7 }} {% raw %} ${7*7} $x^2$",
    "ansi": "\x1b[31mred\x1b[0m\x1b]0;owned\x07\x00",
    "long": "verylong" * 4000,
    "right to left": "\u202eevil\u202c שלום عليكم \u2066x",
    "url": "https://example.invalid/x.png ![i](https://example.invalid/y.png) [l](javascript:x)",
    "emoji": "👩‍🔬 ﷽ Z̴̨͔a̵l̷g̴o̶",
}
JOURNAL = "TEMPER_TEST_JOURNAL"
"""Set to the journal by which `train` is held."""


class Experiment(Artifact):
    """What :func:`measure` writes."""

    views = "report_steps:look"


def look(made: Made) -> Iterator[View]:
    yield from curves(made, ["loss"])
    yield from summary(made)
    rows = [
        Text(r["row"], r["prompt"], r["answer"], r.get("remark", ""))
        for r in made.records("answers.jsonl")
    ]
    yield Texts("Questions", rows)
    yield Table("Ledger", ["outcome", "rows"], [["kept", 7], ["dropped", 2]])
    yield Histogram("Lengths", "tokens", {"prompt": {1: 2, 5: 7}, "none": {3: 0}})


@step(version="1")
def prepare(out: Output, rows: int = 3) -> dict:
    (out.path / "rows.txt").write_text("x" * rows)
    return {"rows": rows}


@step(version="1")
def prepare_again(out: Output, data: Artifact) -> dict:
    return {}


@step(version="1", makes=Experiment)
def measure(out: Output, data: Artifact, beta: float = 0.1, seed: int = 0, note: str = "") -> dict:
    """A loss that falls, faster for a larger beta, and an answer a row."""
    losses = [1 / (1 + beta * at) for at in range(1, 41)]
    log = ({"step": at, "loss": loss, "rate": 0.1} for at, loss in enumerate(losses, start=1))
    (out.path / "metrics.jsonl").write_text("\n".join(map(json.dumps, log)))
    (out.path / "summary.md").write_text(f"## Measured\n\n| a | b |\n|---|---|\n| 1 | {beta} |\n")
    answers = (
        {"row": f"{i}", "prompt": f"What is {i}?", "answer": f"{i + beta}"} for i in range(3)
    )
    (out.path / "answers.jsonl").write_text("\n".join(map(json.dumps, answers)))
    share = losses[-1]
    return {"loss": share, "accuracy": {"value": 1 - share, "low": 0.9 - share, "high": 1.0}}


@step(version="1", makes=Experiment)
def hostile(out: Output, data: Artifact, config: dict, note: str = "", api_key: str = "") -> dict:
    """Everything that a user can name is named by the worst of texts."""
    log = [{"step": at, "loss": 1.0, **dict.fromkeys(HOSTILE.values(), at)} for at in range(3)]
    (out.path / "metrics.jsonl").write_text("\n".join(map(json.dumps, log)))
    (out.path / "summary.md").write_text("\n\n".join(HOSTILE.values()), "utf-8")
    answers = [
        {"row": name, "prompt": text, "answer": f"{text} \ud83d", "remark": f"{text} \ud83d"}
        for name, text in HOSTILE.items()
    ]
    (out.path / "answers.jsonl").write_text("\n".join(map(json.dumps, answers)))
    return {text: at for at, text in enumerate(HOSTILE.values())}


class Judgement(Artifact):
    """What :func:`judge` writes."""

    views = "report_steps:look_at_judgement"


def look_at_judgement(made: Made) -> Iterator[View]:
    yield Measures(
        [
            Measure("gain/right", "share right", "Gain", True, 1, "right", "gain/right/p"),
            Measure("gain/words", "words", "Gain", False, -1, p="gain/words/p"),
            Measure("right", "share right", "Answers", True, 1),
            Measure("reward", "reward", "Answers", False, 1),
        ],
        "baseline",
    )
    said = made.records("answers.jsonl")
    yield Texts("Asked", [Text(a["row"], a["prompt"], a["answer"], "", a["checks"]) for a in said])
    points = {"observed": [(0.25, 0.5), (0.75, 0.7)]}
    yield Curves("Calibration", "predicted", points, diagonal=True, section="Results")


@step(version="1", makes=Judgement)
def judge(
    out: Output,
    right: int,
    gain: int = 0,
    p: float = 1.0,
    answer: str = "It is four.",
    baseline: Judgement | None = None,
) -> dict:
    """Of 100 answers so many are right; beside a baseline, so many more, with the p of that."""
    checks = {"short": True, "true": right > 50}
    said = {"row": "1", "prompt": "2 + 2?", "answer": answer, "checks": checks}
    (out.path / "answers.jsonl").write_text(json.dumps(said))
    found = {"right": _share(right)}
    if baseline is None:
        return found
    return found | {
        "reward": 1.5,
        "gain/right": {"value": gain / 100, "low": gain / 100 - 0.1, "high": gain / 100 + 0.1},
        "gain/right/p": p,
        "gain/words": {"value": 0.0, "low": -1.0, "high": 1.0},
        "gain/words/p": 1.0,
    }


def _share(right: int) -> dict[str, float]:
    return {"value": right / 100, "low": max(0, right - 9) / 100, "high": min(100, right + 9) / 100}


@step(version="1")
def train_until(out: Output, gate: str) -> dict:
    """Logs six lines with its checkpoint, then waits for a file."""
    log = "\n".join(json.dumps({"step": at, "loss": 1 / at}) for at in range(1, 7))
    (out.scratch / "metrics.jsonl").write_text(log)
    out.progress(6, 8, {"loss": 1 / 6})
    while not Path(gate).exists():
        time.sleep(0.05)
    (out.path / "metrics.jsonl").write_text(log)
    return {"final": 1 / 6}


@step(version="1")
def train(out: Output, steps: int, api_key: str = "hidden") -> dict:
    """Logs as training does: into scratch with each checkpoint, and as a file at the end.

    A test can hold it at a step: see `waiting`.
    """
    log = out.scratch / "checkpoint" / "metrics.jsonl"
    log.parent.mkdir(exist_ok=True)
    lines = log.read_text().splitlines() if log.exists() else []
    for at in range(len(lines) + 1, steps + 1):
        lines.append(json.dumps({"step": at, "loss": 1 / at, "rewards/margins": at / 7}))
        new = log.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.replace(log)
        out.progress(at, steps, {"loss": 1 / at})
        wait_while_held(os.environ.get(JOURNAL, ""), at)
    (out.path / "metrics.jsonl").write_text("\n".join(lines))
    return {"final": 1 / steps, "accuracy": {"value": 0.5, "low": 0.25, "high": 0.75}}


@step(version="1")
def explode(out: Output, data: Artifact, note: str = "") -> dict:
    raise ValueError(note)
