import json
from pathlib import Path

import datasets
from lab import steps

datasets.disable_progress_bars()


def load(batch, limit):
    return {"texts": [steps.load(rows, limit) for rows in batch["rows"]]}


def tokenize(batch, vocabulary):
    return {"tokens": [steps.tokenize(texts, vocabulary) for texts in batch["texts"]]}


if __name__ == "__main__":
    s = json.loads(Path("settings.json").read_text())
    rows = datasets.load_dataset("text", data_files=s["rows"], split="train", cache_dir=".datasets")
    table = rows.map(
        lambda batch: {"rows": ["\n".join(batch["text"])]},
        batched=True,
        batch_size=None,
        remove_columns=["text"],
    )
    table = table.map(load, batched=True, fn_kwargs={"limit": s["limit"]})
    words = Path(s["vocabulary"]).read_text()
    table = table.map(tokenize, batched=True, fn_kwargs={"vocabulary": words})
    tokens = table[0]["tokens"]
    weights = steps.train(tokens, s["rate"], s["epochs"], s["optimiser"])
    score = steps.evaluate(weights, tokens, s["metric"], s["threshold"])
    Path(s["output"]).mkdir(exist_ok=True)
    Path(s["output"], "score.json").write_text(json.dumps(score))
