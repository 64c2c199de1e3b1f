"""Copies the score to the folder that the settings name."""

import json
import shutil
from pathlib import Path

output = Path(json.loads(Path("settings.json").read_text())["output"])
output.mkdir(exist_ok=True)
shutil.copy("work/evaluate.json", output / "score.json")
