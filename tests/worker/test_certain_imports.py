"""Which libraries a step function is certain to import: read, never imported."""

import sys
from pathlib import Path

import pytest

from pipeline.worker.libraries.certain_imports import certain_imports

STEP = """
import os, numpy
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import pyarrow
try:
    import torch.nn
except ImportError:
    torch = None

def step(out, wanted):
    from machine import work
    if wanted:
        import yaml
    with open("x") as file:
        import fsspec
    work()
    if wanted:
        return
    import rich

def helper():
    import jinja2
"""
MACHINE = """
from pyarrow import parquet

def work():
    import filelock
    raise ValueError
    import luigi
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "certain_step.py").write_text(STEP)
    (tmp_path / "machine.py").write_text(MACHINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("project")
def test_what_runs_in_any_case_counts_in_the_order_of_plain_python() -> None:
    assert certain_imports("certain_step:step") == (
        "numpy",
        "torch.nn",
        "pyarrow",
        "pyarrow:parquet",
        "fsspec",
        "filelock",
        "rich",
    )
    assert "machine" not in sys.modules


def test_a_module_of_the_project_is_no_library_whatever_it_is_called(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tabulate", raising=False)  # the library
    (project / "tabulate.py").write_text("import numpy\n")
    (project / "certain_step.py").write_text("import tabulate\ndef step(out):\n    pass\n")
    assert certain_imports("certain_step:step") == ("numpy",)


def test_relative_imports_are_followed(project: Path) -> None:
    (package := project / "parts").mkdir()
    (package / "__init__.py").write_text("from . import one\n")
    (package / "one.py").write_text("from .two import thing\n")
    (package / "two.py").write_text("import numpy\nthing = 1\n")
    (project / "certain_step.py").write_text("def step(out):\n    from parts.two import thing\n")
    assert certain_imports("certain_step:step") == ("numpy",)


def test_code_that_cannot_be_read_promises_nothing(project: Path) -> None:
    (project / "certain_step.py").write_text("import numpy\ndef step(out:\n")
    assert certain_imports("certain_step:step") == ()
    assert certain_imports("nowhere_at_all:step") == ()


def test_the_steps_that_load_models_are_certain_to_import_torch_and_transformers() -> None:
    for name in ("import_model", "train_sft", "reference_logprobs", "train_dpo", "evaluate"):
        found = certain_imports(f"steps.{name}:{name}")
        assert {"torch", "transformers:AutoModelForCausalLM"} <= {*found}, name
    assert "torch" not in certain_imports("steps.load_preferences:load_preferences")
