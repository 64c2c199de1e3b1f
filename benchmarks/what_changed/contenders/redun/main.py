import json
from pathlib import Path

from lab import steps
from redun import Scheduler, task
from redun.config import Config

load, tokenize, train, evaluate = (
    task(name=each.__name__, namespace="lab")(each)
    for each in (steps.load, steps.tokenize, steps.train, steps.evaluate)
)


@task(namespace="lab")
def main(s: dict, rows: str, vocabulary: str) -> dict:
    tokens = tokenize(load(rows, s["limit"]), vocabulary)
    weights = train(tokens, s["rate"], s["epochs"], s["optimiser"])
    return evaluate(weights, tokens, s["metric"], s["threshold"])


if __name__ == "__main__":
    s = json.loads(Path("settings.json").read_text())
    scheduler = Scheduler(config=Config({"backend": {"db_uri": "sqlite:///redun.db"}}))
    scheduler.load()
    texts = Path(s["rows"]).read_text(), Path(s["vocabulary"]).read_text()
    score = scheduler.run(main(s, *texts))
    Path(s["output"]).mkdir(exist_ok=True)
    Path(s["output"], "score.json").write_text(json.dumps(score))
