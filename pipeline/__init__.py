"""The core: steps, keys, the store, the plan and the engine. It knows no machine learning.

What an author needs is imported from here. The rooms, from the author to the machine:

- ``dag``: steps and what they are called with. ``code``: the code that a step reaches. Both are
  what a key is made of.
- ``store``: what is kept; commits, leases, catalogs.
- ``plan``: what exists and what will run. ``price``: what that will take. ``observed``: what a
  step was seen to use.
- ``tuning``: many invocations, in search of the best settings. ``running``: one of them.
  ``launchers`` start a ``worker`` somewhere; both meet in ``wire``.
- ``show``: what people look at. ``experiment``: Hydra's configs. ``cli``: the ``temper`` command,
  which ``__main__`` makes ``python -m pipeline`` too.
- ``configs``: where configs come from, and what each setting means.
- Below all of them: ``errors``; ``foreseen``, which says which exceptions are messages, and
  ``uncaught``, how a program shows them; ``extras`` that are not installed; ``redaction`` of
  secrets; ``references`` to what a worker imports, and the ``cells`` of a notebook that define
  it; ``taken_names`` that a user's file has, too; ``text`` and ``html`` for people.

A room uses the rooms below it, in the order of ``[tool.importlinter]`` in ``pyproject.toml``;
``docs/architecture.md`` has the picture. Begin with ``dag.step``.
"""

from pipeline.uncaught import install

install()  # first: what follows takes a moment, in which somebody may press Ctrl-C

from pipeline import taken_names
from pipeline.dag.adopt import adopt
from pipeline.dag.artifact import Artifact
from pipeline.dag.canonical import added_field, execution_detail
from pipeline.dag.grid import grid
from pipeline.dag.inputs import File, HubDataset, HubModel, packaged_file
from pipeline.dag.step import Input, Metrics, Output, Step, look_again, step
from pipeline.errors import TemperError
from pipeline.running.session import run
from pipeline.show.made import Made
from pipeline.show.results import compare, results
from pipeline.store.layout import Store
from pipeline.tuning.driver import tune

__version__ = "0.2.0"

taken_names.install()

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
    "results",
    "run",
    "step",
    "tune",
]
