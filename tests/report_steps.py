"""Steps whose artifacts have something to see, and names that nobody should trust."""

import json
import time
from collections.abc import Iterator

from pipeline import Artifact, Output, step
from pipeline.views import Histogram, Made, Table, Text, Texts, View, curves, summary

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
    yield Histogram("Lengths", "tokens", {"prompt": {1: 2, 5: 7}, "none": {}})


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
def hostile(out: Output, data: Artifact, config: dict, note: str = "") -> dict:
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


@step(version="1")
def train(out: Output, steps: int, api_key: str = "hidden", seconds: float = 0.0) -> dict:
    """Logs as training does: into scratch with each checkpoint, and as a file at the end."""
    log = out.scratch / "checkpoint" / "metrics.jsonl"
    log.parent.mkdir(exist_ok=True)
    lines = log.read_text().splitlines() if log.exists() else []
    for at in range(len(lines) + 1, steps + 1):
        time.sleep(seconds)
        lines.append(json.dumps({"step": at, "loss": 1 / at, "rewards/margins": at / 7}))
        new = log.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.replace(log)
        out.progress(at, steps, {"loss": 1 / at})
    (out.path / "metrics.jsonl").write_text("\n".join(lines))
    return {"final": 1 / steps, "accuracy": {"value": 0.5, "low": 0.25, "high": 0.75}}


@step(version="1")
def explode(out: Output, data: Artifact, note: str = "") -> dict:
    raise ValueError(note)
