"""One step from files to a file, for tools that run commands: ``python -m lab.stage train``."""

import json
import sys
from pathlib import Path

from lab import steps


def main(stage: str) -> None:
    settings = json.loads(Path("settings.json").read_text())

    def read(name: str):
        return json.loads(Path(f"work/{name}.json").read_text())

    if stage == "load":
        made = steps.load(Path(settings["rows"]).read_text(), settings["limit"])
    elif stage == "tokenize":
        made = steps.tokenize(read("load"), Path(settings["vocabulary"]).read_text())
    elif stage == "train":
        chosen = (settings[name] for name in ("rate", "epochs", "optimiser"))
        made = steps.train(read("tokenize"), *chosen)
    else:
        chosen = (settings[name] for name in ("metric", "threshold"))
        made = steps.evaluate(read("train"), read("tokenize"), *chosen)
    Path("work").mkdir(exist_ok=True)
    Path(f"work/{stage}.json").write_text(json.dumps(made))


if __name__ == "__main__":
    main(sys.argv[1])
