"""The core: steps, keys, the store, the plan and the engine. It knows no machine learning.

Authors import what they need from here. The packages, from the author to the machine:

- ``dag``: steps and their arguments, from which keys are built. ``trace``: the rule for the code
  that ran.
- ``store``: what is kept; commits, leases, catalogs.
- ``plan``: which artifacts exist and which steps will run. ``estimate``: their estimated cost.
  ``observed``: what a step uses while it runs.
- ``tuning``: many invocations, in search of the best settings. ``running``: one invocation.
  ``launchers`` start a ``worker`` somewhere; both use the protocol in ``wire``.
- ``show``: what people look at. ``experiment``: Hydra's configs. ``cli``: the ``temper`` command,
  which ``__main__`` runs too, for ``python -m pipeline``.
- ``configs``: where configs come from, and the meaning of each setting.
- Below all of them: ``uncaught``, which decides which exceptions are messages for users, and shows
  these; ``base``, what every package may use: errors, texts, redaction, references to code.

A package uses the packages below it, in the order of ``[tool.importlinter]`` in ``pyproject.toml``;
``ARCHITECTURE.md`` has the picture. Begin with ``dag.step``.
"""

import sys
from types import ModuleType

from pipeline.uncaught import early

early.install()  # first, since the imports take a moment in which the user may press Ctrl-C

from pipeline.uncaught import excepthook

excepthook.install()

from pipeline.base.errors import TemperError
from pipeline.dag.adopt import adopt
from pipeline.dag.artifact import Artifact
from pipeline.dag.canonical import added_field, execution_detail
from pipeline.dag.grid import grid
from pipeline.dag.inputs import File, HubDataset, HubModel, packaged_file
from pipeline.dag.step import Input, Metrics, Output, Step, look_again, step
from pipeline.running.session import plan, run
from pipeline.show.artifact_handle import Made
from pipeline.show.results import compare, results
from pipeline.store.layout import Store
from pipeline.tuning.driver import tune


class _Callable(ModuleType):
    """The package ``pipeline.plan``, which is also a function: its modules stay importable."""

    __call__ = staticmethod(plan)


sys.modules["pipeline.plan"].__class__ = _Callable
globals()["plan"] = sys.modules["pipeline.plan"]

__version__ = "0.2.0"

__all__ = [
    "Artifact",
    "File",
    "HubDataset",
    "HubModel",
    "Input",
    "Made",
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
    "plan",
    "results",
    "run",
    "step",
    "tune",
]
