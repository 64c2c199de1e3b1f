"""The pipeline core: steps, keys, the store, the plan and the engine. Knows nothing of ML."""

from pipeline.adopt import adopt
from pipeline.artifact import Artifact
from pipeline.canonical import added_field, execution_detail
from pipeline.errors import TemperError
from pipeline.inputs import File, HubDataset, HubModel, packaged_file
from pipeline.results import results
from pipeline.run import run
from pipeline.step import Input, Metrics, Output, Step, look_again, step
from pipeline.store import Store
from pipeline.sweep import compare, grid

__all__ = [
    "Artifact",
    "File",
    "HubDataset",
    "HubModel",
    "Input",
    "Metrics",
    "Output",
    "Step",
    "Store",
    "TemperError",
    "added_field",
    "adopt",
    "compare",
    "execution_detail",
    "grid",
    "look_again",
    "packaged_file",
    "results",
    "run",
    "step",
]
