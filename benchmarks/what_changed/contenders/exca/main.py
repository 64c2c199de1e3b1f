import json
from pathlib import Path

import exca
import pydantic
from lab import steps

FOLDER = {"folder": ".exca", "version": "1"}


class Load(pydantic.BaseModel):
    rows: str
    limit: int
    infra: exca.TaskInfra = exca.TaskInfra(**FOLDER)

    @infra.apply
    def made(self) -> list:
        return steps.load(self.rows, self.limit)


class Tokenize(pydantic.BaseModel):
    texts: Load
    vocabulary: str
    infra: exca.TaskInfra = exca.TaskInfra(**FOLDER)

    @infra.apply
    def made(self) -> list:
        return steps.tokenize(self.texts.made(), self.vocabulary)


class Train(pydantic.BaseModel):
    tokens: Tokenize
    rate: float
    epochs: int
    optimiser: str
    infra: exca.TaskInfra = exca.TaskInfra(**FOLDER)

    @infra.apply
    def made(self) -> list:
        return steps.train(self.tokens.made(), self.rate, self.epochs, self.optimiser)


class Evaluate(pydantic.BaseModel):
    weights: Train
    metric: str
    threshold: float
    infra: exca.TaskInfra = exca.TaskInfra(**FOLDER)

    @infra.apply
    def made(self) -> dict:
        tokens = self.weights.tokens.made()
        return steps.evaluate(self.weights.made(), tokens, self.metric, self.threshold)


if __name__ == "__main__":
    s = json.loads(Path("settings.json").read_text())
    texts = Load(rows=Path(s["rows"]).read_text(), limit=s["limit"])
    tokens = Tokenize(texts=texts, vocabulary=Path(s["vocabulary"]).read_text())
    weights = Train(tokens=tokens, **{n: s[n] for n in ("rate", "epochs", "optimiser")})
    score = Evaluate(weights=weights, metric=s["metric"], threshold=s["threshold"]).made()
    Path(s["output"]).mkdir(exist_ok=True)
    Path(s["output"], "score.json").write_text(json.dumps(score))
