import json
from pathlib import Path

from lab import steps

from pipeline import Artifact, File, Metrics, Output, run, step


@step
def load(out: Output, rows: File, limit: int) -> Metrics:
    made = steps.load(Path(rows.url).read_text(), limit)
    (out.path / "made.json").write_text(json.dumps(made))
    return {}


@step
def tokenize(out: Output, texts: Artifact, vocabulary: File) -> Metrics:
    made = steps.tokenize(_read(texts), Path(vocabulary.url).read_text())
    (out.path / "made.json").write_text(json.dumps(made))
    return {}


@step
def train(out: Output, tokens: Artifact, rate: float, epochs: int, optimiser: str) -> Metrics:
    made = steps.train(_read(tokens), rate, epochs, optimiser)
    (out.path / "made.json").write_text(json.dumps(made))
    return {}


@step
def evaluate(
    out: Output, weights: Artifact, tokens: Artifact, metric: str, threshold: float
) -> Metrics:
    made = steps.evaluate(_read(weights), _read(tokens), metric, threshold)
    (out.path / "made.json").write_text(json.dumps(made))
    return {}


def _read(made: Artifact):
    return json.loads((made.path / "made.json").read_text())


if __name__ == "__main__":
    s = json.loads(Path("settings.json").read_text())
    texts = load(rows=File(s["rows"]), limit=s["limit"])
    tokens = tokenize(texts=texts, vocabulary=File(s["vocabulary"]))
    weights = train(tokens=tokens, rate=s["rate"], epochs=s["epochs"], optimiser=s["optimiser"])
    score = evaluate(weights=weights, tokens=tokens, metric=s["metric"], threshold=s["threshold"])
    made = run({"score": score})
    Path(s["output"]).mkdir(exist_ok=True)
    Path(s["output"], "score.json").write_bytes(made["score"].read("made.json"))
