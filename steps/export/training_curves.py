"""Draw the curves of a training run as an image for the model card."""

import json
from pathlib import Path

METRICS = "metrics.jsonl"
_SHOWN = (
    ("loss",),
    ("rewards/margins", "rewards/chosen", "rewards/rejected"),
    ("rewards/accuracies", "mean_token_accuracy"),
)
"""The metrics of each panel, by TRL's names."""


def draw_curves(folder: Path, picture: Path) -> bool:
    """Draw a model's ``metrics.jsonl`` as a PNG. Returns whether there was anything to draw."""
    if not (folder / METRICS).is_file():
        return False
    records = [json.loads(line) for line in (folder / METRICS).read_text("utf-8").splitlines()]
    records = [record for record in records if "step" in record]
    panels = [[name for name in names if any(name in r for r in records)] for names in _SHOWN]
    if not (panels := [names for names in panels if names]):
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(panels), 2.8), layout="constrained")
    FigureCanvasAgg(figure)
    for place, names in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place, xlabel="step")
        for name in names:
            points = [(r["step"], r[name]) for r in records if r.get(name) is not None]
            axes.plot(*zip(*points, strict=True), label=name)
        axes.legend(fontsize="small", frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=120, metadata={"Software": None})  # equal curves, equal bytes
    return True
