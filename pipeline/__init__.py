"""The pipeline core: steps, keys, the store, the plan and the engine. Knows nothing of ML."""

from pipeline.canonical import execution_detail
from pipeline.errors import TemperError
from pipeline.inputs import File, HubDataset, HubModel, packaged_file
from pipeline.run import run
from pipeline.step import Artifact, Input, Metrics, Output, Step, step
from pipeline.store import Store

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
    "execution_detail",
    "packaged_file",
    "run",
    "step",
]
