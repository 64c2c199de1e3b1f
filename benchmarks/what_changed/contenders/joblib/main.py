import json
from pathlib import Path

from joblib import Memory
from lab import steps

memory = Memory(".joblib", verbose=0)
load, tokenize, train, evaluate = map(
    memory.cache, (steps.load, steps.tokenize, steps.train, steps.evaluate)
)

if __name__ == "__main__":
    s = json.loads(Path("settings.json").read_text())
    texts = load(Path(s["rows"]).read_text(), s["limit"])
    tokens = tokenize(texts, Path(s["vocabulary"]).read_text())
    weights = train(tokens, s["rate"], s["epochs"], s["optimiser"])
    score = evaluate(weights, tokens, s["metric"], s["threshold"])
    Path(s["output"]).mkdir(exist_ok=True)
    Path(s["output"], "score.json").write_text(json.dumps(score))
